"""What waits for a peer that reads slowly: reports of who is there do not pile up, and none is lost."""

import asyncio

from reduction import wire
from reduction.limits import UNREAD_NEWS_BYTES
from reduction.model import Peer, Peers, Presence, Result, Start, Welcome

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


class Engine:
    def __init__(self):
        self.stream = Stream()

    def open(self, sink):
        return self.stream


def peer(rank, presence=P, streams=1):
    return Peer(rank, bytes([rank]) * 16, "h" * 200, presence, streams)


def result(nbytes):
    return Result(1, 0, 0, 0, memoryview(bytes(nbytes)))


def frames(box):
    """Take what waits for the call."""
    taken = [wire.reducer_frame_from_wire(box._frames.popleft()) for _ in range(len(box._frames))]
    box._queued_bytes = 0
    return taken


def run(test):
    async def scene():
        engine = Engine()
        box = Outbox(engine, Encoder(), None)
        box.on_frame(Welcome(bytes(16), 1 << 20))
        await test(box, engine.stream)

    asyncio.run(scene())


def test_reports_go_at_once_to_a_peer_that_reads():
    async def test(box, _):
        box.on_frame(Peers((peer(1),), False))
        box.on_frame(Peers((peer(1, L),), False))
        assert frames(box)[1:] == [Peers((peer(1),), False), Peers((peer(1, L),), False)]

    run(test)


def test_while_much_is_unread_the_newest_state_of_each_rank_waits(monkeypatch):
    monkeypatch.setattr(outbox, "NEWS_S", 0.001)

    async def test(box, stream):
        box.on_frame(result(UNREAD_NEWS_BYTES))
        queued = box._queued_bytes
        for streams in range(1, 20_000):  # a rank that comes and goes, all the time
            box.on_frame(Peers((peer(1, L, streams),), False))
            box.on_frame(Peers((peer(1, P, streams + 1),), False))
        box.on_frame(Peers((peer(3),), False))
        box.on_frame(Peers((), True))
        box.on_frame(Start(2, 0))
        assert box._queued_bytes < queued + 100
        await asyncio.sleep(0.01)
        assert box._queued_bytes < queued + 100, "the peer has read nothing yet"
        assert [type(frame) for frame in frames(box)] == [Welcome, Result, Start]
        await asyncio.sleep(0.05)
        assert frames(box) == [Peers((peer(1, P, 20_000), peer(3)), True)]
        box.on_frame(Peers((peer(3, L),), True))
        assert frames(box) == [Peers((peer(3, L),), True)], "and everything is as before"
        assert stream.rejected == []

    run(test)


def test_a_later_report_does_not_overtake_one_that_waits():
    async def test(box, _):
        box.on_frame(result(UNREAD_NEWS_BYTES))
        box.on_frame(Peers((peer(1),), False))
        frames(box)
        box.on_frame(Peers((peer(2),), False))
        assert frames(box) == []
        box._send_news()
        assert frames(box) == [Peers((peer(1), peer(2)), False)]

    run(test)


def test_a_stream_that_has_ended_is_told_nothing():
    async def test(box, _):
        box.on_frame(result(UNREAD_NEWS_BYTES))
        box.on_frame(Peers((peer(1),), False))
        frames(box)
        box.on_closed(None)
        box._send_news()
        assert frames(box) == []

    run(test)


def test_results_that_nobody_reads_still_end_a_stream():
    async def test(box, stream):
        while not stream.rejected and box._queued_bytes < 1 << 26:
            box.on_frame(result(1 << 20))
            await asyncio.sleep(0)
        assert "bytes wait unread, the limit is" in str(stream.rejected[0])

    run(test)
