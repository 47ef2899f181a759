"""Host memory is reused; property/test_reuse.py tests which of it is kept."""

import pytest
import torch

from worker_plugin.tensors.arena import ArenaPool


def test_a_buffer_is_reused_for_its_size():
    pool = ArenaPool()
    first, other = pool.take(4096), pool.take(1024)
    pool.give(first)
    pool.give(other)
    assert pool.take(1024) is other
    assert pool.take(4096) is first


def test_a_buffer_is_bytes_of_the_size_asked_for():
    for nbytes in (0, 1, 4096):
        buffer = ArenaPool().take(nbytes)
        assert (buffer.dtype, buffer.shape) == (torch.uint8, (nbytes,))


def test_bytes_in_use_and_kept_are_counted():
    pool = ArenaPool()
    buffers = [pool.take(100), pool.take(10)]
    assert (pool.used_bytes, pool.kept_bytes) == (110, 0)
    pool.give(buffers[0])
    assert (pool.used_bytes, pool.kept_bytes) == (10, 100)


def test_a_failed_allocation_does_not_count_as_in_use():
    def refuse(nbytes):
        raise MemoryError(f"{nbytes} bytes")

    pool = ArenaPool(refuse)
    with pytest.raises(MemoryError, match="4096 bytes"):
        pool.take(4096)
    assert pool.used_bytes == 0
