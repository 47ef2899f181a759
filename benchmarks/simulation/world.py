"""All-reduces over simulated links, with the cores of ranks and reducers making the decisions as in real processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from reduction.limits import CHUNK_BYTES_MAX, ID_BYTES
from reduction.model import (
    Collective,
    DType,
    Place,
    Push,
    ReduceOp,
    ReducerFrame,
    Result,
    WorkerFrame,
)
from reduction.pacing import Sent
from reduction.shares import Machine, ring_time, split
from reduction.transports.tcp.messages import HEADER_BYTES

from benchmarks.lab.traffic import Link
from benchmarks.simulation.network import Bucket, Clock, Connection, Host
from reducer.core import actions as reducer_actions
from reducer.core import events as reducer_events
from reducer.core.jobs import Jobs
from reducer.engine import TICK_S
from reducer.planner.formulas import OVERHEAD
from worker_plugin.core import actions as rank_actions
from worker_plugin.core import events as rank_events
from worker_plugin.core.flow import credit
from worker_plugin.core.identity import Identity
from worker_plugin.core.rank import RankCore

#: Bytes of a control frame.
CONTROL_BYTES = 200
#: CPU seconds per message and per byte at each end, with the plain Python build.
MESSAGE_CPU_S, BYTE_CPU_S = 60e-6, 0.45e-9
_ZEROS = memoryview(bytes(CHUNK_BYTES_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The simulated setting."""

    workers: int
    #: Reducers on separate hosts.
    reducers: int
    #: Link of every host except the slower ones.
    link: Link
    #: Whether the workers' hosts also have reducers.
    colocated: bool = False
    #: Fractions of the rate of single hosts, by name: w0, w1, ... and r0, r1, ... If there are any, all hosts
    #: report their rates.
    slower: tuple[tuple[str, float], ...] = ()
    #: Number of cores that all processes share, as in the lab; 0 gives every process its own.
    cores: int = 0
    #: CPU time of messages as a fraction of plain Python's.
    cpu: float = 1.0

    def link_of(self, host: str) -> Link:
        """Return the link of a host."""
        return replace(self.link, rate_mbit=self.link.rate_mbit * dict(self.slower).get(host, 1.0))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a simulation."""

    #: Seconds of each all-reduce, in order.
    times_s: tuple[float, ...]
    chunk_bytes: int
    #: The members' weights.
    weights: tuple[int, ...]
    #: Fraction of the segments that full queues have dropped.
    lost: float


def ideal(setting: Setting) -> tuple[float, float]:
    """Return the seconds per byte that the links allow with the best split, and with a ring."""

    def rate(host: str) -> float:
        return setting.link_of(host).rate_mbit * 1e6 / 8 / OVERHEAD

    near, far = range(setting.workers), range(setting.reducers)
    machines = [Machine(1, int(setting.colocated), rate(f"w{index}")) for index in near]
    machines += [Machine(0, 1, rate(f"r{index}")) for index in far]
    return split(machines).seconds_per_byte, ring_time(machines)


class _Stream:
    """A stream with both of its ends and directions."""

    def __init__(self, rank: _Rank, link: int, reducer: _Reducer, number: int) -> None:
        self.rank, self.link, self.reducer, self.number = rank, link, reducer, number
        clock, delay_s = rank.world.clock, rank.world.setting.link.delay_ms / 1e3
        self.pushes = Connection(clock, rank.host, reducer.host, delay_s)
        self.results = Connection(clock, reducer.host, rank.host, delay_s)


class _Cores:
    """The cores that all processes share. Waiting processes take turns, with one message each."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[_Process] = deque()

    def take(self, process: _Process) -> None:
        """Let a process run as soon as a core is free."""
        if self._free:
            self._free -= 1
            process.run()
        else:
            self._waiting.append(process)

    def give_back(self) -> None:
        """Let the next process run."""
        if self._waiting:
            self._waiting.popleft().run()
        else:
            self._free += 1


class _Process:
    """A process on a host, which handles one message after the other."""

    def __init__(self, world: World, host: Host, name: str) -> None:
        self.world, self.host, self.name = world, host, name
        #: Pending work: CPU seconds, and a function to call afterwards.
        self._todo: deque[tuple[float, Callable[[], None]]] = deque()

    def work(self, nbytes: int, then: Callable[[], None]) -> None:
        """Handle a message of this many bytes after all pending ones, and then call `then`."""
        self._todo.append((self.world.setting.cpu * (MESSAGE_CPU_S + nbytes * BYTE_CPU_S), then))
        if len(self._todo) == 1:
            self.world.cores.take(self)

    def run(self) -> None:
        """Handle a message, now that a core is available."""
        self.world.clock.at(self.world.clock.now + self._todo[0][0], self._on_done)

    def _on_done(self) -> None:
        self.world.cores.give_back()
        _, then = self._todo.popleft()
        if self._todo:
            self.world.cores.take(self)
        then()


class _Reducer(_Process):
    def __init__(self, world: World, host: Host, place: Place, number: int) -> None:
        super().__init__(world, host, f"reducer {number}")
        incarnation = (1 << 64 | number).to_bytes(16)
        self.core = Jobs(incarnation=incarnation, memory_limit_bytes=1 << 62, place=place)
        self.streams: dict[int, _Stream] = {}
        self._layout_bytes: dict[reducer_actions.SlotKey, int] = {}

    def take(self, stream: int, frame: WorkerFrame) -> None:
        self._perform(self.core.handle(reducer_events.Received(stream, frame), self.world.clock.now))

    def tick(self) -> None:
        sent = {number: self.streams[number].results.sent for number in self.core.sending()}
        self._perform(self.core.handle(reducer_events.Tick(sent), self.world.clock.now))

    def _perform(self, actions: Sequence[reducer_actions.Action]) -> None:
        for action in actions:
            match action:
                case reducer_actions.Send(stream, frame):
                    self._send(stream, frame, CONTROL_BYTES)
                case reducer_actions.Fold(key, _, _, layout_bytes):
                    self._layout_bytes[key] = layout_bytes
                case reducer_actions.Publish():
                    payload = _ZEROS[: self._layout_bytes.pop(action.slot)]
                    key = action.slot
                    result = Result(action.epoch, key.seq, key.chunk, action.minimum, payload)
                    for stream in action.streams:
                        self._send(stream, result, payload.nbytes + HEADER_BYTES)
                case reducer_actions.Throttle(number, bytes_per_s):
                    self.streams[number].results.pace = bytes_per_s
                case reducer_actions.Close() | reducer_actions.Warn():
                    raise AssertionError(action)

    def _send(self, number: int, frame: ReducerFrame, nbytes: int) -> None:
        stream = self.streams[number]
        arrive = partial(stream.rank.arrive, stream, frame, nbytes)
        self.work(nbytes, partial(stream.results.send, nbytes, arrive))


class _Rank(_Process):
    def __init__(self, world: World, host: Host, identity: Identity) -> None:
        super().__init__(world, host, f"rank {identity.rank}")
        self.core = RankCore(identity, [f"{reducer.name}:1" for reducer in world.reducers])
        self._streams: dict[int, _Stream] = {}
        self.delivered = 0

    def issue(self, collective: Collective) -> None:
        self.handle(rank_events.Issued(collective))

    def tick(self) -> None:
        sent: dict[int, Sent] = {}
        if self.core.wants_sent:
            sent = {link: stream.pushes.sent for link, stream in self._streams.items()}
        self.handle(rank_events.Tick(sent))

    def arrive(self, stream: _Stream, frame: ReducerFrame, nbytes: int) -> None:
        event = rank_events.Received(stream.link, frame)
        self.work(nbytes, partial(self.handle, event))

    def handle(self, event: rank_events.Event) -> None:
        for action in self.core.handle(event, self.world.clock.now):
            match action:
                case rank_actions.Open(link, address, join):
                    reducer = next(each for each in self.world.reducers if f"{each.name}:1" == address)
                    number = len(reducer.streams)
                    self._streams[link] = reducer.streams[number] = _Stream(self, link, reducer, number)
                    self._send(link, join, CONTROL_BYTES)
                case rank_actions.Send(link, frame):
                    self._send(link, frame, CONTROL_BYTES)
                case rank_actions.PushChunk():
                    payload = _ZEROS[: action.stop - action.start]
                    push = Push(
                        action.epoch, action.seq, action.chunk, action.collective, action.held, payload
                    )
                    self._send(action.link, push, payload.nbytes + HEADER_BYTES)
                case rank_actions.Throttle(link, bytes_per_s):
                    self._streams[link].pushes.pace = bytes_per_s
                case rank_actions.Deliver():
                    self.delivered += 1
                case rank_actions.Fail(error):
                    raise AssertionError(f"{self.name} failed") from error

    def _send(self, link: int, frame: WorkerFrame, nbytes: int) -> None:
        stream = self._streams[link]
        reducer = stream.reducer

        arrive = partial(reducer.work, nbytes, partial(reducer.take, stream.number, frame))
        self.work(nbytes, partial(stream.pushes.send, nbytes, arrive))


class World:
    """The ranks and reducers of a job.

    Args:
        setting: the simulated setting.
        beside: another job that shares its links with this one.
    """

    def __init__(self, setting: Setting, beside: World | None = None) -> None:
        self.setting = setting
        self.clock = beside.clock if beside else Clock()
        names = [f"w{index}" for index in range(setting.workers)] + [
            f"r{index}" for index in range(setting.reducers)
        ]
        self.hosts = beside.hosts if beside else [self._host(name) for name in names]
        workers, remote = self.hosts[: setting.workers], self.hosts[setting.workers :]
        processes = setting.workers + setting.reducers + setting.workers * setting.colocated
        self.cores = _Cores(setting.cores or processes)
        at = [*remote, *(workers if setting.colocated else ())]
        self.reducers = [_Reducer(self, host, self._place(host), number) for number, host in enumerate(at)]
        self.ranks = [_Rank(self, host, self._identity(host, rank)) for rank, host in enumerate(workers)]
        for process in (*self.ranks, *self.reducers):
            self._tick(process)

    def all_reduce(self, nbytes: int, pause_s: float = 4 * TICK_S) -> float:
        """Let all ranks reduce a tensor, and return the seconds."""
        begun, wanted = self.clock.now, self.ranks[0].delivered + 1
        self.issue(nbytes)
        while any(rank.delivered < wanted for rank in self.ranks):
            self.clock.step()
        taken = self.clock.now - begun
        until = self.clock.now + pause_s
        while self.clock.now < until:
            self.clock.step()
        return taken

    def issue(self, nbytes: int) -> None:
        """Let all ranks start reducing a tensor."""
        collective = Collective(ReduceOp.SUM, DType.FLOAT32, nbytes // 4, 7)
        for rank in self.ranks:
            self.clock.at(self.clock.now, partial(rank.issue, collective))

    def _host(self, name: str) -> Host:
        link = self.setting.link_of(name)
        up, down = (Bucket(link.rate_mbit * 1e6 / 8, link.bucket_bytes, link.queue_bytes) for _ in range(2))
        return Host(name, up, down, link.packet_bytes)

    def _place(self, host: Host) -> Place:
        mbit = round(self.setting.link_of(host.name).rate_mbit) if self.setting.slower else 0
        return Place(host.name.encode().ljust(ID_BYTES), mbit)

    def _identity(self, host: Host, rank: int) -> Identity:
        return Identity(
            job="simulation",
            instance=b"simulated-job..." if rank == 0 else b"",
            nonce=rank.to_bytes(16),
            host=host.name,
            rank=rank,
            world_size=self.setting.workers,
            chunk_bytes=None,
            credit_bytes=None,
            target=credit.target_for(credit.TCP, None, self.setting.workers),
            timeout_s=1e6,
            stall_warn_s=1e6,
            join_timeout_s=1e6,
            close_timeout_s=5.0,
            place=self._place(host),
        )

    def _tick(self, process: _Rank | _Reducer) -> None:
        process.tick()
        self.clock.at(self.clock.now + TICK_S, partial(self._tick, process))


def simulate(setting: Setting, nbytes: int, rounds: int, pause_s: float = 4 * TICK_S) -> Outcome:
    """Let the ranks of a setting reduce tensors, one after the other, with pauses in between."""
    world = World(setting)
    times = tuple(world.all_reduce(nbytes, pause_s) for _ in range(rounds))
    configuration = world.ranks[0].core.epochs.configuration
    assert configuration is not None
    streams = [stream for reducer in world.reducers for stream in reducer.streams.values()]
    sent = [path.sent for stream in streams for path in (stream.pushes, stream.results)]
    lost = sum(each.lost for each in sent) / max(1, sum(each.segments for each in sent))
    return Outcome(times, configuration.chunk_bytes, configuration.weights, lost)
