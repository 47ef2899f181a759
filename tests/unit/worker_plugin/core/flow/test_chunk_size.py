"""Rank 0's choice of the chunk size: by the rate of the streams, and again when they are paced."""

from types import SimpleNamespace

import pytest
from reduction.limits import CHUNK_BYTES_MAX, DATA_KEY_BYTES
from reduction.model import (
    Collective,
    Configuration,
    DType,
    Hello,
    LinkRate,
    Member,
    Minimum,
    Peer,
    Peers,
    Place,
    Presence,
    ReduceOp,
    Result,
    Start,
    Welcome,
)
from support.scenes.rank_scene import INSTANCE, Scene, incarnation, nonce, send

from worker_plugin.core.actions import Log, PushChunk
from worker_plugin.core.events import Issued
from worker_plugin.core.flow.chunk_size import Grid, GridPhase
from worker_plugin.core.flow.credit import TCP
from worker_plugin.core.leader import REGRID_S

KIB, MIB = 1024, 1 << 20
CHUNK = 64 * KIB
KEY = bytes(DATA_KEY_BYTES)


# ---- within a host ----

HERE, THERE = b"this host.......", b"another host...."


def begun(*hosts, data_port=1, chunk_bytes=None, uses_data_ports=True):
    """Return rank 0's initial chunk size; the hosts are its own, rank 1's and the reducer's."""
    own, other, reducer = map(Place, hosts)
    scene = Scene(chunk_bytes=chunk_bytes, reducers="a", place=own, uses_data_ports=uses_data_ports)
    scene.tick(0.0)
    scene.receive("a", Welcome(incarnation("a"), 32 * MIB, data_port, KEY * (data_port > 0), place=reducer))
    both = [Peer(rank, nonce(rank), "h", Presence.PRESENT, place=at) for rank, at in enumerate((own, other))]
    scene.receive("a", Peers(tuple(both), False))
    scene.tick(1.0)
    return scene.core.epochs.configuration.chunk_bytes


@pytest.mark.parametrize(
    ("hosts", "settings", "chunk_bytes"),
    [
        ((HERE, HERE, HERE), {}, CHUNK_BYTES_MAX),
        ((HERE, HERE, HERE), {"chunk_bytes": 128 * KIB}, 128 * KIB),
        ((HERE, HERE, THERE), {}, CHUNK),
        ((HERE, THERE, HERE), {}, CHUNK),
        ((b"", b"", b""), {}, CHUNK),
        ((HERE, HERE, HERE), {"uses_data_ports": False}, CHUNK),
        ((HERE, HERE, HERE), {"data_port": 0}, CHUNK),
    ],
)
def test_chunks_have_the_largest_size_only_within_one_host(hosts, settings, chunk_bytes):
    assert begun(*hosts, **settings) == chunk_bytes


def test_the_learned_chunk_size_is_kept_until_the_route_changes():
    grid = Grid(None, TCP)
    grid.chunk_bytes = 256 * KIB
    grid.begin(is_within_host=False)
    assert (grid.chunk_bytes, grid.phase) == (256 * KIB, GridPhase.GUESSING)
    grid.begin(is_within_host=True)
    assert (grid.chunk_bytes, grid.phase) == (CHUNK_BYTES_MAX, GridPhase.SETTLED)
    grid.begin(is_within_host=False)
    assert (grid.chunk_bytes, grid.phase) == (TCP.first_chunk_bytes, GridPhase.GUESSING)


# ---- in a communicator ----


def measured(rate=60e6, *, lacking=0, **changes):
    """Return a rank 0 that has reduced 4 MiB over a path of this rate, and the time afterwards.

    Args:
        lacking: number of results that another rank may not have yet.
    """
    fields = {"rank": 0, "reducers": "a", "chunk_bytes": None, "credit_bytes": None}
    scene = Scene(**fields | changes)
    scene.tick(0.0)
    scene.welcome("a", credit=4 * MIB)
    scene.peers("a", "PP")
    scene.start("a")
    return scene, reduce(scene, rate, 0.0, lacking=lacking)


def reduce(scene, rate, now, *, lacking=0):
    """Reduce 4 MiB more over a path of this rate; return the time afterwards."""
    epoch, seq = scene.core.epochs.number, scene.core.window.issued
    pushes = scene.handle(Issued(Collective(ReduceOp.SUM, DType.FLOAT32, MIB, 7)), now)
    while pushes := [action for action in pushes if isinstance(action, PushChunk)]:
        following = []
        for push in pushes:
            now += (push.stop - push.start) / rate
            payload = memoryview(bytes(push.stop - push.start))
            following += scene.receive("a", Result(epoch, seq, push.chunk, seq + 1 - lacking, payload), now)
        pushes = following
    return now


def chosen(actions):
    """Return what is logged about a new grid."""
    return [action.text for action in actions if isinstance(action, Log)]


def test_rank_0_chooses_the_grid_when_it_is_idle():
    scene, now = measured()
    actions = scene.tick(now + 1)
    configuration = Configuration(INSTANCE, 2, 256 * KIB, (Member("a:1", incarnation("a")),))
    assert send("a", Hello(configuration, 1)) in actions
    assert chosen(actions) == ["membership epoch 2 with chunks of 262144 bytes, after measuring"]
    scene.receive("a", Start(2, 1))
    assert not chosen(scene.tick(now + 2)), "nothing was measured since"


def test_the_grid_waits_until_all_ranks_hold_what_was_issued():
    """If one rank lacked a result, all ranks would push it again."""
    scene, now = measured(lacking=1)
    assert not chosen(scene.tick(now))
    scene.receive("a", Minimum(1), now)
    assert chosen(scene.tick(now))
    scene.receive("a", Start(2, 1), now)
    sums = 8  # each is too short for more than one rate
    for _ in range(sums):
        now = reduce(scene, 600e6, now, lacking=1)
    assert not chosen(scene.tick(now)), "the next change waits as well"
    scene.receive("a", Minimum(1 + sums), now)
    assert chosen(scene.tick(now))


def test_a_job_without_pauses_gets_its_grid_a_little_later():
    scene, now = measured(lacking=1)
    until = now + REGRID_S
    while now < until:
        assert not chosen(scene.tick(now))
        now = reduce(scene, 60e6, now, lacking=1)
    assert chosen(scene.tick(now))


@pytest.mark.parametrize("changes", [{"chunk_bytes": CHUNK}, {"credit_bytes": MIB, "chunk_bytes": CHUNK}])
def test_explicit_sizes_stay(changes):
    scene, now = measured(**changes)
    scene.tick(now + 1)
    assert scene.core.epochs.number == 1


@pytest.mark.parametrize(("granted", "chunk"), [(64 * KIB, 64 * KIB), (5000, 4096), (1 << 20, 1 << 20)])
def test_chunks_fit_into_the_credit_that_another_rank_has_asked_for(granted, chunk):
    """The first Join decides the credit of a job, and that rank may have asked for less than rank 0 would."""
    scene = Scene(chunk_bytes=MIB, credit_bytes=None)
    scene.tick(0.0)
    scene.welcome("a", credit=granted)
    scene.welcome("b", credit=4 * MIB)
    scene.peers("a", "PP")
    (first, _) = [action.frame.configuration for action in scene.peers("b", "PP") if hasattr(action, "frame")]
    assert first.chunk_bytes == chunk


def test_a_choice_that_does_not_fit_changes_nothing():
    scene, now = measured()
    scene.core.roster[0].credit_bytes = scene.core.epochs.configuration.chunk_bytes
    scene.tick(now + 1)
    assert scene.core.epochs.number == 1
    assert scene.core.leader.grid.chunk_bytes == 256 * KIB


def test_other_ranks_choose_nothing():
    assert Scene(rank=1, chunk_bytes=None, credit_bytes=None).core.leader is None


# ---- by rate, and for paced streams ----


def lane(rate, weight=1, *, is_paced=False, count=8):
    """Return the part of a stream's lane that a grid looks at."""
    return SimpleNamespace(weight=weight, credit=SimpleNamespace(rates=[rate] * count, is_paced=is_paced))


UNMEASURED = SimpleNamespace(weight=1, credit=None)


@pytest.mark.parametrize(
    ("looks", "kib", "phase"),
    [
        # Larger chunks may show that the links can do more.
        ([(True, lane(60e6)), (True, lane(600e6)), (False, lane(600e6))], 1024, GridPhase.WATCHING),
        # One large chunk at a time reaches a low rate, which says nothing about small ones.
        ([(True, lane(60e6)), (False, lane(1e6))], 256, GridPhase.WATCHING),
        ([(True, lane(5e6)), (False, lane(1e6))], 32, GridPhase.WATCHING),
        ([(False, lane(15e6))], 64, GridPhase.WATCHING),
        ([(False, lane(60e6, count=2))], 64, GridPhase.GUESSING),
        # The lanes with the smallest shares decide.
        ([(True, lane(60e6), lane(60e6))], 256, GridPhase.GUESSING),
        ([(True, lane(60e6, 9), lane(2.5e6))], 32, GridPhase.WATCHING),
        ([(True, lane(60e6, 9), lane(2.5e6), UNMEASURED)], 32, GridPhase.WATCHING),
        # The rate alone is no longer a reason, and measurements under packet loss are too low. From then on, chunks
        # of paced streams grow and never shrink.
        (
            [
                (True, lane(10e6)),
                (False, lane(20e6)),
                (False, lane(3e6, is_paced=True)),
                (True, lane(10e6, is_paced=True)),
                (False, lane(0, is_paced=True, count=0)),
                (False, lane(2e6, is_paced=True)),
            ],
            64,
            GridPhase.WATCHING,
        ),
        ([(False, lane(10e6, is_paced=True), lane(10e6))], 64, GridPhase.WATCHING),
        (
            [(True, lane(60e6)), (False, lane(60e6)), (False, lane(1e6, is_paced=True))],
            256,
            GridPhase.WATCHING,
        ),
    ],
)
def test_a_grid_adapts_to_what_it_measures(looks, kib, phase):
    grid = Grid(None, TCP)
    assert [grid.look(lanes) for _, *lanes in looks] == [has_changed for has_changed, *_ in looks]
    assert (grid.chunk_bytes, grid.phase) == (kib * KIB, phase)


def test_a_communicator_guesses_again_when_its_streams_are_paced():
    scene, now = measured(rate=10e6)
    assert chosen(scene.tick(now)) == ["membership epoch 2 with chunks of 32768 bytes, after measuring"]
    scene.receive("a", Start(2, 1), now)
    now = reduce(scene, 10e6, now)
    assert not chosen(scene.tick(now))
    scene.receive("a", LinkRate.of(10e6), now)
    now = reduce(scene, 10e6, now)
    assert chosen(scene.tick(now)) == ["membership epoch 3 with chunks of 65536 bytes, after measuring"]
