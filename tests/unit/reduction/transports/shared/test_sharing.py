"""Two connections of one host that read each other's memory: shared, hidden, refused and remaining memory."""

import array
import asyncio
import ctypes
import errno
import gc
import mmap
import os
import socket
from contextlib import contextmanager

import pytest
from reduction.errors import MalformedFrame
from reduction.limits import CHUNK_BYTES_MAX, DESCRIPTORS_WAITING_MAX
from reduction.transports import tcp
from reduction.transports.shared import OwnMemory, PeerMemory, Sharing, address_of, copy, own, peer
from reduction.transports.shared.own import SLAB_BYTES
from reduction.transports.shared.sharing import _PLACE, PLACE_BYTES
from support.network.tcp_pair import Recorder, on_loop, unix_pair
from support.processes.shortages import no_descriptors

PAGE = mmap.PAGESIZE
# From linux/fcntl.h.
SIZE, FUTURE_WRITE = 0x2 | 0x4, 0x10


class Side(Recorder):
    """One end: it records what arrives, and knows the other end's memory."""

    def __init__(self, sock):
        super().__init__()
        sock.setblocking(False)
        self.sock = sock
        self.connection = tcp.Connection(sock, asyncio.get_running_loop(), self)
        self.own = OwnMemory()
        self.own.want()
        self.sharing = Sharing(self.connection, self.own)
        self.connection.start()

    def payload_memory(self, header):
        memory = self.sharing.memory_for(header)
        return super().payload_memory(header) if memory is None else memory

    def on_message(self, header, payload):
        super().on_message(header, payload)
        if header.kind in (tcp.SHOW, tcp.HIDE):
            self.sharing.on_message(header)

    def push(self, buffer, seq=0):
        """Send a message whose payload lies in a buffer."""
        place = self.sharing.place(buffer.data)
        header = tcp.pack_header(tcp.PUSH, 0, 0, tcp.IS_PLACE, len(place), 0, 0, 0, seq, 0, 0, 0)
        self.connection.send(header, place)


@contextmanager
def sides():
    one, other = (Side(sock) for sock in unix_pair())
    try:
        yield one, other
    finally:
        for side in (one, other):
            side.connection.close()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@on_loop
async def test_a_payload_is_read_in_place():
    with sides() as (one, other):
        buffers = [one.own.allocate(1000) for _ in range(3)]
        for number, buffer in enumerate(buffers):
            buffer[:] = number
            one.push(buffer, number)
        await other.until(lambda side: len(side.messages) == 4)
        kinds = [header.kind for header, _ in other.messages]
        assert kinds == [tcp.SHOW, tcp.PUSH, tcp.PUSH, tcp.PUSH], "one region, shown once"
        seen = [other.sharing.payload(payload) for header, payload in other.messages[1:]]
        assert [bytes(payload) for payload in seen] == [bytes([number] * 1000) for number in range(3)]
        assert one.connection.queued_bytes == 0


@on_loop
async def test_a_region_that_has_ended_is_hidden():
    with sides() as (one, other):
        first, second = (one.own.allocate(SLAB_BYTES) for _ in range(2))
        one.push(first)
        one.push(second)
        del first
        gc.collect()
        one.push(second)
        await other.until(lambda side: len(side.messages) == 6)
        assert [header.kind for header, _ in other.messages][4] == tcp.HIDE
        number = other.messages[0][0].chunk
        with pytest.raises(MalformedFrame, match="unknown"):
            other.sharing.payload(memoryview(_PLACE.pack(number, 1, 0)))


@on_loop
async def test_a_place_is_checked():
    with sides() as (one, _):
        assert one.sharing.place(memoryview(bytes(10))) is None, "it is in no region"
        assert one.sharing.place(memoryview(b"")) is None
        with pytest.raises(MalformedFrame, match="length of a shared payload"):
            one.sharing.payload(memoryview(_PLACE.pack(1, CHUNK_BYTES_MAX + 1, 0)))
        for header in (tcp.counter_header(PLACE_BYTES + 1), tcp.region_header(tcp.SHOW, 1)):
            parsed = tcp.parse_header(header)
            if parsed.kind == tcp.SHOW:
                parsed = parsed._replace(length=1)
            with pytest.raises(MalformedFrame, match="bytes follow instead of"):
                one.sharing.memory_for(parsed)
        assert one.sharing.memory_for(tcp.parse_header(tcp.control_header(bytes(5)))) is None
        with pytest.raises(MalformedFrame, match="without the descriptor"):
            one.sharing.on_message(tcp.parse_header(tcp.region_header(tcp.SHOW, 1)))


@pytest.mark.parametrize("fillers", [[300_000], [1000] * 200], ids=["a full socket", "many buffers"])
@on_loop
async def test_descriptors_wait_for_room_in_the_socket_and_keep_their_order(fillers):
    with sides() as (one, other):
        for side in (one, other):
            side.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        for size in fillers:
            filler = memoryview(bytes(size))
            one.connection.send(tcp.control_header(filler), filler)
        assert one.connection.queued_bytes > 0, "the socket is full"
        buffers = [one.own.allocate(SLAB_BYTES) for _ in range(5)]
        for number, buffer in enumerate(buffers):
            buffer[:10] = number
            one.push(buffer[:10], number)
        await other.until(lambda side: len(side.messages) == 10 + len(fillers))
        places = [payload for header, payload in other.messages if header.kind == tcp.PUSH]
        assert [bytes(other.sharing.payload(place))[0] for place in places] == [0, 1, 2, 3, 4]


@on_loop
async def test_an_ended_connection_accepts_and_keeps_no_descriptor():
    with sides() as (one, other):
        buffer = one.own.allocate(SLAB_BYTES)
        region, _ = one.own.find(address_of(buffer.data))
        before = descriptors()
        one.connection.send_descriptor(tcp.control_header(b""), region)
        await other.until(lambda side: side.messages)
        assert descriptors() == before + 1, "it came, and nobody took it"
        other.connection.close()
        assert descriptors() == before - 1, "with the socket"
        one.connection.finish()
        one.connection.send_descriptor(tcp.region_header(tcp.SHOW, 2), region)
        assert one.connection.queued_bytes == 0


@on_loop
async def test_too_many_descriptors_end_the_connection():
    sock, bare = unix_pair()
    side = Side(sock)
    with bare:
        for count in (DESCRIPTORS_WAITING_MAX, 1):
            files = [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
            bare.sendmsg([tcp.control_header(b"")], [rights])
            for file in files:
                os.close(file)
        error = await side.end()
    assert "descriptors wait for their messages" in str(error)


def made(nbytes=4 * PAGE, *, allocated=4 * PAGE, behind=0, seals=SIZE | FUTURE_WRITE):
    """Return the descriptor of a region of `nbytes`, with memory for `allocated` of them."""
    descriptor = os.memfd_create("made", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, nbytes)
    if allocated:
        os.posix_fallocate(descriptor, 0, allocated)
    if behind:  # FALLOC_FL_KEEP_SIZE: st_blocks also counts memory behind the end
        fallocate = ctypes.CDLL(None).fallocate
        fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
        assert fallocate(descriptor, 1, nbytes, behind) == 0
    own.fcntl.fcntl(descriptor, 1033, seals)
    return descriptor


def test_a_peers_regions_are_limited_in_number_and_never_empty(monkeypatch):
    known = PeerMemory()
    with pytest.raises(MalformedFrame, match="a region of 0 bytes"):
        known.add(1, made(0, allocated=0))
    monkeypatch.setattr(peer, "REGIONS_MAX", 1)
    known.add(1, made())
    with pytest.raises(MalformedFrame, match="there are more than 1"):
        known.add(2, made())


@pytest.mark.parametrize(
    "holes", [{"allocated": 0}, {"allocated": 3 * PAGE}, {"allocated": PAGE, "behind": 3 * PAGE}]
)
def test_a_region_with_holes_is_refused_and_not_charged(holes):
    charged = []
    known = PeerMemory(charged.append)
    before = descriptors()
    with pytest.raises(tcp.CannotShare, match=f"a region of {4 * PAGE} bytes has .* the holes"):
        known.add(1, made(**holes))
    assert (charged, descriptors()) == ([], before)
    known.add(1, made())
    assert charged == [4 * PAGE]


@pytest.mark.parametrize("seals", [0, SIZE, FUTURE_WRITE, 0x2 | FUTURE_WRITE, 0x4 | FUTURE_WRITE])
def test_a_region_that_could_get_holes_later_is_refused(seals):
    with pytest.raises(MalformedFrame, match="not sealed"):
        PeerMemory().add(1, made(seals=seals))


def test_our_own_regions_have_no_holes():
    memory = OwnMemory()
    memory.want()
    region, _ = memory.find(address_of(memory.allocate(100).data))
    assert os.fstat(region.descriptor).st_blocks * 512 == SLAB_BYTES


def test_a_region_is_charged_for_as_long_as_it_is_mapped():
    charged = []
    known = PeerMemory(charged.append)
    known.add(1, made())
    view = known.view(1, 0, 8)
    known.forget(1)
    gc.collect()
    assert charged == [4 * PAGE], "it is still in use"
    del view
    gc.collect()
    assert charged == [4 * PAGE, -4 * PAGE]


def test_a_region_that_exceeds_the_budget_is_refused_before_it_is_mapped(monkeypatch):
    def charge(nbytes):
        raise tcp.CannotShare("no more")

    monkeypatch.setattr(peer.mmap, "mmap", lambda *_: pytest.fail("it was mapped"))
    before = descriptors()
    with pytest.raises(tcp.CannotShare, match="no more"):
        PeerMemory(charge).add(1, made())
    assert descriptors() == before


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EMFILE, tcp.CannotShare), (errno.ENOMEM, tcp.CannotShare), (errno.EACCES, MalformedFrame)],
)
def test_a_region_that_cannot_be_mapped_is_the_peers_fault_unless_a_resource_is_short(
    monkeypatch, number, kind
):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    before = descriptors()
    monkeypatch.setattr(peer.mmap, "mmap", refuse)
    charged = []
    with pytest.raises(kind, match=f"region 1 cannot be mapped: .*{os.strerror(number)}"):
        PeerMemory(charged.append).add(1, made())
    assert descriptors() == before
    assert charged == [4 * PAGE, -4 * PAGE]


@on_loop
async def test_running_out_of_descriptors_on_receipt_is_not_the_peers_fault():
    with sides() as (one, other):
        buffer = one.own.allocate(SLAB_BYTES)
        before = descriptors()
        with no_descriptors(0):
            one.push(buffer)
            error = await other.end()
        assert type(error) is tcp.CannotShare
        assert "ulimit -n" in str(error)
        assert descriptors() < before, "nothing came, and the connection's own is closed"


@on_loop
async def test_a_descriptor_that_cannot_be_sent_is_nobodys_fault_either():
    class Refusing(socket.socket):
        """Refuses descriptors as unix(7) does when too many are in flight."""

        def sendmsg(self, buffers, ancillary=(), flags=0):
            if ancillary:
                raise OSError(errno.ETOOMANYREFS, "Too many references: cannot splice")
            return super().sendmsg(buffers, ancillary, flags)

    ours, theirs = unix_pair()
    one = Side(Refusing(fileno=ours.detach()))
    with theirs:
        one.push(one.own.allocate(SLAB_BYTES))
        error = await one.end()
    assert type(error) is tcp.CannotShare
    assert "a region cannot be shown" in str(error)


def test_a_copy_is_independent_of_its_source():
    payload, to = bytearray(b"payload"), memoryview(bytearray(7))
    copy(memoryview(payload).toreadonly(), to)
    payload[:] = b"changed"
    assert bytes(to) == b"payload"
