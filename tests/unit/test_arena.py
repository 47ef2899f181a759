"""Host memory is used again, and no more of it is kept than was in use."""

from worker_plugin.arena import PEAK_TAKES, ArenaPool


def test_a_buffer_is_used_again_for_its_size():
    pool = ArenaPool()
    first = pool.take(4096)
    pool.give(first)
    assert pool.take(1024) is not first
    assert pool.take(4096) is first


def test_the_pool_keeps_no_more_than_was_in_use_at_once():
    pool = ArenaPool()
    for nbytes in range(1000, 1100):  # a user who comes with a new size each time
        pool.give(pool.take(nbytes))
    assert sum(buffer.numel() for buffer in pool._free) <= 1099


def test_a_peak_is_forgotten_in_time():
    pool = ArenaPool()
    for buffer in [pool.take(1 << 20) for _ in range(4)]:
        pool.give(buffer)
    for _ in range(2 * PEAK_TAKES):
        pool.give(pool.take(1024))
    assert sum(buffer.numel() for buffer in pool._free) <= 1024
