"""Bad input on the data port of a real reducer: closed with a reason in the log, in bounded time and memory.

Meanwhile a job of two real ranks continues over the same port, and all its sums are correct.
"""

from __future__ import annotations

import os
import random
import re
import select
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import torch
from reduction import layout, limits, wire
from reduction.errors import CollectiveMismatch, MalformedFrame, OutOfOrder
from reduction.log_limit import BURST
from reduction.model import (
    Abort,
    Ack,
    Collective,
    Configuration,
    DType,
    Goodbye,
    Member,
    Peers,
    Presence,
    Push,
    ReduceOp,
    Result,
    Start,
    Welcome,
)
from reduction.transports import tcp
from support.network.raw import ID, DataConnection, MovedRank, RawStream, join

KIB, MIB = 1 << 10, 1 << 20
#: Allowed growth of a reducer's memory under bad input: its pool keeps a few chunks, and there is noise.
GROWTH_BYTES_MAX = 24 * MIB
#: See `tcp_server`.
KEY_S, STRANGERS_MAX = 10.0, 256
CHUNK = 256 * KIB
#: A collective so large that its chunks have full size.
NUMEL = layout.SMALL_BYTES // 4
WHAT = Collective(ReduceOp.SUM, DType.FLOAT32, NUMEL, 7)


# ---- the healthy job ----


def step_until_told(rank, reducers, job):
    """Check all-reduces in a loop until the test says stop; report the number so far whenever it asks."""
    with rank.state(reducers, job, transport="tcp", chunk_bytes=64 * KIB) as state:
        steps, stop = 0, torch.zeros(1)
        while not stop:
            rank.round(state, 50_000, step=steps)
            steps += 1
            if rank.number == 0 and rank.has_news:
                stop += rank.hear() == "stop"
                rank.tell(steps)
            rank.wait(state.all_reduce(stop))
            time.sleep(0.005)  # there are few cores
        assert state.error is None
    return steps


class Victim:
    """A reducer with a job that must not be affected."""

    def __init__(self, reducer, ranks, job) -> None:
        self.reducer = reducer
        self.host = reducer.address.rpartition(":")[0]
        self._call = ranks.begin(2, step_until_told, [reducer.address], f"{job}-healthy", group=False)
        self.steps()
        self._resident_bytes = self.resident_bytes
        with closing(RawStream(reducer.address)) as stream:
            stream.send(join(f"{job}-port"))
            self.port = stream.read_until(Welcome).data_port
        self._log_begins = len(reducer.log.text)

    def steps(self) -> int:
        """Return the number of steps of the healthy job."""
        self._call.tell(0, "how far")
        return self._call.hear(0)

    def goes_on(self) -> None:
        """Wait for some more steps of the healthy job."""
        begin = self.steps()
        while self.steps() < begin + 5:
            pass

    @property
    def resident_bytes(self) -> int:
        """The reducer's resident memory in bytes."""
        pages = int(Path(f"/proc/{self.reducer.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE")

    @property
    def descriptors(self) -> int:
        """Number of the reducer's open files and sockets."""
        return len(os.listdir(f"/proc/{self.reducer.pid}/fd"))

    @property
    def log(self) -> str:
        """The reducer's log since the start of the test."""
        return self.reducer.log.text[self._log_begins :]

    def configuration(self, welcome: Welcome) -> Configuration:
        return Configuration(ID, 1, CHUNK, (Member(self.reducer.address, welcome.incarnation),))

    def check(self) -> None:
        """Check that the healthy job still works, and that the reducer has not grown."""
        self.goes_on()
        grown = self.resident_bytes - self._resident_bytes
        assert grown < GROWTH_BYTES_MAX, f"{grown} bytes more than before"
        self._call.tell(0, "stop")
        self._call.hear(0)
        assert len(set(self._call.answers())) == 1


@pytest.fixture
def victim(serve, ranks, job):
    # Each test has its own reducer, since log lines of one test could be suppressed in another.
    victim = Victim(serve(), ranks, job)
    yield victim
    victim.check()


# ---- strangers ----


def some_bytes(count: int) -> bytes:
    return random.Random(7).randbytes(count)


STRANGERS = {
    "random bytes": (some_bytes(4096), "it does not begin as a data connection"),
    "a megabyte of random bytes": (some_bytes(MIB), "it does not begin as a data connection"),
    "zeros": (bytes(64), "it does not begin as a data connection"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "it does not begin as a data connection"),
    "TLS": (bytes.fromhex("16030100f8010000f40303") + bytes(300), "it does not begin as a data connection"),
    "a wrong key": (tcp.PREAMBLE + some_bytes(limits.DATA_KEY_BYTES), "its key matches no open offer"),
    "a wrong key and frames": (
        tcp.PREAMBLE + some_bytes(limits.DATA_KEY_BYTES) + tcp.PREAMBLE + tcp.control_header(bytes(1 << 20)),
        "its key matches no open offer",
    ),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_is_closed_at_once(victim, name, until):
    said, reason = STRANGERS[name]
    for _ in range(5):
        with closing(DataConnection(victim.host, victim.port)) as stranger:
            try:
                stranger.send(said)
            except ConnectionError:  # closed before all of it was sent
                pass
            assert stranger.rest() == b""
    text = f"closed a data connection peer=127.0.0.1 reason={reason}"
    until(lambda: victim.log.count(text) == BURST, "the log")


def test_strangers_that_come_and_go(victim, until):
    before = victim.descriptors
    for said in (b"", tcp.PREAMBLE[:3], tcp.PREAMBLE, tcp.PREAMBLE + bytes(20)):
        for _ in range(50):
            with closing(DataConnection(victim.host, victim.port)) as stranger:
                stranger.send(said)
    until(lambda: victim.log.count("reason=it ended before it was let in") == BURST, "the log")
    until(lambda: victim.descriptors <= before, "the end of all their sockets")


def test_hundreds_of_strangers_without_a_key(victim, until):
    """The permitted number are closed after KEY_S, whatever they send meanwhile, and further ones immediately."""
    before = victim.descriptors
    with ExitStack() as stack:

        def connect():
            return stack.enter_context(closing(DataConnection(victim.host, victim.port)))

        began = time.monotonic()
        dripping = connect()
        half = connect()
        half.send(tcp.PREAMBLE + bytes(limits.DATA_KEY_BYTES // 2))
        silent = [connect() for _ in range(STRANGERS_MAX - 2)]
        for turned_away in [connect() for _ in range(100)]:
            assert turned_away.rest() == b""
        text = f"closed a data connection reason={STRANGERS_MAX} others have shown no key yet"
        until(lambda: victim.log.count(text) == BURST, "the log")
        assert time.monotonic() - began < KEY_S, "this machine is too slow to tell anything"
        victim.goes_on()
        waiting = [dripping, half, *silent]
        drops = iter(tcp.PREAMBLE + bytes(limits.DATA_KEY_BYTES))
        while waiting:  # one of them sends a byte a second; the others send nothing
            ended = select.select([one.socket for one in waiting], [], [], 1.0)[0]
            for stranger in [one for one in waiting if one.socket in ended]:
                assert stranger.rest() == b""
                waiting.remove(stranger)
            if not ended and dripping in waiting:
                dripping.send(bytes([next(drops)]))
            assert time.monotonic() - began < 3 * KEY_S, f"{len(waiting)} are still connected"
        text = f"closed a data connection peer=127.0.0.1 reason=no key within {KEY_S:g} s"
        until(lambda: victim.log.count(text) == BURST, "the log")
    until(lambda: victim.descriptors <= before, "the end of all their sockets")
    # There is room for new connections again.
    with closing(MovedRank(victim.reducer.address, "after")) as rank:
        rank.send(Goodbye(0, 0))
        assert rank.error() is None


# ---- ranks with a valid key ----


def header(kind, length=0, *, op=1, dtype=1, chunk=0, epoch=1, seq=0, numel=NUMEL) -> bytes:
    return tcp.pack_header(kind, op, dtype, 0, length, chunk, 0, epoch, seq, 0, numel, 7)


LIES = {
    "a kind of the future": (header(77), MalformedFrame, "a message of kind 77"),
    "a result": (header(tcp.RESULT, CHUNK) + bytes(CHUNK), MalformedFrame, "a message of kind 3"),
    "a frame over the limit": (
        header(tcp.CONTROL, limits.REDUCER_CONTROL_BYTES_MAX + 1),
        MalformedFrame,
        f"a frame of {limits.REDUCER_CONTROL_BYTES_MAX + 1} bytes",
    ),
    "a frame of 4 GiB": (
        header(tcp.CONTROL, (1 << 32) - 1),
        MalformedFrame,
        f"a frame of {(1 << 32) - 1} bytes",
    ),
    "a chunk over the limit": (
        header(tcp.PUSH, limits.CHUNK_BYTES_MAX + 4),
        MalformedFrame,
        f"length of Push.payload is {limits.CHUNK_BYTES_MAX + 4}",
    ),
    "a chunk of 4 GiB": (
        header(tcp.PUSH, (1 << 32) - 1),
        MalformedFrame,
        f"length of Push.payload is {(1 << 32) - 1}",
    ),
    "a chunk that is too short": (
        header(tcp.PUSH, CHUNK - 4) + bytes(CHUNK - 4),
        MalformedFrame,
        f"{CHUNK - 4} bytes as chunk 0",
    ),
    "a chunk that is too long": (
        header(tcp.PUSH, CHUNK + 4) + bytes(CHUNK + 4),
        MalformedFrame,
        f"{CHUNK + 4} bytes as chunk 0",
    ),
    "an empty chunk": (header(tcp.PUSH), MalformedFrame, "0 bytes as chunk 0"),
    "a chunk that is not there": (header(tcp.PUSH, 4, chunk=9) + bytes(4), MalformedFrame, "chunk 9"),
    "a dtype of the future": (header(tcp.PUSH, 4, dtype=77) + bytes(4), MalformedFrame, "dtype is 77"),
    "an op of the future": (header(tcp.PUSH, 4, op=99) + bytes(4), MalformedFrame, "op is 99"),
    "too many elements": (header(tcp.PUSH, numel=1 << 60), MalformedFrame, f"numel is {1 << 60}"),
    "another epoch": (header(tcp.PUSH, CHUNK, epoch=9) + bytes(CHUNK), OutOfOrder, "epoch 9"),
    "no frame": (tcp.control_header(some_bytes(30)) + some_bytes(30), MalformedFrame, "30 bytes"),
    "an empty frame": (tcp.control_header(b""), MalformedFrame, "0 bytes"),
    "a second Join": (
        (lambda data: tcp.control_header(data) + data)(wire.worker_frame_to_wire(join("x"))),
        OutOfOrder,
        "second Join",
    ),
}


@pytest.fixture
def pair(victim, job):
    """Ranks 0 and 1 of a job without workers, both moved and started."""
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                closing(MovedRank(victim.reducer.address, job, rank=rank, world_size=2, credit_bytes=MIB))
            )
            for rank in range(2)
        ]
        configuration = victim.configuration(ranks[0].welcome)
        for rank in ranks:
            rank.hello(configuration)
        for rank in ranks:
            rank.read_until(Start)
        yield ranks


@pytest.mark.parametrize("name", LIES)
def test_a_lie_ends_its_job_with_a_reason_sent_to_all_ranks(victim, pair, name, until):
    data, kind, text = LIES[name]
    _, one = pair
    one.data.send(data)
    for rank in pair:
        error = rank.error()
        assert type(error) is kind
        assert str(error).startswith("rank 1 (")
        assert text in str(error)
    line = re.compile(rf"closed stream job=.+ rank=0,1 error={kind.__name__} reason=rank 1 \(")
    until(lambda: line.search(victim.log), "the log")


def test_ranks_that_push_different_collectives(pair):
    """Disagreeing ranks are not malformed input, and all of them get the error."""
    for rank, numel in zip(pair, (NUMEL, 2 * NUMEL), strict=True):
        what = Collective(ReduceOp.SUM, DType.FLOAT32, numel, 7)
        rank.send(Push(1, 0, 0, what, 0, memoryview(bytes(CHUNK))))
    for rank in pair:
        assert type(rank.error()) is CollectiveMismatch


@pytest.mark.parametrize("sent", [1, tcp.HEADER_BYTES - 1, tcp.HEADER_BYTES, tcp.HEADER_BYTES + CHUNK // 2])
@pytest.mark.parametrize("ends", ["half", "whole"])
def test_a_connection_that_ends_mid_frame(victim, pair, sent, ends, until):
    zero, one = pair
    one.data.send((header(tcp.PUSH, CHUNK) + bytes(CHUNK))[:sent])
    if ends == "half":
        one.data.socket.shutdown(1)
        assert one.error() is None
    else:
        one.data.close()
    while Presence.LOST not in [peer.presence for peer in zero.read_until(Peers).peers]:
        pass
    until(lambda: "a data connection broke: " in victim.log, "the log")


def test_a_rank_that_only_pushes(victim, pair, until):
    """The rank never reads a result. Its outbox has a limit, up to which the other rank gets its results."""
    zero, one = pair
    payload = memoryview(bytes(CHUNK))
    for seq in range(1000):
        for rank in pair:
            try:
                rank.send(Push(1, seq, 0, WHAT, 0, payload))
            except ConnectionError:
                assert rank is one
        while not isinstance(frame := zero.read(), Result | Abort):
            pass
        if isinstance(frame, Abort):
            assert "bytes wait unread, the limit is" in frame.message
            break
        assert frame.seq == seq
    else:
        pytest.fail(f"{1000 * CHUNK >> 20} MiB of results wait for a rank that does not read")
    until(lambda: "bytes wait unread, the limit is" in victim.log, "the log")
    assert victim.resident_bytes - victim._resident_bytes < GROWTH_BYTES_MAX


def test_a_rank_that_pushes_more_than_its_credit_and_reads_nothing(victim, pair, until):
    _, one = pair
    payload = memoryview(bytes(CHUNK))
    try:
        for seq in range(200):  # rank 0 pushes nothing, so all these pushes would wait
            one.send(Push(1, seq, 0, WHAT, 0, payload))
    except ConnectionError:
        pass
    until(lambda: f"its credit is {MIB}" in victim.log, "the log")
    assert victim.resident_bytes - victim._resident_bytes < GROWTH_BYTES_MAX


def test_a_rank_that_goes_silent(victim, pair, until):
    """The rank is late, not lost, so its stream stays open. It costs the reducer its credit, and others nothing."""
    zero, one = pair
    payload = memoryview(bytes(CHUNK))
    for seq in range(MIB // CHUNK):
        zero.send(Push(1, seq, 0, WHAT, 0, payload))
    for held in range(100):
        zero.send(Ack(held))
    victim.goes_on()
    assert "closed" not in victim.log
    assert victim.resident_bytes - victim._resident_bytes < GROWTH_BYTES_MAX
    for seq in range(MIB // CHUNK):
        one.send(Push(1, seq, 0, WHAT, 0, payload))
    for seq in range(MIB // CHUNK):
        for rank in pair:
            assert rank.read_until(Result).seq == seq


def test_memory_does_not_grow_with_the_number_of_lies(victim, job, until):
    """Thirty streams end with 4 MiB each in flight."""

    def lie(number: int) -> None:
        with closing(MovedRank(victim.reducer.address, f"{job}-{number}", credit_bytes=8 * MIB)) as rank:
            rank.started(
                Configuration(ID, 1, 4 * MIB, (Member(victim.reducer.address, rank.welcome.incarnation),))
            )
            rank.data.send(header(tcp.PUSH, 4 * MIB, numel=MIB) + bytes(4 * MIB - 1))
            rank.data.socket.shutdown(1)
            assert rank.error() is None

    for number in range(5):
        lie(number)
    before = victim.resident_bytes
    descriptors = victim.descriptors
    for number in range(5, 30):
        lie(number)
    assert victim.resident_bytes - before < 8 * MIB
    until(lambda: victim.descriptors <= descriptors, "the end of their sockets")
