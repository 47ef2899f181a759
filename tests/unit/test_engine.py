"""The engine: performs what the core decides, in order, whatever a sink does meanwhile."""

import pytest
from reduction.errors import MalformedFrame
from reduction.model import (
    Abort,
    Ack,
    Collective,
    Configuration,
    DType,
    Hello,
    Join,
    Member,
    Push,
    ReduceOp,
    Result,
    Welcome,
)

from reducer.engine import Engine

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
        self.frames.append(Copy.of(frame))
        if self.react is not None:
            self.react(frame)

    def on_closed(self, error):
        self.ends.append(error)

    def kinds(self):
        return [type(frame).__name__ for frame in self.frames]


class Copy:
    """Frames as they are, but for the payload of a Result, which is gone when on_frame returns."""

    @staticmethod
    def of(frame):
        return (frame.seq, bytes(frame.payload)) if isinstance(frame, Result) else frame


def make_engine():
    return Engine(memory_limit_bytes=1 << 30, clock=lambda: 100.0)


def join(rank=0, world_size=1, job="job"):
    return Join(job, job.ljust(16).encode(), rank, world_size, bytes([rank]) * 16, "h", 0, 64 * KIB)


def running(engine, world_size=1, job="job", react=None):
    """Return (sinks, streams) of a job that may push."""
    sinks = [Sink() for _ in range(world_size)]
    streams = [engine.open(sink) for sink in sinks]
    member = Member("a:1", engine.table.incarnation)
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


def test_the_payload_of_a_result_is_gone_when_on_frame_returns():
    kept = []
    _, (stream,) = running(make_engine(), react=kept.append)
    stream.send(push())
    with pytest.raises(ValueError, match="released"):
        kept[0].payload.tobytes()


def test_results_are_counted_by_payload_and_rank():
    engine = make_engine()
    sinks, streams = running(engine, 3)
    for stream in streams:
        stream.send(push())
    assert [sink.frames for sink in sinks] == [[(0, bytes.fromhex("40404040"))]] * 3  # threes
    assert (engine.received_bytes, engine.sent_bytes, engine.chunks) == (12, 12, 1)


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
    assert engine.table.jobs == {}


def test_frames_for_a_stream_that_is_over_are_dropped():
    engine = make_engine()
    (sink,), (stream,) = running(engine)
    stream.close()
    stream.send(push())
    stream.reject(MalformedFrame("late"))
    stream.close()
    assert (sink.frames, sink.ends) == ([], [None])
    assert engine.received_bytes == 0


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
    assert set(engine.table.jobs) == {"other"}


def test_a_rejected_stream_hears_why_and_is_counted():
    engine = make_engine()
    (sink,), (stream,) = running(engine)
    error = MalformedFrame("no frame")
    stream.reject(error)
    assert sink.frames == [Abort(7, "no frame")]
    assert sink.ends == [error]
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
    assert any(isinstance(frame, Abort) for frame in sinks[1].frames)
    other_streams[0].send(push())
    assert others[0].frames == [(0, bytes.fromhex("803f803f"))]


def test_memory_of_an_abandoned_sum_is_used_again():
    engine = make_engine()
    _, (first, second) = running(engine, 2)
    first.send(push())
    assert len(engine._accumulators) == 1
    first.close()
    second.close()
    assert engine._accumulators == {}
    assert engine._pool.kept_bytes == 8


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


def test_a_job_without_a_configuration_shows_no_chunk_size():
    engine = make_engine()
    engine.open(Sink()).send(join())
    assert engine.status().jobs[0].chunk_bytes == 0
