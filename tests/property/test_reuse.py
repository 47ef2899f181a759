"""A pool's free buffers under any pattern of sizes: a repeated pattern ends up allocating nothing, and bounds hold.

Each collective takes a contribution and a result. Several may be in flight at the same time. A contribution is returned
later than its result, by any number of collectives.
"""

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reduction.process import reuse
from reduction.process.reuse import Shelf

SIZES = st.one_of(st.sampled_from([0, 1, 4, 1000, 1024, 96 << 20]), st.integers(1, 1 << 20))
#: Number of collectives that wait for their results, and of further ones that wait for their contributions.
DEPTHS = st.tuples(st.integers(0, 4), st.integers(0, 6))
#: Windows short enough for a test to exceed; those of `reuse` are longer.
PEAK_TAKES, PATTERN_TAKES = 16, 128


@st.composite
def patterns(draw):
    palette = draw(st.lists(SIZES, min_size=1, max_size=12))
    return draw(st.lists(st.sampled_from(palette), min_size=1, max_size=60))


class World:
    """A shelf and the use of its buffers."""

    def __init__(self, depths):
        self.shelf = Shelf()
        self.results, self.contributions = deque(), deque()
        self.result_depth, self.contribution_depth = depths
        self.allocated = 0
        self.takes = 0
        self.in_use = Counter()
        #: By size, the largest number of buffers ever in use at the same time.
        self.most = Counter()
        #: Bytes in use after each of the last takes.
        self.used_bytes = deque(maxlen=2 * PEAK_TAKES)
        #: When each buffer was last in use, its size, and the take at which a buffer was last allocated.
        self.used_at = {}
        self.sizes = []
        self.allocated_at = 0

    def take(self, nbytes):
        buffer = self.shelf.take(nbytes)
        self.takes += 1
        if buffer is None:
            self.allocated += 1
            self.allocated_at = self.takes
            buffer = len(self.sizes)
            self.sizes.append(nbytes)
        assert self.sizes[buffer] == nbytes
        assert self.used_at.get(buffer) != "now", "it is somebody else's"
        self.used_at[buffer] = "now"
        self.in_use[nbytes] += 1
        self.most[nbytes] = max(self.most[nbytes], self.in_use[nbytes])
        self.used_bytes.append(self.shelf.used_bytes)
        return buffer

    def give(self, buffer):
        self.used_at[buffer] = self.takes
        self.in_use[self.sizes[buffer]] -= 1
        self.shelf.give(self.sizes[buffer], buffer)

    def collective(self, nbytes):
        contribution, result = self.take(nbytes), self.take(nbytes)
        self.results.append((contribution, result))
        if len(self.results) > self.result_depth:
            contribution, result = self.results.popleft()
            self.give(result)
            self.contributions.append(contribution)
        if len(self.contributions) > self.contribution_depth:
            self.give(self.contributions.popleft())
        assert self.shelf.used_bytes == sum(nbytes * count for nbytes, count in self.in_use.items())
        assert self.bytes <= self.needed_bytes

    @property
    def bytes(self):
        return self.shelf.used_bytes + self.shelf.free_bytes

    @property
    def needed_bytes(self):
        """The bytes needed by exact sizes if nothing is ever allocated twice."""
        return sum(nbytes * count for nbytes, count in self.most.items())

    def recent_bytes(self, since):
        """Return the bytes of the buffers that were in use at the take `since` or later."""
        return sum(
            nbytes
            for buffer, nbytes in enumerate(self.sizes)
            if self.used_at[buffer] == "now" or self.used_at[buffer] >= since
        )


@given(patterns(), DEPTHS)
def test_a_repeated_pattern_ends_up_allocating_nothing(pattern, depths):
    world = World(depths)
    for _ in range(4 + sum(depths) // len(pattern)):
        for nbytes in pattern:
            world.collective(nbytes)
    world.allocated = 0
    for _ in range(5):
        for nbytes in pattern:
            world.collective(nbytes)
    assert world.allocated == 0
    if not sum(depths):
        assert world.bytes <= 2 * sum(set(pattern)), "two times the bytes of its collectives, or less"


@given(patterns(), patterns(), DEPTHS)
def test_a_changed_pattern_also_ends_up_allocating_nothing(before, pattern, depths):
    world = World(depths)
    for sizes in (before, pattern):
        for _ in range(4 + sum(depths) // len(sizes)):
            for nbytes in sizes:
                world.collective(nbytes)
    world.allocated = 0
    for nbytes in pattern:
        world.collective(nbytes)
    assert world.allocated == 0


@pytest.fixture(scope="module")
def _short_windows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reuse, "PEAK_TAKES", PEAK_TAKES)
        patch.setattr(reuse, "PATTERN_TAKES", PATTERN_TAKES)
        yield


@pytest.mark.usefixtures("_short_windows")
@given(st.lists(st.integers(1, 200), max_size=400), DEPTHS)
def test_random_sizes_keep_a_bounded_multiple_of_what_is_in_use(sizes, depths):
    world = World(depths)
    most_bytes = 0
    for nbytes in sizes:
        world.collective(nbytes)
        most_bytes = max(most_bytes, *world.used_bytes)
        recent = world.recent_bytes(world.allocated_at - PEAK_TAKES)
        assert world.bytes <= max(reuse.PATTERN_TIMES * most_bytes, recent)


@pytest.mark.usefixtures("_short_windows")
@given(st.lists(st.integers(1, 1000), max_size=200, unique=True), DEPTHS)
def test_sizes_that_never_recur_keep_no_more_than_was_in_use_at_once(sizes, depths):
    world = World(depths)
    for nbytes in sizes:
        world.collective(nbytes)
        assert world.bytes <= max(world.used_bytes)


@pytest.mark.usefixtures("_short_windows")
@given(patterns(), patterns(), DEPTHS)
def test_unused_buffers_are_released(before, after, depths):
    world = World(depths)
    for sizes in [before] * 4 + [after] * 4:
        for nbytes in sizes:
            world.collective(nbytes)
    first = world.takes
    while world.takes < first + 2 * PATTERN_TAKES:
        for nbytes in after:
            world.collective(nbytes)
    assert world.bytes <= world.recent_bytes(first)
