"""Thousands of random schedules against a reducer's core; `reducer_world` asserts the invariants."""

from hypothesis import given, settings
from hypothesis import strategies as st
from property.honest_rank import OTHER, US
from property.reducer_world import World
from reduction.errors import ReducerDraining
from reduction.model import Member

ALONE = (Member("a:1", US),)
SHARED = (Member("b:1", OTHER, 2), Member("a:1", US))
#: float32 elements: empty, one chunk, chunks on both grids.
NUMELS = st.lists(st.sampled_from([0, 1, 256, 300, 700, 1100]), min_size=1, max_size=12)
JOBS = st.lists(st.tuples(st.integers(1, 4), NUMELS), min_size=1, max_size=3)

#: (weight out of 256, function that returns the steps of this kind that are possible now)
KINDS = [
    (69, lambda world: [(world.deliver_up, stream) for stream in world.streams if stream.up]),
    (60, lambda world: [(world.deliver_down, stream) for stream in world.streams if stream.down]),
    (50, lambda world: [(type(rank).push, rank) for rank in world.ranks if rank.next_push()]),
    (40, lambda world: [(type(rank).connect, rank) for rank in absent(world)]),
    (16, lambda world: [(type(rank).issue, rank) for rank in world.ranks if may_issue(rank)]),
    (9, lambda world: [(configure, rank) for rank in world.ranks if must_configure(rank)]),
    (1, lambda world: [(configure, rank) for rank in world.ranks if rank.may_configure()]),
    (4, lambda world: [(type(rank).acknowledge, rank) for rank in world.ranks if rank.is_welcome]),
    (2, lambda world: [(world.tick,)]),
    (2, lambda world: [(cut, rank) for rank in world.ranks if rank.stream and not rank.has_left]),
    (2, lambda world: [(cut_tail, rank) for rank in world.ranks if rank.stream and not rank.has_left]),
    (1, lambda world: [(type(rank).leave, rank) for rank in world.ranks if rank.may_leave()]),
]
BY_BYTE = [possible for weight, possible in KINDS for _ in range(weight)]
assert len(BY_BYTE) == 256


def absent(world):
    return [rank for rank in world.ranks if rank.stream is None and not rank.has_left]


def may_issue(rank):
    return rank.issued < len(rank.game.collectives)


def must_configure(rank):
    return rank.may_configure() and (rank.is_broken or not rank.epoch)


def cut(rank):
    rank.cut(with_tail=False)


def cut_tail(rank):
    rank.cut(with_tail=True)


def configure(rank):
    """Create an epoch, with other members every second epoch and another grid every third."""
    rank.configure((ALONE, SHARED)[rank.epoch // 2 % 2], (1024, 2048)[rank.epoch // 3 % 2])


def play(world, schedule):
    """Take one step per pair of bytes: the first selects the kind, the second one of its possible steps."""
    for kind, which in zip(schedule[::2], schedule[1::2], strict=False):
        steps = BY_BYTE[kind % len(BY_BYTE)](world)
        if steps:
            step, *subject = steps[which % len(steps)]
            step(*subject)


def settle(world):
    """Deliver all frames in flight until nothing moves."""
    while busy := [stream for stream in world.streams if stream.up or stream.down]:
        for stream in busy:
            if stream.up:
                world.deliver_up(stream)
            if stream.down:
                world.deliver_down(stream)


def finish(world):
    """Bring everything to its end: all ranks connect, recover, and push the rest."""
    settle(world)
    for _ in range(100):
        for rank in absent(world):
            if not rank.game.refusals:
                rank.connect()
        settle(world)
        for rank in world.ranks:
            while may_issue(rank):
                rank.issue()
            if must_configure(rank):
                configure(rank)
                settle(world)
            if rank.next_push():
                rank.push()
        settle(world)
        if all(game.is_everywhere_done or game.refusals for game in world.games):
            return
    raise AssertionError("a job does not come to its end")


def part(world):
    """Report all results as held, and let the ranks send Goodbye."""
    for rank in world.ranks:
        if rank.is_welcome and not rank.has_left:
            rank.acknowledge()
    settle(world)
    for _ in range(3):
        world.tick()
    settle(world)
    for rank in world.ranks:
        if rank.may_leave():
            rank.leave()
            settle(world)
    for rank in world.ranks:
        # Its close_timeout_s has expired: while it was away, the others left and the reducer forgot the job.
        if rank.is_welcome and not rank.has_left and not rank.game.refusals:
            assert any(other.has_left for other in rank.game.ranks)
            rank.leave()
            settle(world)


def check_the_end(world):
    """Check that all ranks have all results and have left, and that nothing of a job remains."""
    for game in world.games:
        assert not game.refusals, "an honest rank was refused"
        assert all(rank.held == len(game.collectives) and rank.has_left for rank in game.ranks)
    assert (world.jobs.by_name, world.jobs.streams, world.sums) == ({}, {}, {})


@settings(max_examples=2000)
@given(JOBS, st.binary(min_size=400, max_size=2000))
def test_every_schedule_yields_the_right_sums(jobs, schedule):
    world = World(*jobs)
    play(world, schedule)
    finish(world)
    part(world)
    check_the_end(world)


@settings(max_examples=500)
@given(JOBS, st.binary(min_size=200, max_size=600), st.binary(max_size=600))
def test_draining_lets_live_jobs_continue(jobs, before, after):
    world = World(*jobs)
    play(world, before)
    world.drain()
    play(world, after)
    finish(world)
    part(world)
    for game in world.games:
        # A job may only be refused if it was new, or if the reducer forgot it because all its streams had broken.
        assert {abort.code for abort in game.refusals} <= {ReducerDraining.code}
    if not any(game.refusals for game in world.games):
        check_the_end(world)


@settings(max_examples=200)
@given(st.integers(1, 4), NUMELS, st.binary(min_size=400, max_size=2000))
def test_a_job_that_loses_its_last_streams_leaves_nothing_behind(world_size, numels, schedule):
    world = World((world_size, numels), (world_size, numels))
    play(world, schedule)
    for rank in world.ranks:
        if rank.stream:
            rank.cut(with_tail=True)
    settle(world)
    assert (world.jobs.by_name, world.jobs.streams, world.sums) == ({}, {}, {})
    assert world.jobs.memory_reserved_bytes == 0
