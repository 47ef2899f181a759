"""Memory that others may read: its allocation, its seals, and the behaviour where it is not allowed."""

import gc
import mmap
import os
import weakref

import numpy as np
import pytest
import torch
from reduction.errors import MalformedFrame
from reduction.transports.shared import OwnMemory, PeerMemory, address_of, own
from reduction.transports.shared.own import SLAB_BYTES


@pytest.fixture
def memory():
    made = OwnMemory()
    made.want()
    return made


def place(memory, buffer):
    return memory.find(address_of(buffer.data))


def test_memory_is_ordinary_until_sharing_is_wanted():
    memory = OwnMemory()
    buffer = memory.allocate(100)
    assert place(memory, buffer) is None
    assert memory.suits(address_of(buffer.data))
    memory.want()
    assert not memory.suits(address_of(buffer.data))
    assert place(memory, memory.allocate(100)) is not None


def test_small_buffers_share_a_region_and_large_ones_have_their_own(memory):
    small = [memory.allocate(1000) for _ in range(3)]
    large = memory.allocate(SLAB_BYTES)
    found = [place(memory, buffer) for buffer in small]
    assert len({region.number for region, _ in found}) == 1
    assert [offset for _, offset in found] == [0, 1024, 2048]
    region, offset = place(memory, large)
    assert (offset, region.nbytes) == (0, SLAB_BYTES)
    assert region.number != found[0][0].number
    assert place(memory, large[-1:])[1] == SLAB_BYTES - 1
    for buffer in (*small, large):
        buffer[:] = 7


def test_a_region_ends_with_its_last_buffer(memory):
    buffer = memory.allocate(SLAB_BYTES)
    region, _ = place(memory, buffer)
    number, descriptor, address = region.number, region.descriptor, address_of(buffer.data)
    part = torch.from_numpy(buffer)[10:20]
    del region, buffer
    gc.collect()
    assert memory.has(number), "a view of it is in use"
    before = memory.generation
    del part
    gc.collect()
    assert not memory.has(number)
    assert memory.find(address) is None
    assert memory.generation == before + 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_others_cannot_write_or_shrink_a_region(memory):
    region, _ = place(memory, memory.allocate(SLAB_BYTES))
    with pytest.raises(PermissionError):
        os.ftruncate(region.descriptor, 100)
    with pytest.raises(PermissionError):
        mmap.mmap(region.descriptor, SLAB_BYTES)
    again = os.open(f"/proc/self/fd/{region.descriptor}", os.O_RDWR)
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(again, SLAB_BYTES)
    finally:
        os.close(again)


@pytest.mark.parametrize("what", ["memfd_create", "posix_fallocate"])
def test_if_sharing_is_refused_ordinary_memory_is_used_and_the_reason_is_kept(monkeypatch, what):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    memory = OwnMemory()
    memory.want()
    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(os, what, refuse)
        assert place(memory, memory.allocate(100)) is None
    assert os.listdir("/proc/self/fd") == before
    assert "Operation not permitted" in memory.refusal
    assert place(memory, memory.allocate(100)) is None, "nobody has asked again"
    memory.want()
    assert place(memory, memory.allocate(100)) is not None, "the next peer may have more luck"


def test_unclosed_memory_ends_with_its_owner_and_its_buffers():
    other = OwnMemory()
    other.want()
    buffer = other.allocate(100)
    region = weakref.ref(other.find(address_of(buffer.data))[0])
    del other
    gc.collect()
    assert region() is not None, "the buffer is still in use"
    del buffer
    gc.collect()
    assert region() is None


def test_beyond_the_region_limit_ordinary_memory_is_used(memory, monkeypatch):
    monkeypatch.setattr(own, "OWN_REGIONS_MAX", 3)
    buffers = [memory.allocate(SLAB_BYTES) for _ in range(5)]
    assert [place(memory, buffer) is not None for buffer in buffers] == [True] * 3 + [False] * 2
    assert memory.is_wanted
    del buffers[0]
    gc.collect()
    assert place(memory, memory.allocate(SLAB_BYTES)) is not None


def test_a_peer_reads_what_is_written_and_nothing_else(memory):
    buffer = memory.allocate(1000)
    region, offset = place(memory, buffer)
    peer = PeerMemory()
    peer.add(5, os.dup(region.descriptor))
    seen = peer.view(5, offset, 1000)
    buffer[:] = np.arange(1000, dtype=np.uint8)
    assert np.array_equal(np.frombuffer(seen, np.uint8), buffer)
    assert seen.readonly
    for number, start, nbytes in ((5, SLAB_BYTES - 10, 11), (5, 1 << 63, 1), (6, 0, 1)):
        with pytest.raises(MalformedFrame, match="region"):
            peer.view(number, start, nbytes)
    peer.forget(5)
    with pytest.raises(MalformedFrame, match="unknown"):
        peer.view(5, 0, 1)
    assert np.array_equal(np.frombuffer(seen, np.uint8), buffer), "what is in use stays"


def test_a_peer_accepts_only_sealed_memory_and_each_region_once(memory, tmp_path):
    peer = PeerMemory()
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, 4096)
    pipe, other = os.pipe()
    os.close(other)
    region, _ = place(memory, memory.allocate(10))
    peer.add(1, os.dup(region.descriptor))
    again = os.dup(region.descriptor)
    for number, descriptor, text in (
        (2, file, "not sealed"),
        (2, pipe, "not sealed"),
        (1, again, "already exists"),
    ):
        with pytest.raises(MalformedFrame, match=text):
            peer.add(number, descriptor)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_nothing_is_kept_after_closing(memory):
    region, _ = place(memory, memory.allocate(10))
    number = region.number
    del region
    gc.collect()
    assert memory.has(number), "there is room in it for more"
    memory.close()
    gc.collect()
    assert not memory.has(number)
    assert place(memory, memory.allocate(10)) is None


def test_an_adopted_region_is_writable_only_by_its_lender_and_its_adopter():
    lender, helper = OwnMemory(is_lent=True), OwnMemory()
    lent = lender.allocate(SLAB_BYTES)
    region, offset = place(lender, lent)
    assert offset == 0
    adopted = helper.adopt(os.dup(region.descriptor))
    lent[10], adopted[20] = 1, 2
    assert (adopted[10], lent[20]) == (1, 2)
    with pytest.raises(PermissionError):
        mmap.mmap(region.descriptor, SLAB_BYTES)
    found, offset = place(helper, adopted[100:])
    assert (found.nbytes, offset) == (SLAB_BYTES, 100)
    peer = PeerMemory()
    peer.add(1, os.dup(found.descriptor))
    assert peer.view(1, 20, 1)[0] == 2
    with pytest.raises(PermissionError):
        os.ftruncate(found.descriptor, 0)


def test_an_ordinary_file_cannot_be_adopted(tmp_path):
    (tmp_path / "file").write_bytes(b"12345678")
    descriptor = os.open(tmp_path / "file", os.O_RDWR)
    with pytest.raises(OSError):  # noqa: PT011  it has no seals
        OwnMemory().adopt(descriptor)
    with pytest.raises(OSError):  # noqa: PT011  it was closed
        os.fstat(descriptor)
