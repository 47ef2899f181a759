"""From settings, Vertex AI's CLUSTER_SPEC and DNS names to a list of HOST:PORT."""

import json
import socket
from types import SimpleNamespace

import pytest
from reduction.errors import ConfigError, ReducerUnavailable

from worker_plugin.config import PluginConfig
from worker_plugin.discovery import addresses
from worker_plugin.discovery.addresses import DNS_RETRY_S, configured, dns_names_in, look_up, resolve

NOTHING = PluginConfig()


def cluster_spec(**pools):
    return {"CLUSTER_SPEC": json.dumps({"cluster": pools, "task": {"type": "workerpool0", "index": 0}})}


def answers(*hosts):
    """Return what getaddrinfo says about a name with these addresses."""
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 50051)) for host in hosts]


@pytest.fixture
def dns(monkeypatch):
    """A name server that answers one entry of `script` per question, and a clock that only sleep moves."""
    script, asked, clock = [], [], [100.0]

    def getaddrinfo(name, port, type):
        asked.append((clock[0], name, port))
        answer = script.pop(0) if script else socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(seconds):
        clock[0] += seconds

    monkeypatch.setattr(addresses.socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(addresses, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    return SimpleNamespace(script=script, asked=asked)


def test_settings_win_over_the_platform():
    config = PluginConfig(reducers=("a:1",))
    assert configured(config, cluster_spec(workerpool2=["b:2"])) == ("a:1",)


def test_nobody_says_anything():
    assert configured(NOTHING, {}) is None
    assert configured(NOTHING, {"CLUSTER_SPEC": ""}) is None


def test_vertex_ai_names_the_reducers_in_the_third_worker_pool():
    spec = cluster_spec(workerpool0=["chief:1"], workerpool1=["w:1"], workerpool2=["r-0:2222", "r-1:2222"])
    assert configured(NOTHING, spec) == ("r-0:2222", "r-1:2222")


@pytest.mark.parametrize("spec", [cluster_spec(workerpool0=["chief:1"]), cluster_spec(workerpool2=[])])
def test_vertex_ai_without_a_third_pool_says_nothing(spec):
    assert configured(NOTHING, spec) is None


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"cluster": 3}', '{"cluster": null}', '"text"'])
def test_a_cluster_spec_of_another_shape_is_an_error_that_shows_it(text):
    with pytest.raises(ConfigError) as caught:
        configured(NOTHING, {"CLUSTER_SPEC": text})
    assert str(caught.value).startswith("CLUSTER_SPEC is not what Vertex AI writes")
    assert str(caught.value).endswith(text)


@pytest.mark.parametrize("pool", ["r:1", {"0": "r:1"}, [1], ["r:1", None]])
def test_a_third_pool_that_is_no_list_of_addresses(pool):
    with pytest.raises(ConfigError, match="workerpool2 is not a list of addresses"):
        configured(NOTHING, cluster_spec(workerpool2=pool))


@pytest.mark.parametrize("pool", [["r"], ["r:1", "r:1"]])
def test_addresses_of_the_platform_are_checked_too(pool):
    with pytest.raises(ConfigError, match=r"HOST:PORT|twice"):
        configured(NOTHING, cluster_spec(workerpool2=pool))


def waits(seconds, **changes):
    return PluginConfig(join_timeout_s=seconds, **changes)


def test_plain_addresses_need_no_name_server(dns):
    assert resolve(("b:2", "a:1", "b:2"), waits(1.0)) == (("b:2", "a:1"), ())
    assert dns.asked == []


def test_ranges_are_addresses_too(dns):
    listed = ("r-{0..2}.svc:50051", "r-1.svc:50051", "other:1")
    assert resolve(listed, waits(1.0))[0] == (
        "r-0.svc:50051",
        "r-1.svc:50051",
        "r-2.svc:50051",
        "other:1",
    )


def test_a_dns_name_becomes_all_its_addresses_sorted_without_repetition(dns):
    dns.script.append(answers("10.0.0.7", "10.0.0.5", "10.0.0.7", "fd00::1"))
    everything = ("10.0.0.5:50051", "10.0.0.7:50051", "[fd00::1]:50051")
    assert resolve(("dns:reducers.svc:50051",), waits(1.0)) == (everything, everything)
    assert dns.asked == [(100.0, "reducers.svc", 50051)]


def test_names_and_addresses_may_be_mixed_and_overlap(dns):
    dns.script += [answers("10.0.0.5", "10.0.0.6"), answers("10.0.0.6")]
    listed = ("10.0.0.6:50051", "dns:all:50051", "dns:some:50051", "c:3")
    assert resolve(listed, waits(1.0)) == (
        ("10.0.0.6:50051", "10.0.0.5:50051", "c:3"),
        ("10.0.0.5:50051", "10.0.0.6:50051"),
    )


def test_a_name_that_appears_later_is_waited_for(dns):
    dns.script += [socket.gaierror(socket.EAI_AGAIN, "later")] * 2 + [answers("10.0.0.5")]
    assert resolve(("dns:reducers:50051",), waits(60.0))[0] == ("10.0.0.5:50051",)
    assert [when - 100.0 for when, _, _ in dns.asked] == [0.0, DNS_RETRY_S, 2 * DNS_RETRY_S]


def test_a_name_is_waited_for_until_it_has_as_many_addresses_as_are_wanted(dns, caplog):
    dns.script += [answers("10.0.0.5")] * 12 + [answers("10.0.0.5", "10.0.0.6", "10.0.0.7")]
    found, _ = resolve(("dns:reducers:50051?count=3",), waits(60.0, stall_warn_s=5.0))
    assert found == ("10.0.0.5:50051", "10.0.0.6:50051", "10.0.0.7:50051")
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for dns:reducers:50051?count=3: 'reducers' has 1 of 3 addresses: too few addresses; "
        "giving up in 55 s"
    ]


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ([], "dns:nowhere:50051?count=2: 'nowhere' has 0 of 2 addresses after 1.2 s: [Errno -2] Name or"),
        (
            [answers("10.0.0.5")] * 9,
            "dns:nowhere:50051?count=2: 'nowhere' has 1 of 2 addresses after 1.2 s: too",
        ),
    ],
)
def test_a_name_that_never_has_enough_is_named_with_the_time_waited(dns, script, text):
    dns.script += script
    with pytest.raises(ReducerUnavailable) as caught:
        resolve(("dns:nowhere:50051?count=2",), waits(1.2))
    assert str(caught.value).startswith(text)
    assert dns.asked[-1][0] == pytest.approx(100.0 + 3 * DNS_RETRY_S)


def test_what_may_change_later_are_names():
    assert dns_names_in(("a:1", "dns:b:2", "c-{0..1}:3", "dns:d:4?count=2")) == ("dns:b:2", "dns:d:4?count=2")


def loop_of(*script):
    """Return an event loop whose name server gives these answers, for `look_up`."""
    questions = iter(script)

    async def getaddrinfo(name, port, type):
        answer = next(questions)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return SimpleNamespace(getaddrinfo=getaddrinfo)


def looked_up(monkeypatch, names, *script):
    monkeypatch.setattr(addresses.asyncio, "get_running_loop", lambda: loop_of(*script))
    coroutine = look_up(names)
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something else")


def test_looking_up_again_needs_an_answer_for_every_name(monkeypatch):
    names = ("dns:a:1", "dns:b:2?count=9")
    found = looked_up(monkeypatch, names, answers("10.0.0.2", "10.0.0.1"), answers("fd00::1"))
    assert found == ("10.0.0.1:1", "10.0.0.2:1", "[fd00::1]:2")
    with pytest.raises(OSError, match="no such name"):
        looked_up(monkeypatch, names, answers("10.0.0.2"), socket.gaierror(-2, "no such name"))
