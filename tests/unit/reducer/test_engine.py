"""The engine: performs the core's decisions in order, whatever a sink does meanwhile."""

import gc

import numpy as np
import pytest
from reduction import limits
from reduction.errors import MalformedFrame, ReductionError, ResourceExhausted
from reduction.model import (
    Abort,
    Ack,
    Collective,
    Configuration,
    DType,
    Goodbye,
    Hello,
    Join,
    Member,
    Push,
    ReduceOp,
    Result,
    Welcome,
)

from reducer.core.job import Job
from reducer.core.totals import JobLabel, Traffic
from reducer.engine import MEASURED_CHUNKS, ON_TCP, TICK_S, Engine

KIB = 1024
SUM = Collective(ReduceOp.SUM, DType.BFLOAT16, 2, 7)
ONES = memoryview(bytes.fromhex("803f803f"))  # two bfloat16 ones


class Sink:
    """Records the frames, and lets a test act inside its callbacks."""

    def __init__(self, react=None):
        self.frames = []
        self.ends = []
        self.react = react

    def on_frame(self, frame):
        self.frames.append((frame.seq, bytes(frame.payload)) if isinstance(frame, Result) else frame)
        if self.react is not None:
            self.react(frame)

    def on_closed(self, error):
        self.ends.append(error)

    def kinds(self):
        return [type(frame).__name__ for frame in self.frames]


@pytest.fixture
def now():
    """The time of the engine's clock, as a list of one number."""
    return [100.0]


@pytest.fixture
def engine(now):
    return Engine(memory_limit_bytes=1 << 30, clock=lambda: now[0])


def join(rank=0, world_size=1, job="job"):
    return Join(job, job.ljust(16).encode(), rank, world_size, bytes([rank]) * 16, "h", 0, 64 * KIB)


def running(engine, world_size=1, job="job", react=None):
    """Return (sinks, streams) of a job that may push."""
    sinks = [Sink() for _ in range(world_size)]
    streams = [engine.open(sink) for sink in sinks]
    member = Member("a:1", engine.jobs.incarnation)
    configuration = Configuration(job.ljust(16).encode(), 1, KIB, (member,))
    for rank, stream in enumerate(streams):
        stream.send(join(rank, world_size, job))
    for stream in streams:
        stream.send(Hello(configuration, 0))
    for sink in sinks:
        sink.frames.clear()
        sink.react = react
    return sinks, streams


def push(seq=0, payload=ONES):
    return Push(1, seq, 0, SUM, 0, payload)


def push_all(streams, frame=None):
    for stream in streams:
        stream.send(frame or push())


def test_events_from_within_a_sink_wait_for_their_turn(engine):
    # Rank 0 pushes the next one before rank 1 has received the result.
    sinks, streams = running(engine, 2)

    def push_next(frame):
        if isinstance(frame, Result) and frame.seq < 3:
            push_all(streams, push(frame.seq + 1))

    sinks[0].react = push_next
    push_all(streams)
    twos = bytes.fromhex("00400040")
    assert [sink.frames for sink in sinks] == [[(seq, twos) for seq in range(4)]] * 2


def test_a_stream_closed_from_within_its_sink_receives_nothing_more(engine):
    sink = Sink()
    stream = engine.open(sink)
    sink.react = lambda frame: stream.close()
    stream.send(join())
    assert sink.kinds() == ["Welcome"]
    assert sink.ends == [None]
    assert engine.jobs.by_name == {}


def test_a_join_queued_behind_the_end_of_its_stream_is_ignored(engine):
    # Two frames from inside a sink: the first is refused, the second must not revive the stream.
    victim = engine.open(Sink())

    def twice(frame):
        if isinstance(frame, Welcome):
            victim.send(Ack(0))
            victim.send(join(job="ghost"))

    other = Sink(react=twice)
    engine.open(other).send(join(job="other"))
    assert set(engine.jobs.by_name) == {("other", "")}


def test_a_rejected_stream_receives_the_reason_and_is_counted(engine):
    (sink,), (stream,) = running(engine)
    error = MalformedFrame("no frame")
    stream.reject(error)
    assert sink.frames == [Abort(7, "rank 0 (h): no frame")]
    assert [(type(end), str(end)) for end in sink.ends] == [(MalformedFrame, "rank 0 (h): no frame")]
    assert engine.errors == {"MalformedFrame": 1}


def test_a_sink_that_raises_fails_only_its_own_job(engine, caplog):
    others, other_streams = running(engine, job="others")

    def fail(frame):
        if isinstance(frame, Result):
            raise RuntimeError("a bug in a sink")

    sinks, streams = running(engine, 2, react=fail)
    for stream in streams:
        stream.send(push())
    assert "a bug in a sink" in caplog.text
    [abort] = [frame for frame in sinks[1].frames if isinstance(frame, Abort)]
    assert abort.code == ReductionError.code
    assert "internal error of the reducer; see its log" in abort.message
    other_streams[0].send(push())
    assert others[0].frames == [(0, bytes.fromhex("803f803f"))]


def test_a_failing_job_does_not_stop_the_ticks_of_others(engine, monkeypatch, caplog):
    asked = []

    def on_tick(job, sent, now):
        asked.append(job.name)
        if job.name == "broken":
            raise RuntimeError("a bug in a job")
        return []

    monkeypatch.setattr(Job, "on_tick", on_tick)
    for name in ("first", "broken", "last"):
        running(engine, job=name)
    engine.tick()
    assert asked == ["first", "broken", "last"]
    assert "a bug in a job" in caplog.text


# ---- memory ----


@pytest.fixture
def _no_collector():
    """Memory must become free through reference counting."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def leased(engine, values):
    """Return a contribution in the engine's memory, as a transport delivers it."""
    view = engine.pool.take(values.nbytes)
    view[:] = values.tobytes()
    return view


def array_push(values, payload, dtype=DType.FLOAT32, seq=0, op=ReduceOp.SUM):
    return Push(1, seq, 0, Collective(op, dtype, len(values), 7), 0, payload)


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT32])
@pytest.mark.usefixtures("_no_collector")
def test_the_payload_of_a_result_may_be_kept_and_holds_its_memory(engine, dtype):
    kept = []
    _, (stream,) = running(engine, react=kept.append)
    payloads = [bytes([seq] * 4 * dtype.itemsize) for seq in range(3)]
    for seq, payload in enumerate(payloads):
        stream.send(array_push(range(4), memoryview(payload), dtype, seq))
    assert [bytes(frame.payload) for frame in kept] == payloads
    held = engine.pool.kept_bytes
    kept.clear()
    assert engine.pool.kept_bytes == held + 3 * 4 * dtype.itemsize


@pytest.mark.usefixtures("_no_collector")
def test_a_result_returns_to_the_pool_when_the_last_rank_releases_it_and_is_freed_after_the_jobs(
    engine,
):
    sinks, streams = running(engine, 3)
    kept = {rank: [] for rank in range(3)}
    for rank, sink in enumerate(sinks):
        sink.react = kept[rank].append
    push_all(streams)
    before = engine.pool.kept_bytes
    for rank in (1, 0, 2):
        assert engine.pool.kept_bytes == before
        kept[rank].clear()
    engine.tick()
    assert engine.pool.kept_bytes == before + ONES.nbytes
    push_all(streams, Goodbye(0, 0))
    assert not engine.jobs.by_name
    engine.tick()
    assert engine.pool.kept_bytes == 0


@pytest.mark.parametrize(
    ("pushed", "freed"),
    # The first contribution is read together with the second, which makes a sum. The others wait for rank 0.
    [([0], 8), ([0, 1], 16), ([1, 2], 16)],
)
@pytest.mark.usefixtures("_no_collector")
def test_memory_of_an_abandoned_sum_is_used_again(engine, pushed, freed):
    _, streams = running(engine, 3)
    values = np.float32([1, 2])
    for rank in pushed:
        streams[rank].send(array_push(values, leased(engine, values)))
    during = engine.pool.kept_bytes
    for stream in streams:
        stream.close()
    assert engine.pool.kept_bytes == freed
    assert during in (0, freed - 8), "what the sum does not need is free at once"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
@pytest.mark.parametrize(
    ("dtype", "numpy_dtype"),
    [
        (DType.FLOAT32, np.float32),
        (DType.FLOAT64, np.float64),
        (DType.INT32, np.int32),
        (DType.INT64, np.int64),
    ],
)
def test_rank_0s_contribution_in_the_engines_memory_becomes_the_accumulator(
    engine, dtype, numpy_dtype, order
):
    sinks, streams = running(engine, 3)
    kept = []
    sinks[0].react = kept.append
    values = numpy_dtype([1, 2, 3])
    payloads = [leased(engine, values * 10**rank) for rank in range(3)]
    for rank in order:
        streams[rank].send(array_push(values, payloads[rank], dtype))
    result = np.frombuffer(kept[0].payload, numpy_dtype)
    assert result.tolist() == [111, 222, 333]
    assert np.shares_memory(result, np.frombuffer(payloads[0], numpy_dtype)), "it was copied"
    for rank in (1, 2):
        assert np.frombuffer(payloads[rank], numpy_dtype).tolist() == (values * 10**rank).tolist()


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_a_contribution_of_16_bits_is_never_the_accumulator(engine, dtype):
    _, streams = running(engine, 2)
    one = leased(engine, np.uint16([0x3F80]))
    push_all(streams, array_push([0], one, dtype))
    assert bytes(one) == np.uint16([0x3F80]).tobytes()


@pytest.mark.parametrize("world_size", [1, 2])
def test_memory_that_is_not_the_engines_is_never_written_to(engine, world_size):
    sinks, streams = running(engine, world_size)
    kept = []
    sinks[0].react = kept.append
    mine = [np.float32([1, 2]) for _ in streams]
    for stream, values in zip(streams, mine, strict=True):
        stream.send(array_push(values, values.data.cast("B"), op=ReduceOp.AVG))
    assert [values.tolist() for values in mine] == [[1, 2]] * world_size
    assert not any(np.shares_memory(np.frombuffer(kept[0].payload, np.float32), values) for values in mine)


def test_a_result_that_is_pushed_again_is_not_written_to(engine):
    # In process, a worker may push the very memory that it and others received as a result.
    kept = []
    sinks, streams = running(engine, 2)
    sinks[0].react = kept.append
    values = np.float32([1, 2])
    for stream in streams:
        stream.send(array_push(values, leased(engine, values)))
    push_all(streams, array_push(values, kept[0].payload, seq=1))
    assert [np.frombuffer(frame.payload, np.float32).tolist() for frame in kept] == [[2, 4], [4, 8]]


# ---- status ----


def test_status_and_need_track_jobs(engine):
    assert not engine.is_needed
    sink = Sink()
    stream = engine.open(sink)
    stream.send(join())
    assert engine.status().jobs[0].chunk_bytes == 0, "there is no configuration"
    stream.close()
    _, (stream,) = running(engine)
    assert engine.is_needed
    stream.send(push())
    status = engine.status()
    assert (status.uptime_seconds, status.draining, status.memory_limit_bytes) == (0.0, False, 1 << 30)
    (job,) = status.jobs
    assert (job.job, job.epoch, job.started, job.chunk_bytes) == ("job", 1, True, KIB)
    stream.close()
    assert not engine.is_needed


def test_status_replaces_nonces_by_values_that_are_the_same_in_every_process():
    """Anyone who knows a rank's nonce can take its place."""
    shown = []
    for _ in range(2):
        engine = Engine(memory_limit_bytes=1 << 30)
        running(engine, 2)
        (job,) = engine.status().jobs
        nonces = [peer.nonce for peer in engine.jobs.by_name["job", ""].peers()]
        shown.append([peer.nonce for peer in job.peers])
        assert not set(nonces) & set(shown[-1])
    assert shown[0] == shown[1]
    assert len(set(shown[0])) == 2


def test_a_stall_shows_in_the_status_and_the_operator_is_warned(engine, now, caplog):
    _, streams = running(engine, 2)

    def shown():
        (job,) = engine.status().jobs
        return job

    streams[0].send(push())
    assert (shown().under_way_bytes, shown().last) == (limits.CHARGE_BYTES_MIN, ())
    now[0] += 0.4
    assert shown().waiting is None
    now[0] += 8.6
    waiting = shown().waiting
    assert (waiting.seq, waiting.waited_s, waiting.numbers) == (0, pytest.approx(9.0), "1")
    assert waiting.missing == (shown().peers[1],), "without a nonce"
    engine.tick()
    assert "has waited 9 s for rank 1 (h)" in caplog.text
    streams[1].send(push())
    assert (shown().waiting, shown().under_way_bytes) == (None, 0)
    assert [(one.rank, one.chunks) for one in shown().last] == [(1, 1)]


# ---- counters ----


class Clock:
    """A clock that advances a quarter of a second whenever it is read."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 0.25
        return self.now


def totals_of(engine):
    return engine.jobs.totals.by_label[JobLabel("job", "")]


def test_bytes_are_counted_per_plane_in_both_directions(engine):
    sinks, streams = running(engine, 3)
    owner = streams[1].move(ON_TCP)
    assert (owner.label, owner.host, owner.totals) == (JobLabel("job", ""), "h", totals_of(engine))
    push_all(streams)
    assert [sink.frames for sink in sinks] == [[(0, bytes.fromhex("40404040"))]] * 3  # threes
    assert totals_of(engine).traffic == {"grpc": Traffic(8, 8), "tcp": Traffic(4, 4)}
    assert engine.chunks == 1


def test_a_closed_stream_cannot_move(engine):
    _, (stream,) = running(engine)
    stream.close()
    assert stream.move(ON_TCP) is None


def test_only_some_chunks_are_timed_at_one_clock_reading_each():
    engine = Engine(memory_limit_bytes=1 << 30, clock=Clock())
    _, streams = running(engine)
    for seq in range(MEASURED_CHUNKS + 1):
        streams[0].send(push(seq))
    reduces = totals_of(engine).chunk_reduces
    assert (sum(reduces.counts), reduces.sum_s) == (2, 0.5)


def test_a_late_tick_counts_as_lag_of_the_loop(engine, now):
    for pause_s in (TICK_S, TICK_S + 1.0, TICK_S / 2):
        engine.tick()
        now[0] += pause_s
    engine.tick()
    assert sum(engine.loop_lag.counts) == 3
    assert engine.loop_lag.sum_s == pytest.approx(1.0)


def test_running_out_of_memory_ends_only_the_job_that_needs_it_with_a_retryable_error(
    engine, monkeypatch, caplog
):
    (sink,), (stream,) = running(engine, job="large")
    (other_sink,), (other,) = running(engine, job="small")

    def refuse(nbytes):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(engine.pool, "take", refuse)
        stream.send(push())
    (abort,) = [frame for frame in sink.frames if isinstance(frame, Abort)]
    assert abort.code == ResourceExhausted.code
    assert "the reducer has run out of memory: Cannot allocate memory" in abort.message
    assert "Traceback" not in caplog.text
    other.send(push())
    assert other_sink.kinds() == ["tuple"]
