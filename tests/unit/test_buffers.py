"""The buffer pool: reuse by exact size, and a bound on what is kept."""

import pytest

from reducer.buffers import KEPT_BYTES_MAX, BufferPool


def test_a_buffer_has_the_size_asked_for():
    assert [BufferPool().take(nbytes).nbytes for nbytes in (0, 1, 4096)] == [0, 1, 4096]


def test_a_returned_buffer_is_taken_again_for_the_same_size_only():
    pool = BufferPool()
    buffer = pool.take(16)
    pool.give(buffer)
    assert pool.take(8) is not buffer
    assert pool.take(16) is buffer
    assert pool.take(16) is not buffer


def test_kept_bytes_count_what_is_in_the_pool():
    pool = BufferPool()
    small, large = pool.take(10), pool.take(100)
    assert pool.kept_bytes == 0
    pool.give(small)
    pool.give(large)
    assert pool.kept_bytes == 110
    pool.take(10)
    assert pool.kept_bytes == 100


def test_sizes_that_nobody_takes_any_more_make_room_for_new_ones():
    pool = BufferPool(kept_bytes_max=100)
    old = pool.take(60)
    new = pool.take(50)
    pool.give(old)
    pool.give(new)
    assert pool.kept_bytes == 50
    assert pool.take(60) is not old
    assert pool.take(50) is new


@pytest.mark.parametrize("sizes", [(40, 40, 40), (100,), (100, 1), (101,), (1, 101)])
def test_no_more_than_the_bound_is_kept(sizes):
    pool = BufferPool(kept_bytes_max=100)
    for nbytes in sizes:
        pool.give(pool.take(nbytes))
        pool.give(BufferPool().take(nbytes))
    assert pool.kept_bytes <= pool.kept_bytes_max


def test_the_default_bound():
    assert BufferPool().kept_bytes_max == KEPT_BYTES_MAX == 64 << 20
