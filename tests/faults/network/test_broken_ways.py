"""Faults that middleboxes cause between a worker and a reducer: cut, trickle, delay, repeat."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch
from reduction.errors import ReductionError
from support.network.faulty_relay import Fault
from support.planes import OVER_A_NETWORK
from support.processes.ranks import Ranks

CHUNK = 4096


def step_by_step(rank, addresses, job, settings):
    """Check as many sums as the test requests, each time; return the error that ended this, if any."""
    with rank.state(addresses[rank.number], job, chunk_bytes=CHUNK, **settings) as state:
        step = 0
        rank.tell("there")
        while count := rank.hear():
            for _ in range(count):
                error = rank.error_of(lambda step=step: rank.round(state, 5_000, step))
                step += 1
                if error is not None:
                    assert state.error is error, f"a wrong sum, or {error!r}"
                    rank.tell(repr(error))
                    return error
            rank.tell("done")
        return None


class Pair:
    """Two ranks and a reducer; rank 1 takes a detour."""

    def __init__(self, ranks, reducer, way, job, lasts_s=90.0, **settings) -> None:
        self.way = way
        self.ended: set[int] = set()
        addresses = [reducer.address], [way.address]
        self.call = ranks.begin(2, step_by_step, addresses, job, settings, group=False, timeout_s=lasts_s)
        assert [self.call.hear(0), self.call.hear(1)] == ["there", "there"]

    def steps(self, count: int) -> list[str]:
        """Let both ranks check `count` sums; return their answers."""
        for rank in range(2):
            self.call.tell(rank, count)
        heard = [self.call.hear(rank) for rank in range(2)]
        self.ended |= {rank for rank in range(2) if heard[rank] != "done"}
        return heard

    def end(self) -> list[ReductionError | None]:
        """Let the remaining ranks leave; return the errors of both."""
        for rank in range(2):
            if rank not in self.ended:
                self.call.tell(rank, 0)
        return self.call.answers()


@pytest.fixture
def pair(ranks, faulty_reducer, detour, job):
    def make(**settings) -> Pair:
        reducer = faulty_reducer()
        return Pair(ranks, reducer[0], detour(reducer), job, **settings)

    return make


@pytest.fixture
def busy_cores() -> Iterator[None]:
    """Keep each core busy."""
    burning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)
    ]
    yield
    for one in burning:
        one.kill()
        one.wait()


@pytest.mark.usefixtures("plane", "busy_cores")
@OVER_A_NETWORK
@pytest.mark.parametrize(
    "count", [40, pytest.param(1000, marks=[pytest.mark.full, pytest.mark.timeout(1200)])]
)
def test_a_rank_that_redials_repeatedly_is_not_considered_dead(pair, plane, count):
    """After a broken stream the reducer probes whether the rank's process is alive, however busy that is."""
    both = pair(lasts_s=90.0 + count)
    relay = both.way.data if plane == "tcp" else both.way.calls
    while relay.count < count:
        assert both.steps(1) == ["done", "done"]
        both.way.reset()
    assert both.steps(3) == ["done", "done"]
    assert both.end() == [None, None]


@OVER_A_NETWORK
@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("count", [30, CHUNK + 30, 3 * CHUNK])
def test_a_truncated_frame_changes_no_sum(pair, plane, direction, count):
    """After part of a frame and a reset, the stream is dialled again, and the sums are the same."""
    both = pair()
    assert both.steps(3) == ["done", "done"]
    relay = both.way.data if plane == "tcp" else both.way.calls
    relay.set(**{direction: Fault(truncate_after=count)})
    assert both.steps(5) == ["done", "done"]
    assert relay.struck == 1
    assert both.end() == [None, None]


@pytest.mark.usefixtures("plane")
@OVER_A_NETWORK
def test_a_trickling_connection_is_only_slow(pair):
    both = pair()
    assert both.steps(3) == ["done", "done"]
    slow = Fault(bytes_per_s=60_000)
    both.way.set(up=slow, down=slow)
    assert both.steps(3) == ["done", "done"]  # 60 KB each way
    late = Fault(delay_s=0.05)
    both.way.set(up=late, down=late)
    assert both.steps(3) == ["done", "done"]
    both.way.set()
    assert both.steps(3) == ["done", "done"]
    assert both.end() == [None, None]


@pytest.mark.usefixtures("plane")
@OVER_A_NETWORK
def test_a_nearly_blocked_connection_is_an_error_in_time(pair):
    """At a few bytes per second no ping gets through, or a chunk never ends. No rank hangs or crashes."""
    both = pair(timeout_s=6.0, join_timeout_s=6.0)
    assert both.steps(3) == ["done", "done"]
    both.way.set(up=Fault(bytes_per_s=100), down=Fault(bytes_per_s=100))
    both.steps(1)
    for error in both.call.answers():
        assert isinstance(error, ReductionError)


@pytest.mark.usefixtures("plane")
@OVER_A_NETWORK
@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("count", [20, 1000, CHUNK + 200])
def test_duplicated_bytes_never_cause_a_wrong_sum(pair, direction, count):
    """The stream breaks or both get a typed error. With checksums this also holds for a repetition within a payload."""
    both = pair(checksums=True)
    assert both.steps(3) == ["done", "done"]
    both.way.set(**{direction: Fault(repeat_first=count)})
    both.steps(3)  # every completed sum was right
    assert both.way.calls.struck + both.way.data.struck >= 1
    for error in both.end():
        assert error is None or isinstance(error, ReductionError)


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("at", [0, 1, 4, 6, 9, 17, 25, 33, 41, 49, 57, 60, 61, CHUNK - 1])
def test_a_flipped_bit_on_a_data_connection_costs_only_time(pair, monkeypatch, direction, at):
    """The damage is in a header or a payload. With checksums it is detected, and the data is sent again."""
    monkeypatch.setattr(Ranks, "plane", "tcp")
    both = pair(checksums=True)
    assert both.steps(3) == ["done", "done"]
    both.way.data.set(**{direction: Fault(flip_at=at)})
    assert both.steps(5) == ["done", "done"]
    assert both.way.data.struck == 1
    assert both.end() == [None, None]


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("at", [0, 1, 5, 9, 12, 30, 300, 2000])
def test_a_flipped_bit_on_a_call_costs_only_time(pair, monkeypatch, direction, at):
    monkeypatch.setattr(Ranks, "plane", "grpc")
    both = pair(checksums=True)
    assert both.steps(3) == ["done", "done"]
    both.way.calls.set(**{direction: Fault(flip_at=at)})
    assert both.steps(5) == ["done", "done"]
    assert both.way.calls.struck == 1
    assert both.end() == [None, None]


def lose_a_payload(rank, addresses, job):
    """Lose a reducer in the middle of a result; return the number of its remaining destinations after the next sum."""
    with rank.state(addresses, job, chunk_bytes=CHUNK, transport="tcp") as state:
        rank.round(state, 5_000)
        rank.tell("there")
        rank.hear()
        tensor = rank.values(0, (5_000,))
        future = state.all_reduce(tensor)
        deadline = time.monotonic() + 30
        links = state._communicator._driver.links
        while not any(is_receiving(stream) for stream in links._streams.values()):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        rank.tell("a payload is under way")
        rank.wait(future)
        assert torch.equal(tensor, rank.expected((5_000,)))
        return sum(len(sink.destinations._expected) for sink in links._sinks.values())


def is_receiving(stream):
    connection = stream._connection
    return connection is not None and connection._header is not None and len(connection._rest) > 0


def test_a_payload_that_was_lost_with_its_stream_keeps_no_memory(ranks, faulty_reducer, serve, detour, job):
    reducer = faulty_reducer()
    way = detour(reducer)
    call = ranks.begin(1, lose_a_payload, [way.address, serve().address], job, group=False)
    assert call.hear(0) == "there"
    way.data.set(down=Fault(bytes_per_s=1000))
    call.tell(0, "go on")
    assert call.hear(0) == "a payload is under way"
    way.cut()
    assert call.answers() == [0]
