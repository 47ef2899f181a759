"""Faults of a world: each is a time, a kind and three numbers, so that a list of them can be shortened."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from reduction import wire
from reduction.errors import MalformedFrame
from reduction.model import Join
from simulation import faults_of_reducers
from simulation.network import Process
from simulation.reducer import SimReducer

if TYPE_CHECKING:
    from simulation.world import World

#: Duration of a clog, in seconds.
CLOG_S = 3.0


class Fault(NamedTuple):
    """A fault. The meaning of its numbers depends on its kind; targets are indices modulo the number of candidates."""

    at: float
    kind: str
    first: int
    second: int
    #: Between 0 and 1: duration or strength.
    much: float


def plan(random: Random, count: int, seconds: float, kinds: list[str]) -> list[Fault]:
    """Return faults of some kinds, with random weights, so that runs differ in character."""
    chosen = random.sample(kinds, random.randint(1, len(kinds)))
    weights = [random.expovariate(1) for _ in chosen]
    drawn = random.choices(chosen, weights, k=count)
    times = sorted(random.uniform(0, seconds) for _ in drawn)
    numbers = (random.randrange(1 << 16) for _ in range(2 * count))
    return [
        Fault(at, kind, next(numbers), next(numbers), random.random())
        for at, kind in zip(times, drawn, strict=True)
    ]


def strike(world: World, fault: Fault) -> None:
    """Make a fault happen."""
    KINDS[fault.kind](world, fault)


# ---- ranks ----


def _kill_rank(world: World, fault: Fault) -> None:
    job = world.jobs[fault.first % len(world.jobs)]
    job.kill(fault.second % job.shape.ranks)


def _kill_half(world: World, fault: Fault) -> None:
    job = world.jobs[fault.first % len(world.jobs)]
    for rank in range(fault.second % 2, job.shape.ranks, 2):
        job.kill(rank)


def _stray(world: World, fault: Fault) -> None:
    job = world.jobs[fault.first % len(world.jobs)]
    job.stray(fault.second % job.shape.ranks)


def _quit(world: World, fault: Fault) -> None:
    job = world.jobs[fault.first % len(world.jobs)]
    job.quit(fault.second % job.shape.ranks)


def _impostor(world: World, fault: Fault) -> None:
    """Let another process join as a rank of a job."""
    job = world.jobs[fault.first % len(world.jobs)]
    member = job.member(fault.second % job.shape.ranks)
    if member is None:
        return
    world.note("impostor", [member.host], 0.0)
    who = member.identity
    reducers = world.reducers
    end = world.network.connect(world.stranger, reducers[int(fault.much * len(reducers))].address)
    end.send(
        Join(
            job=who.job,
            instance=b"",
            rank=who.rank,
            world_size=who.world_size,
            nonce=b"another process.",
            host="stranger",
            minimum=0,
            credit_bytes=1 << 20,
            local_size=who.local_size,
            run=who.run,
        )
    )
    world.network.clock.at(world.network.clock.now + 2 * fault.much, end.close)


def _twice(world: World, fault: Fault) -> None:
    """Send a rank's Join a second time, as if a proxy had retried; nobody reads the answer."""
    job = world.jobs[fault.first % len(world.jobs)]
    member = job.member(fault.second % job.shape.ranks)
    if member is None or member.is_over or not member.links:
        return
    ends = list(member.links.values())
    reducer = ends[int(fault.much * len(ends))].peer.process
    if isinstance(reducer, SimReducer) and member.join is not None:
        world.note("dial twice", [member.host, reducer.host], 0.0)
        end = world.network.connect(Process(world.network, member.host), reducer.address)
        end.send(member.join)
        world.network.clock.at(world.network.clock.now + 2 * fault.much, end.close)


# ---- hosts and paths ----


def _freeze(world: World, fault: Fault) -> None:
    process = world.process(fault.first)
    seconds = 15 * fault.much**3
    world.note("freeze", [process.host], seconds)
    process.freeze(seconds)


def _cut(world: World, fault: Fault) -> None:
    one, other = world.path(fault)
    seconds = 15 * fault.much**3
    world.note("cut", [one, other], seconds)
    world.network.cut(one, other, seconds)
    world.network.cut(other, one, seconds)


def _half_cut(world: World, fault: Fault) -> None:
    one, other = world.path(fault)
    seconds = 15 * fault.much**3
    world.note("half cut", [one, other], seconds)
    world.network.cut(*((one, other) if fault.first % 2 else (other, one)), seconds)


def _isolate(world: World, fault: Fault) -> None:
    host, seconds = world.process(fault.first).host, 15 * fault.much**3
    world.note("isolate", [host], seconds)
    world.isolate(host, seconds)


def _slow(world: World, fault: Fault) -> None:
    one, other = world.path(fault)
    extra_s, seconds = 0.5 * fault.much**2, 5.0
    world.note("slow", [one, other], seconds)
    world.network.slow(one, other, extra_s, seconds)
    world.network.slow(other, one, extra_s, seconds)


def _lossy(world: World, fault: Fault) -> None:
    """Let a path lose packets; senders that see the losses slow down."""
    one, other = world.path(fault)
    world.note("lossy", [one, other], 5.0)
    world.network.lose_packets(one, other, 0.1 * fault.much**2, 5.0)
    world.network.lose_packets(other, one, 0.1 * fault.much**2, 5.0)


def _clog(world: World, fault: Fault) -> None:
    """Stop paths one after another, and heal them in another order; none stops for long, and clogs do not overlap."""
    now = world.network.clock.now
    if now < world.clogged_until:
        return
    world.clogged_until = now + CLOG_S
    hosts = sorted({process.host for process in world.processes()})
    random = Random(fault.first)
    world.note("clog", hosts, CLOG_S)
    for host in random.sample(hosts, min(3, len(hosts))):
        at = now + random.uniform(0, 2)
        world.network.clock.at(at, lambda host=host: world.isolate(host, 0.6 * fault.much))


def _reset(world: World, fault: Fault) -> None:
    """Break a connection without ending either process."""
    ends = [end for end in world.network.ends.values() if end.is_accepted]
    if ends:
        end = ends[fault.first % len(ends)]
        world.note("reset", [end.process.host, end.peer.process.host], 0.0)
        end.break_both()


def _damage(world: World, fault: Fault) -> None:
    """Flip a bit of the next payload on a connection of a job with checksums; others would not notice."""
    ends = [
        end
        for end in world.network.ends.values()
        if end.is_accepted and world.has_checksums(end.process, end.peer.process)
    ]
    if not ends:
        return
    end = ends[fault.first % len(ends)]
    is_worker_frame = end.process in world.reducers

    def damaged(frame: object) -> object:
        to_wire = wire.worker_frame_to_wire if is_worker_frame else wire.reducer_frame_to_wire
        from_wire = wire.worker_frame_from_wire if is_worker_frame else wire.reducer_frame_from_wire
        if world.is_calm:
            return frame
        if not hasattr(frame, "payload"):  # only frames with a payload have checksums, so wait for one
            end.damage = damaged
            return frame
        data = bytearray(to_wire(frame))
        world.note("damage", [end.process.host, end.peer.process.host], 0.0)
        bit = int(fault.much * len(data) * 8)
        data[bit // 8] ^= 1 << (bit % 8)
        try:
            other = from_wire(bytes(data))
        except MalformedFrame as error:
            return error
        # On the TCP plane the checksum also covers the kind of a frame; over gRPC this would end the job.
        return other if type(other) is type(frame) else MalformedFrame("another kind of frame")

    end.damage = damaged


KINDS: dict[str, Callable[[World, Fault], None]] = {
    **faults_of_reducers.KINDS,
    "kill rank": _kill_rank,
    "kill half": _kill_half,
    "stray": _stray,
    "quit": _quit,
    "impostor": _impostor,
    "dial twice": _twice,
    "freeze": _freeze,
    "cut": _cut,
    "half cut": _half_cut,
    "isolate": _isolate,
    "slow": _slow,
    "lossy": _lossy,
    "clog": _clog,
    "reset": _reset,
    "damage": _damage,
}
