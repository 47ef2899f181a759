"""The free buffers that a pool keeps, beyond tests/property/test_reuse.py: eviction order, and windows."""

from reduction.process.reuse import PATTERN_TAKES, PATTERN_TIMES, PEAK_TAKES, Shelf

BIG, SMALL = 1000, 1


class Pool:
    """A shelf, and the number of buffers of each size that were allocated."""

    def __init__(self, **arguments):
        self.shelf = Shelf(**arguments)
        self.allocated = []

    def take(self, nbytes):
        buffer = self.shelf.take(nbytes)
        if buffer is None:
            self.allocated.append(nbytes)
            buffer = [nbytes, len(self.allocated)]
        assert buffer[0] == nbytes
        return buffer

    def give(self, buffer):
        self.shelf.give(buffer[0], buffer)

    def use(self, *sizes):
        """Use buffers of these sizes at the same time, then release them; return how many were allocated for that."""
        before = len(self.allocated)
        for buffer in [self.take(nbytes) for nbytes in sizes]:
            self.give(buffer)
        return len(self.allocated) - before

    @property
    def bytes(self):
        return self.shelf.used_bytes + self.shelf.free_bytes


# ---- buffers ----


def test_of_two_free_buffers_the_last_used_is_reused_first():
    pool = Pool()
    first, second = pool.take(BIG), pool.take(BIG)
    pool.give(first)
    pool.give(second)
    assert pool.take(BIG) is second  # it may still be in the cache; the other one may be evicted in time
    assert pool.take(BIG) is first


def test_a_failed_allocation_does_not_count_as_used():
    pool = Pool()
    pool.shelf.take(BIG)
    pool.shelf.cancel(BIG)
    assert pool.shelf.used_bytes == 0


def test_a_cleared_shelf_forgets_everything_but_what_is_in_use():
    pool = Pool()
    kept = pool.take(SMALL)
    for _ in range(3):
        pool.use(BIG)
        pool.use(SMALL)
    pool.shelf.clear()
    assert (pool.shelf.used_bytes, pool.shelf.free_bytes) == (SMALL, 0)
    pool.give(kept)
    assert pool.use(SMALL) == 0
    assert pool.use(BIG) == 1
    assert pool.bytes == BIG, "no pattern is known any more"


# ---- rule 1: sizes used at the same time ----


def test_the_buffer_unused_for_longest_is_freed_first():
    pool = Pool()
    pool.use(10, 20, 30)
    pool.use(10)
    pool.use(5)  # 5 bytes more than the peak in use
    pool.allocated.clear()
    assert pool.use(10) == pool.use(30) == pool.use(5) == 0
    assert pool.use(20) == 1


def test_room_is_made_before_a_buffer_is_allocated():
    """DDP's first step has the whole model in one bucket. The second has several buckets with the same total size."""
    pool = Pool()
    pool.use(BIG, BIG)
    step = []
    for _ in range(20):
        step.append(pool.take(BIG // 10))
        assert pool.bytes <= 2 * BIG
    for buffer in step:
        pool.give(buffer)
    assert pool.bytes == 2 * BIG
    assert pool.use(*[BIG // 10] * 20) == 0


def test_a_peak_is_forgotten_in_time():
    pool = Pool()
    pool.use(*[BIG] * 4)
    for _ in range(2 * PEAK_TAKES):
        assert pool.use(SMALL) <= 1
    assert pool.bytes == SMALL


def test_a_buffer_long_in_use_still_counts_toward_the_peak():
    pool = Pool()
    pool.use(BIG)
    long = pool.take(BIG)
    for _ in range(3 * PATTERN_TAKES):
        pool.use(SMALL)
    assert pool.bytes == BIG + SMALL
    pool.give(long)
    assert pool.use(BIG) == pool.use(SMALL) == 0


# ---- rule 2: patterns ----


def test_a_pattern_is_kept_although_each_round_brings_a_new_size():
    pool = Pool()
    for step in range(100):
        allocated = pool.use(BIG) + pool.use(BIG // 2)
        assert pool.use(BIG + 1 + step) == 1
        assert pool.use(SMALL) + allocated == 0 or step < 4
        assert pool.bytes <= BIG + BIG // 2 + BIG + 1 + step + SMALL


def test_a_size_used_twice_at_the_same_time_is_not_a_pattern():
    pool = Pool()
    pool.use(BIG, BIG, BIG)
    for nbytes in range(100, 200):
        pool.use(nbytes, nbytes)
    for _ in range(2 * PEAK_TAKES):
        pool.use(SMALL)
    assert pool.bytes == SMALL


def test_a_size_that_recurs_late_is_not_a_pattern():
    pool = Pool()
    for _ in range(3):
        pool.use(BIG)
        for _ in range(PATTERN_TAKES + 3 * PEAK_TAKES):
            pool.use(SMALL)
        assert pool.bytes == SMALL


def test_a_pattern_size_long_in_use_is_still_remembered():
    pool = Pool()
    for _ in range(5):
        pool.use(BIG)
        pool.use(SMALL)
    one = pool.take(BIG)
    for _ in range(2 * PATTERN_TAKES):
        pool.use(SMALL)
    pool.give(one)
    assert pool.use(BIG) == 0


def test_a_pattern_may_keep_no_more_than_it_was_allowed():
    pool = Pool(extra_bytes_max=5)
    sizes = [BIG, 1, 2, 3, 4, 5]
    for _ in range(10):
        for nbytes in sizes:
            pool.use(nbytes)
            assert pool.bytes <= BIG + 5
    pool = Pool(extra_bytes_max=15)
    for _ in range(10):
        allocated = [pool.use(nbytes) for nbytes in sizes]
    assert sum(allocated) == 0


# ---- rule 3: sizes that recur by chance ----


def test_a_long_pattern_is_kept_if_only_a_few_times_what_is_in_use():
    pool, allocated = Pool(), []
    for _ in range(4):
        allocated.append(sum(pool.use(BIG + one) for one in range(PATTERN_TIMES - 1)))
        for _ in range(PATTERN_TAKES - 2 * PEAK_TAKES):
            allocated[-1] += pool.use(SMALL)
    assert allocated[2:] == [0, 0]


def test_a_pattern_that_is_over_is_forgotten():
    pool = Pool()
    for _ in range(5):
        pool.use(BIG)
        pool.use(SMALL)
    for _ in range(PATTERN_TAKES - PEAK_TAKES):
        pool.use(SMALL)
    assert pool.bytes == BIG + SMALL
    for _ in range(3 * PEAK_TAKES):
        pool.use(SMALL)
    assert pool.bytes == SMALL
    assert pool.use(BIG) == 1
    for _ in range(2 * PEAK_TAKES):
        pool.use(SMALL)
    assert pool.bytes == SMALL, "once is no pattern"


def patterns(count, times):
    """Take `count` buffers of about one size `times` times; return the pool and the allocations of each round."""
    pool, rounds = Pool(), []
    for _ in range(times):
        rounds.append(sum(pool.use(BIG + one) for one in range(count)))
    return pool, rounds


def test_a_long_pattern_is_dropped_if_many_times_what_is_in_use():
    pool, rounds = patterns(3 * PEAK_TAKES, 10)
    assert min(rounds) > PEAK_TAKES
    assert pool.bytes <= (PATTERN_TIMES + 1) * (BIG + 3 * PEAK_TAKES)
