"""The queue for a peer that reads slowly: presence reports do not pile up, and none is lost."""

import asyncio
import socket

from reduction import wire
from reduction.limits import UNREAD_NEWS_BYTES
from reduction.model import Join, Peer, Peers, Presence, Result, Start, Welcome
from reduction.transports import tcp
from reduction.transports.tcp import PathState

from reducer.core.fair_shares import Account
from reducer.core.totals import JobLabel
from reducer.engine import Engine as RealEngine
from reducer.engine import Owner
from reducer.transports import outbox
from reducer.transports.outbox import Encoder, Outbox

P, L = Presence.PRESENT, Presence.LOST


class Stream:
    """The engine's side of a stream."""

    def __init__(self):
        self.rejected = []

    def reject(self, error):
        self.rejected.append(error)

    def close(self):
        pass

    def pace(self, connection):
        pass


class Engine:
    def __init__(self):
        self.stream = Stream()

    def open(self, sink, peer):
        return self.stream


def peer(rank, presence=P, streams=1):
    return Peer(rank, bytes([rank]) * 16, "h" * 200, presence, streams)


def result(nbytes):
    return Result(1, 0, 0, 0, memoryview(bytes(nbytes)))


def frames(box):
    """Return the frames that wait for the call."""
    taken = [wire.reducer_frame_from_wire(box._frames.popleft()) for _ in range(len(box._frames))]
    box._queued_bytes = 0
    return taken


def make_box():
    """Return the outbox of a stream that has been welcomed, and the engine's side of it."""
    engine = Engine()
    box = Outbox(engine, Encoder(), None)
    box.on_frame(Welcome(bytes(16), 1 << 20))
    return box, engine.stream


async def test_reports_go_at_once_to_a_peer_that_reads():
    box, _ = make_box()
    box.on_frame(Peers((peer(1),), False))
    box.on_frame(Peers((peer(1, L),), False))
    assert frames(box)[1:] == [Peers((peer(1),), False), Peers((peer(1, L),), False)]


async def test_with_much_unread_only_the_newest_state_of_each_rank_is_held_back(monkeypatch):
    monkeypatch.setattr(outbox, "HELD_BACK_S", 0.001)
    box, stream = make_box()
    box.on_frame(result(UNREAD_NEWS_BYTES))
    queued = box._queued_bytes
    for streams in range(1, 20_000):  # a rank that keeps joining and leaving
        box.on_frame(Peers((peer(1, L, streams),), False))
        box.on_frame(Peers((peer(1, P, streams + 1),), False))
    box.on_frame(Peers((peer(3),), False))
    box.on_frame(Peers((), True))
    box.on_frame(Start(2, 0))
    assert box._queued_bytes < queued + 100
    await asyncio.sleep(0.01)
    assert box._queued_bytes < queued + 100, "the peer has read nothing yet"
    assert [type(frame) for frame in frames(box)] == [Welcome, Result, Start]
    box.on_frame(Peers((peer(4),), True))
    assert frames(box) == [], "a later report does not overtake those that wait"
    await asyncio.sleep(0.05)
    assert frames(box) == [Peers((peer(1, P, 20_000), peer(3), peer(4)), True)]
    box.on_frame(Peers((peer(3, L),), True))
    assert frames(box) == [Peers((peer(3, L),), True)], "and everything is as before"
    assert stream.rejected == []


async def test_an_ended_stream_gets_no_reports(monkeypatch):
    monkeypatch.setattr(outbox, "HELD_BACK_S", 0.001)
    box, _ = make_box()
    box.on_frame(result(UNREAD_NEWS_BYTES))
    box.on_frame(Peers((peer(1),), False))
    frames(box)
    box.on_closed(None)
    await asyncio.sleep(0.01)
    assert frames(box) == []


async def test_results_that_nobody_reads_still_end_a_stream():
    box, stream = make_box()
    while not stream.rejected and box._queued_bytes < 1 << 26:
        box.on_frame(result(1 << 20))
        await asyncio.sleep(0)
    assert "bytes wait unread, the limit is" in str(stream.rejected[0])


# ---- the path to the worker's host ----


def moved(engine, pair):
    """Return the outbox of a rank whose stream has moved to one end of a socket pair."""
    box = Outbox(engine, Encoder(), None)
    box.receive(Join("job", b"job".ljust(16), 0, 1, bytes(16), "host", 0, 1 << 16))
    pair[0].setblocking(False)
    box._move(pair[0])
    return box


async def test_losses_are_counted_for_the_host_and_never_fall(monkeypatch):
    known = [PathState(0.25, 5, 0), PathState(0.5, 6, 3), PathState(0.5, 9, 2)]
    monkeypatch.setattr(tcp.Connection, "path", property(lambda _: known[0]))
    with socket.create_server(("127.0.0.1", 0)) as server:
        pair = socket.create_connection(server.getsockname()), server.accept()[0]
    engine = RealEngine(memory_limit_bytes=1 << 30)
    box = moved(engine, pair)
    [totals] = engine.jobs.totals.by_label.values()
    assert totals.retransmits == {"host": 0}, "the host has a series from the start"
    assert box.path() == (Owner(JobLabel("job", ""), "host", totals, Account("job")), 0.25, 5)
    del known[0]
    assert box.path()[1:] == (0.5, 5)
    del known[0]
    box.drop()
    assert box.path() is None
    assert totals.retransmits == {"host": 7}
    pair[1].close()


async def test_within_a_host_there_is_no_path():
    pair = socket.socketpair()
    engine = RealEngine(memory_limit_bytes=1 << 30)
    box = moved(engine, pair)
    [totals] = engine.jobs.totals.by_label.values()
    assert box.path() is None
    assert set(totals.traffic) == {"grpc", "shared_memory"}
    box.drop()
    assert totals.retransmits == {}
    pair[1].close()
