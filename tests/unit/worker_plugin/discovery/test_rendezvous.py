"""The ranks agree on a job and its reducers, whatever earlier lives left in the store."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from reduction.discovery.resolve import Resolved
from reduction.errors import ConfigError, ReducerUnavailable, WorkersMissing
from torch.distributed import HashStore, PrefixStore, TCPStore

from worker_plugin.config import PluginConfig
from worker_plugin.discovery import colocated, meeting_point, rendezvous, roll_call
from worker_plugin.discovery.bounded_store import BoundedStore
from worker_plugin.discovery.rendezvous import StoreRendezvous
from worker_plugin.discovery.roll_call import StorePrefix

REDUCERS = PluginConfig(reducers=("127.0.0.1:1",), timeout_s=5.0)


@pytest.fixture
def store():
    """Not a TCPStore, whose server looks up the name of every client, and blocks for seconds if DNS has none."""
    return HashStore()


def bounded(store):
    return BoundedStore(store, REDUCERS)


@pytest.fixture
def host(monkeypatch):
    """All threads run on one host, where an embedded reducer appears to start."""
    reducer = SimpleNamespace(address="127.0.0.1:2", token="secret", users=[])

    def lend(user, *_):
        reducer.users.append(user)
        return reducer

    monkeypatch.setattr(rendezvous, "loopback_id", lambda: "here")
    for module in (meeting_point, colocated):
        monkeypatch.setattr(module, "lend", lend)
        monkeypatch.setattr(
            module, "give_back", lambda user, reducers: [r.users.remove(user) for r in reducers]
        )
    return reducer


@pytest.fixture
def many_hosts(host, monkeypatch):
    """No two threads run on one host."""
    ids = iter(range(100))
    monkeypatch.setattr(rendezvous, "loopback_id", lambda: f"host {next(ids)}")


def process(config, store, size):
    """Return the rendezvous of the first communicator of a process, which has its own store object."""
    return StoreRendezvous(config, PrefixStore("", store), size)


def live(store, configs, ranks=None, ask=StoreRendezvous.agree):
    """Let all ranks agree, as in one life of a script; return the meeting point or the error of each."""
    size = len(configs)
    with ThreadPoolExecutor(size) as threads:
        futures = {
            rank: threads.submit(ask, process(configs[rank], store, size), configs[rank], rank, size)
            for rank in ranks or range(size)
        }
        return {rank: future.exception() or future.result() for rank, future in futures.items()}


def test_all_ranks_of_a_life_meet_and_none_of_another_one(store):
    config = PluginConfig(reducers=("127.0.0.1:1",), run="constant", timeout_s=5.0)
    points = [point for _ in range(2) for point in live(store, [config] * 4).values()]
    assert {point.addresses for point in points} == {("127.0.0.1:1",)}
    for names in ([point.job for point in points], [point.run for point in points]):
        assert len(set(names[:4])) == len(set(names[4:])) == 1
        assert len(set(names)) == 2
        assert "" not in names


@pytest.mark.parametrize("written", [1, 2, 3])
def test_a_life_does_not_meet_one_that_died_while_meeting(store, written):
    """The new rank 1 arrives before rank 0, and finds the keys that two ranks of a dead life have written."""
    old = roll_call.RollCall(bounded(store))
    store.set("arrived/1", "old")
    if written > 1:
        store.set("call/old", old.nonce)
    if written > 2:
        store.set(f"answer/{old.nonce}/1", "elsewhere")
        old.broadcast("old broadcast")
    with ThreadPoolExecutor(2) as threads:
        other = threads.submit(roll_call.answer_call, bounded(store), 1, "text", REDUCERS)
        new = roll_call.RollCall(bounded(store))
        assert new.gather(2, REDUCERS) == {1: "text"}
        new.broadcast("new broadcast")
        assert other.result() == ("new broadcast", new.nonce)


def test_rank_0_waits_for_a_rank_that_comes_after_its_dead_namesake(store):
    store.set("arrived/1", "old")
    with ThreadPoolExecutor(2) as threads:
        call = roll_call.RollCall(bounded(store))
        answers = threads.submit(call.gather, 2, REDUCERS)
        store.clone().get("call/old")  # rank 0 has mistaken the dead one for rank 1
        other = threads.submit(roll_call.answer_call, bounded(store), 1, "text", REDUCERS)
        assert answers.result() == {1: "text"}
        call.broadcast("broadcast")
        assert other.result() == ("broadcast", call.nonce)


def test_prefixes_are_counted_by_process_group(store):
    stores = store, PrefixStore("elsewhere", store), store
    first, other, second = (roll_call.reserve_prefix(one, "purpose").prefix for one in stores)
    assert first == other != second


@pytest.mark.parametrize(("ranks", "missing"), [([0, 1], "rank 2"), ([1], "rank 0")])
def test_a_missing_rank_is_named_on_all_ranks(store, ranks, missing):
    config = PluginConfig(reducers=("127.0.0.1:1",), timeout_s=0.2)
    for error in live(store, [config] * 3, ranks=ranks).values():
        assert isinstance(error, WorkersMissing)
        text = f"{missing} did not join within 0.2 s (timeout_s): check that all ranks have started"
        assert text in str(error)


def test_missing_ranks_are_logged_after_a_while_and_then_less_often(store, caplog):
    config = PluginConfig(reducers=("127.0.0.1:1",), timeout_s=1.2, stall_warn_s=0.2)
    live(store, [config] * 12, ranks=[0])
    texts = [record.getMessage() for record in caplog.records]
    assert texts[0] == (
        "waiting for ranks 1, 2, 3, 4, 5, 6, 7, 8, 3 more to issue its first collective; giving up in 1 s; "
        "check that all ranks have started, have the hook registered, and issue the same collectives"
    )
    assert 2 <= len(texts) <= 3


def test_a_late_rank_is_waited_for_beyond_the_join_timeout(store):
    config = PluginConfig(reducers=("127.0.0.1:1",), timeout_s=20.0, join_timeout_s=0.1)
    one, late = (process(config, store, 2) for _ in range(2))
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(one.agree, config, 0, 2)
        with pytest.raises(TimeoutError):
            first.result(0.5)
        assert threads.submit(late.agree, config, 1, 2).result().job == first.result().job


def test_rank_0_resolves_names_and_its_list_is_used(store, monkeypatch, caplog):
    answers = {
        "both": Resolved(("10.0.0.1:1", "10.0.0.2:1"), {"dns:both:1": ("10.0.0.1:1", "10.0.0.2:1")}),
        "one": Resolved(("10.0.0.1:1",), {}),
    }
    monkeypatch.setattr(meeting_point, "resolve", lambda wanted, *_: answers[wanted[0].split(":")[1]])
    first, second = (PluginConfig(reducers=(f"dns:{name}:1",), timeout_s=5.0) for name in ("both", "one"))
    points = live(store, [first, second, PluginConfig(timeout_s=5.0)])
    assert {point.addresses for point in points.values()} == {("10.0.0.1:1", "10.0.0.2:1")}
    assert [point.sources for point in points.values()] == [answers["both"].sources] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "rank 1 has different reducers (dns:one:1) than rank 0 (dns:both:1), whose settings count"
    ]


def test_an_error_of_rank_0_while_it_decides_reaches_all_ranks(store, monkeypatch):
    def unreachable(wanted, timeout_s, warn_s):
        raise ReducerUnavailable("no such name")

    monkeypatch.setattr(meeting_point, "resolve", unreachable)
    points = live(store, [REDUCERS] * 3)
    assert [(type(error), str(error)) for error in points.values()] == [
        (ReducerUnavailable, "no such name")
    ] * 3


def test_states_of_several_jobs_may_meet_in_a_different_order_on_each_rank(store):
    def config(job):
        return PluginConfig(reducers=("127.0.0.1:1",), job=job, timeout_s=5.0)

    processes = [PrefixStore("", store) for _ in range(2)]
    with ThreadPoolExecutor(4) as threads:
        tasks = [
            (rank, job, StoreRendezvous(config(job), processes[rank], 2))
            for rank, order in enumerate((("a", "b"), ("b", "a")))
            for job in order
        ]
        agreed = [(job, threads.submit(ours.agree, config(job), rank, 2)) for rank, job, ours in tasks]
        assert all(future.result().job == job for job, future in agreed)


def test_without_reducers_rank_0_starts_one_for_all(store, host):
    points = live(store, [PluginConfig(job="mine")] * 3)
    assert {point.job for point in points.values()} == {"mine"}
    assert {point.addresses for point in points.values()} == {("127.0.0.1:2",)}
    assert [point.embedded is not None for _, point in sorted(points.items())] == [True, False, False]
    assert points[1].access.metadata == points[0].access.metadata != ()
    assert host.users == [("mine", "")]
    for point in points.values():
        point.stop()
    assert host.users == []


def test_a_reducer_lent_to_rank_0_is_given_back_if_it_cannot_tell_the_others(host, monkeypatch):
    def broadcast(*_):
        raise RuntimeError("the store is gone")

    monkeypatch.setattr(roll_call.RollCall, "gather", lambda *_: {})
    monkeypatch.setattr(roll_call.RollCall, "broadcast", broadcast)
    config = PluginConfig(job="mine")
    with pytest.raises(RuntimeError, match="the store is gone"):
        StoreRendezvous(config, HashStore(), 2).agree(config, 0, 2)
    assert host.users == []


def test_a_fallback_is_not_the_reducer_that_the_job_has_lost(host):
    """The fallback is lent for the same job and group, which one reducer cannot have twice."""
    config = PluginConfig(fallback="embedded")
    rendezvous = StoreRendezvous(config, None, 1, "0 pg 1")
    point = rendezvous.agree(config, 0, 1)
    rendezvous.fall_back(config, 0, 1)
    assert host.users == [(point.job, "0 pg 1")] * 2


@pytest.mark.usefixtures("many_hosts")
def test_a_fallback_must_be_within_reach_of_all(store):
    config = PluginConfig(job="mine", reducers=("127.0.0.1:1",), fallback="embedded", timeout_s=5.0)
    errors = live(store, [config] * 3, ask=StoreRendezvous.fall_back).values()
    assert {type(error) for error in errors} == {ConfigError}
    assert len({str(error) for error in errors}) == 1
    assert all("is on a different host than rank 0" in str(error) for error in errors)


@pytest.mark.usefixtures("host")
def test_a_fallback_may_be_needed_again(store):
    config = PluginConfig(job="mine", reducers=("127.0.0.1:1",), fallback="embedded", timeout_s=5.0)
    by_rank = [process(config, store, 2) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        for _ in range(2):
            futures = [threads.submit(by_rank[rank].fall_back, config, rank, 2) for rank in range(2)]
            assert [future.result().addresses for future in futures] == [("127.0.0.1:2",)] * 2


@pytest.mark.usefixtures("many_hosts")
def test_on_several_hosts_each_starts_a_reducer_for_all(store):
    points = live(store, [PluginConfig(colocated_host="10.0.0.1", timeout_s=5.0)] * 3)
    assert {point.addresses for point in points.values()} == {("127.0.0.1:2",) * 3}
    assert {len(point.own_reducers) for point in points.values()} == {1}
    assert len({point.colocated_access.metadata for point in points.values()}) == 1
    assert points[0].colocated_access.metadata != ()


@pytest.mark.usefixtures("many_hosts")
def test_colocated_reducers_come_after_the_given_ones(store):
    config = PluginConfig(reducers=("r:1",), colocated="auto", colocated_host="10.0.0.1", timeout_s=5.0)
    points = live(store, [config] * 2)
    assert {point.addresses for point in points.values()} == {("r:1", "127.0.0.1:2", "127.0.0.1:2")}
    assert points[1].access.metadata == ()


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("configs", "text"),
    [
        (
            [PluginConfig(colocated="auto", timeout_s=5.0), PluginConfig(timeout_s=5.0)],
            "rank 1 has colocated=None, but rank 0 'auto': use the same on all ranks",
        ),
        (
            [PluginConfig(timeout_s=5.0), REDUCERS],
            "rank 1 has reducers (127.0.0.1:1), but rank 0 has none",
        ),
    ],
)
def test_ranks_that_disagree_get_an_error(store, configs, text):
    errors = live(store, configs).values()
    assert {type(error) for error in errors} == {ConfigError}
    assert all(text in str(error) for error in errors)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (PluginConfig(fallback="embedded"), "fallback='embedded' needs"),
        (PluginConfig(colocated="auto"), "colocated='auto' needs"),
        (REDUCERS, "no job name"),
        (PluginConfig(job="mine"), "no reducers are configured"),
    ],
)
def test_without_a_store_everything_must_be_configured(config, text):
    with pytest.raises(ConfigError, match=text):
        StoreRendezvous(config, None, 2).agree(config, 0, 2)


@pytest.mark.parametrize(("run", "rank", "warns"), [(None, 0, True), (None, 1, False), ("monday", 0, False)])
def test_without_a_store_rank_0_warns_where_nothing_tells_runs_apart(run, rank, warns, caplog):
    config = PluginConfig(job="mine", reducers=("127.0.0.1:1",), run=run, rank=rank, world_size=2)
    StoreRendezvous(config, None, 2).agree(config, rank, 2)
    assert ("another run that is also called 'mine'" in caplog.text) == warns


def test_a_single_rank_needs_no_store(host):
    assert StoreRendezvous(PluginConfig(), None, 1).agree(PluginConfig(), 0, 1).addresses == ("127.0.0.1:2",)


@pytest.mark.parametrize(
    "make",
    [
        HashStore,
        lambda: PrefixStore("group", HashStore()),
        lambda: TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False),
    ],
)
def test_any_store_will_do(make):
    store = make()
    prefix = StorePrefix(store, "prefix")
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(roll_call.answer_call, prefix.open(REDUCERS), 1, "text", REDUCERS)
        call = roll_call.RollCall(prefix.open(REDUCERS))
        assert call.gather(2, REDUCERS) == {1: "text"}
        call.broadcast("broadcast")
        assert other.result() == ("broadcast", call.nonce)


def test_without_a_store_a_rank_reports_which_reducers_it_was_given():
    config = PluginConfig(reducers=("127.0.0.2:1", "127.0.0.1:1"), job="night", run="today")
    point = StoreRendezvous(config, None, 2).agree(config, 1, 2)
    assert point.named is not None
    assert point.named.text == "127.0.0.1:1, 127.0.0.2:1"
    assert StoreRendezvous(config, None, 1).agree(config, 0, 1).named is None
