"""The engine: performs what the core decides, in order, whatever a sink does meanwhile."""

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

from reducer.core.totals import JobLabel, Traffic
from reducer.engine import MEASURED_CHUNKS, ON_TCP, TICK_S, Engine

KIB = 1024
SUM = Collective(ReduceOp.SUM, DType.BFLOAT16, 2, 7)
ONES = memoryview(bytes.fromhex("803f803f"))  # two bfloat16 ones


class Sink:
    """Keeps the frames, and lets a test act from within."""

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


def make_engine():
    return Engine(memory_limit_bytes=1 << 30, clock=lambda: 100.0)


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


def test_a_sink_hears_from_within_send():
    engine, sink = make_engine(), Sink()
    engine.open(sink).send(join())
    assert sink.kinds() == ["Welcome", "Peers"]


def test_results_are_counted_by_payload_and_rank():
    engine = make_engine()
    sinks, streams = running(engine, 3)
    for stream in streams:
        stream.send(push())
    assert [sink.frames for sink in sinks] == [[(0, bytes.fromhex("40404040"))]] * 3  # threes
    assert engine.jobs.totals.by_label[JobLabel("job", "")].traffic == {"grpc": Traffic(12, 12)}
    assert engine.chunks == 1


def test_events_from_within_a_sink_wait_for_their_turn():
    # Rank 0 pushes the next one while rank 1 has not heard the result yet.
    engine = make_engine()
    sinks, streams = running(engine, 2)

    def push_next(frame):
        if isinstance(frame, Result) and frame.seq < 3:
            for stream in streams:
                stream.send(push(frame.seq + 1))

    sinks[0].react = push_next
    for stream in streams:
        stream.send(push(0))
    twos = bytes.fromhex("00400040")
    assert [sink.frames for sink in sinks] == [[(seq, twos) for seq in range(4)]] * 2


def test_a_stream_closed_from_within_its_sink_hears_no_more():
    engine, sink = make_engine(), Sink()
    stream = engine.open(sink)
    sink.react = lambda frame: stream.close()
    stream.send(join())
    assert sink.kinds() == ["Welcome"]
    assert sink.ends == [None]
    assert engine.jobs.by_name == {}


def test_frames_for_a_stream_that_is_over_are_dropped():
    engine = make_engine()
    (sink,), (stream,) = running(engine)
    stream.close()
    stream.send(push())
    stream.reject(MalformedFrame("late"))
    stream.close()
    assert (sink.frames, sink.ends) == ([], [None])
    assert engine.jobs.totals.by_label[JobLabel("job", "")].traffic == {"grpc": Traffic()}


def test_a_join_that_waited_behind_its_streams_end_joins_nothing():
    # Two frames from within a sink: the first is refused, the second must not revive the stream.
    engine = make_engine()
    victim = engine.open(Sink())

    def twice(frame):
        if isinstance(frame, Welcome):
            victim.send(Ack(0))
            victim.send(join(job="ghost"))

    other = Sink(react=twice)
    engine.open(other).send(join(job="other"))
    assert set(engine.jobs.by_name) == {("other", "")}


def test_a_rejected_stream_hears_why_and_is_counted():
    engine = make_engine()
    (sink,), (stream,) = running(engine)
    error = MalformedFrame("no frame")
    stream.reject(error)
    assert sink.frames == [Abort(7, "rank 0 (h): no frame")]
    assert [(type(end), str(end)) for end in sink.ends] == [(MalformedFrame, "rank 0 (h): no frame")]
    assert engine.errors == {"MalformedFrame": 1}


def test_a_sink_that_raises_costs_its_own_job_only(caplog):
    engine = make_engine()
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


# ---- memory ----


@pytest.fixture
def _no_collector():
    """What is free must be free by counting references."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def leased(engine, values):
    """Return a contribution in memory of the engine's, as a transport brings it."""
    view = engine.pool.take(values.nbytes)
    view[:] = values.tobytes()
    return view


def array_push(values, payload, dtype, seq=0, op=ReduceOp.SUM):
    return Push(1, seq, 0, Collective(op, dtype, len(values), 7), 0, payload)


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT32])
@pytest.mark.usefixtures("_no_collector")
def test_the_payload_of_a_result_may_be_kept_and_holds_its_memory(dtype):
    engine, kept = make_engine(), []
    _, (stream,) = running(engine, react=kept.append)
    for seq in range(3):
        stream.send(
            Push(
                1,
                seq,
                0,
                Collective(ReduceOp.SUM, dtype, 4, 7),
                0,
                memoryview(bytes([seq] * 16))[: 4 * dtype.itemsize],
            )
        )
    assert [bytes(frame.payload) for frame in kept] == [bytes([seq] * 4 * dtype.itemsize) for seq in range(3)]
    held = engine.pool.kept_bytes
    kept.clear()
    assert engine.pool.kept_bytes == held + 3 * 4 * dtype.itemsize


@pytest.mark.usefixtures("_no_collector")
def test_a_result_goes_back_to_the_pool_with_the_last_rank_that_lets_go_of_it():
    engine = make_engine()
    sinks, streams = running(engine, 3)
    kept = {rank: [] for rank in range(3)}
    for rank, sink in enumerate(sinks):
        sink.react = kept[rank].append
    for stream in streams:
        stream.send(push())
    before = engine.pool.kept_bytes
    for rank in (1, 0, 2):
        assert engine.pool.kept_bytes == before
        kept[rank].clear()
    assert engine.pool.kept_bytes == before + ONES.nbytes


def test_memory_of_an_abandoned_sum_is_used_again():
    engine = make_engine()
    _, streams = running(engine, 3)
    streams[0].send(push())
    assert len(engine._firsts) == 1, "it is read together with the second one"
    streams[1].send(push())
    assert (len(engine._firsts), len(engine._accumulators)) == (0, 1)
    assert engine.pool.kept_bytes == 0
    for stream in streams:
        stream.close()
    assert engine._accumulators == {}
    assert engine.pool.kept_bytes == 8


def test_a_first_contribution_of_an_abandoned_sum_is_let_go():
    engine = make_engine()
    _, streams = running(engine, 2)
    streams[0].send(push())
    for stream in streams:
        stream.close()
    assert engine._firsts == {}


def test_without_jobs_no_memory_is_kept():
    engine = make_engine()
    _, streams = running(engine, 2)
    for stream in streams:
        stream.send(push())
    engine.tick()
    assert engine.pool.kept_bytes > 0
    for stream in streams:
        stream.send(Goodbye(0, 0))
    assert not engine.jobs.by_name
    engine.tick()
    assert engine.pool.kept_bytes == 0


@pytest.mark.usefixtures("_no_collector")
def test_memory_of_contributions_that_waited_in_an_abandoned_sum_is_used_again():
    engine = make_engine()
    _, streams = running(engine, 3)
    values = np.float32([1, 2])
    for stream in streams[1:]:  # both wait for rank 0
        stream.send(array_push(values, leased(engine, values), DType.FLOAT32))
    assert engine.pool.kept_bytes == 0
    for stream in streams:
        stream.close()
    assert engine.pool.kept_bytes == 16


@pytest.mark.parametrize(
    ("dtype", "numpy_dtype"),
    [
        (DType.FLOAT32, np.float32),
        (DType.FLOAT64, np.float64),
        (DType.INT32, np.int32),
        (DType.INT64, np.int64),
    ],
)
def test_a_first_contribution_in_the_engines_memory_becomes_the_accumulator(dtype, numpy_dtype):
    engine = make_engine()
    sinks, streams = running(engine, 3)
    kept = []
    sinks[0].react = kept.append
    values = numpy_dtype([1, 2, 3])
    payloads = [leased(engine, values * 10**rank) for rank in range(3)]
    for stream, payload in zip(streams, payloads, strict=True):
        stream.send(array_push(values, payload, dtype))
    result = np.frombuffer(kept[0].payload, numpy_dtype)
    assert result.tolist() == [111, 222, 333]
    assert np.shares_memory(result, np.frombuffer(payloads[0], numpy_dtype)), "it was copied"
    for rank in (1, 2):
        assert np.frombuffer(payloads[rank], numpy_dtype).tolist() == (values * 10**rank).tolist()


def test_the_first_contribution_is_rank_0s_whichever_comes_first():
    engine = make_engine()
    sinks, streams = running(engine, 2)
    kept = []
    sinks[0].react = kept.append
    values = np.float32([1, 2])
    payloads = [leased(engine, values), leased(engine, 10 * values)]
    for rank in (1, 0):
        streams[rank].send(array_push(values, payloads[rank], DType.FLOAT32))
    result = np.frombuffer(kept[0].payload, np.float32)
    assert result.tolist() == [11, 22]
    assert np.shares_memory(result, np.frombuffer(payloads[0], np.float32))
    assert np.frombuffer(payloads[1], np.float32).tolist() == [10, 20]


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_a_contribution_of_16_bits_is_never_the_accumulator(dtype):
    engine = make_engine()
    _, streams = running(engine, 2)
    one = leased(engine, np.uint16([0x3F80]))
    for stream in streams:
        stream.send(array_push([0], one, dtype))
    assert bytes(one) == np.uint16([0x3F80]).tobytes()


@pytest.mark.parametrize("world_size", [1, 2])
def test_memory_that_is_not_the_engines_is_never_written_to(world_size):
    engine = make_engine()
    sinks, streams = running(engine, world_size)
    kept = []
    sinks[0].react = kept.append
    mine = [np.float32([1, 2]) for _ in streams]
    for stream, values in zip(streams, mine, strict=True):
        stream.send(array_push(values, values.data.cast("B"), DType.FLOAT32, op=ReduceOp.AVG))
    assert [values.tolist() for values in mine] == [[1, 2]] * world_size
    assert not any(np.shares_memory(np.frombuffer(kept[0].payload, np.float32), values) for values in mine)


def test_a_result_that_is_pushed_again_is_not_written_to():
    # In process a worker may push the very memory that it, and others, got as a result.
    engine, kept = make_engine(), []
    sinks, (stream, other) = running(engine, 2)
    sinks[0].react = kept.append
    values = np.float32([1, 2])
    for one in (stream, other):
        one.send(array_push(values, leased(engine, values), DType.FLOAT32))
    for one in (stream, other):
        one.send(array_push(values, kept[0].payload, DType.FLOAT32, seq=1))
    assert [np.frombuffer(frame.payload, np.float32).tolist() for frame in kept] == [[2, 4], [4, 8]]


# ---- status ----


def test_status_and_need():
    engine = make_engine()
    assert not engine.is_needed
    _, (stream,) = running(engine)
    assert engine.is_needed
    stream.send(push())
    status = engine.status()
    assert (status.uptime_seconds, status.draining, status.memory_limit_bytes) == (0.0, False, 1 << 30)
    assert [(job.job, job.epoch, job.started, job.chunk_bytes) for job in status.jobs] == [
        ("job", 1, True, KIB)
    ]
    stream.close()
    assert not engine.is_needed


def test_status_shows_no_nonce_but_from_every_process_the_same_in_its_place():
    """Who knows a rank's nonce takes its place."""
    shown = []
    for _ in range(2):
        engine = make_engine()
        running(engine, 2)
        (job,) = engine.status().jobs
        nonces = [peer.nonce for peer in engine.jobs.by_name["job", ""].peers()]
        shown.append([peer.nonce for peer in job.peers])
        assert not set(nonces) & set(shown[-1])
    assert shown[0] == shown[1]
    assert len(set(shown[0])) == 2


def test_status_shows_whom_the_ranks_wait_for_now_and_no_nonce():
    now = [100.0]
    engine = Engine(memory_limit_bytes=1 << 30, clock=lambda: now[0])
    _, streams = running(engine, 2)
    streams[0].send(push(0))
    now[0] += 0.4
    assert engine.status().jobs[0].waiting is None
    now[0] += 8.6
    (job,) = engine.status().jobs
    assert (job.waiting.seq, job.waiting.waited_s, job.waiting.numbers) == (0, pytest.approx(9.0), "1")
    assert job.waiting.missing == (job.peers[1],)
    streams[1].send(push(0))
    assert engine.status().jobs[0].waiting is None


def test_status_shows_how_much_of_the_credit_is_used():
    engine = make_engine()
    _, streams = running(engine, 2)

    def under_way():
        return engine.status().jobs[0].under_way_bytes

    assert under_way() == 0
    streams[1].send(push())
    assert under_way() == limits.CHARGE_BYTES_MIN
    streams[0].send(push())
    assert under_way() == 0


def test_a_job_without_a_configuration_shows_no_chunk_size():
    engine = make_engine()
    engine.open(Sink()).send(join())
    assert engine.status().jobs[0].chunk_bytes == 0


def test_status_shows_who_was_last():
    engine = make_engine()
    _, streams = running(engine, 2)
    for stream in streams:
        stream.send(push())
    (job,) = engine.status().jobs
    assert [(one.rank, one.chunks) for one in job.last] == [(1, 1)]


def test_an_operator_is_warned_of_a_stall(caplog):
    now = [0.0]
    engine = Engine(memory_limit_bytes=1 << 30, clock=lambda: now[0])
    _, streams = running(engine, 2)
    streams[1].send(push())
    now[0] = 6.0
    engine.tick()
    assert "has waited 6 s for rank 0 (h)" in caplog.text


# ---- what is counted ----


class Clock:
    """Each look at it takes a quarter of a second."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 0.25
        return self.now


def totals_of(engine):
    return engine.jobs.totals.by_label[JobLabel("job", "")]


def test_bytes_are_counted_on_the_plane_that_they_come_and_go_over():
    engine = make_engine()
    _, streams = running(engine, 2)
    owner = streams[1].move(ON_TCP)
    assert (owner.label, owner.host, owner.totals) == (JobLabel("job", ""), "h", totals_of(engine))
    for stream in streams:
        stream.send(push())
    assert totals_of(engine).traffic == {"grpc": Traffic(4, 4), "tcp": Traffic(4, 4)}


def test_a_stream_that_is_over_moves_nowhere():
    engine = make_engine()
    _, (stream,) = running(engine)
    stream.close()
    assert stream.move(ON_TCP) is None


def test_the_time_of_some_chunks_is_measured_with_one_look_at_the_clock():
    engine = Engine(memory_limit_bytes=1 << 30, clock=Clock())
    _, streams = running(engine)
    for seq in range(MEASURED_CHUNKS + 1):
        streams[0].send(push(seq))
    reduces = totals_of(engine).chunk_reduces
    assert (sum(reduces.counts), reduces.sum_s) == (2, 0.5)


def test_a_late_tick_counts_as_lag_of_the_loop():
    now = 10.0
    engine = Engine(memory_limit_bytes=1 << 30, clock=lambda: now)
    for pause_s in (TICK_S, TICK_S + 1.0, TICK_S / 2):
        engine.tick()
        now += pause_s
    engine.tick()
    assert sum(engine.loop_lag.counts) == 3
    assert engine.loop_lag.sum_s == pytest.approx(1.0)


def test_too_little_memory_ends_the_job_that_needs_it_with_an_error_that_may_be_retried(monkeypatch, caplog):
    engine = make_engine()
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
