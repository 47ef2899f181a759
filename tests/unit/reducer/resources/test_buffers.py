"""The buffer pool: leases that come back when their last view dies, reuse by exact size, a bound on what is kept."""

import gc

import numpy as np
import pytest

from reducer.resources.buffers import EXTRA_BYTES_MAX, BufferPool, is_leased


@pytest.fixture(autouse=True)
def _no_collector():
    """What comes back must come back by counting references: the collector may not run for a long time."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def address(view):
    """Return where the bytes lie."""
    return np.frombuffer(view, np.uint8).__array_interface__["data"][0]


# ---- leases ----


def test_a_lease_has_the_size_asked_for_and_can_be_written():
    pool = BufferPool()
    views = [pool.take(nbytes) for nbytes in (0, 1, 4096)]
    assert [view.nbytes for view in views] == [0, 1, 4096]
    for view in views:
        view[:] = bytes(view.nbytes)
        assert not view.readonly


def test_memory_comes_back_when_its_view_dies_and_is_lent_again():
    pool = BufferPool()
    view = pool.take(16)
    where = address(view)
    assert pool.kept_bytes == 0
    del view
    assert pool.kept_bytes == 16
    again = pool.take(16)
    assert address(again) == where
    assert pool.kept_bytes == 0


def test_the_same_memory_is_never_lent_twice_at_a_time():
    pool = BufferPool()
    first = pool.take(16)
    second = pool.take(16)
    assert address(first) != address(second)
    del first
    third, fourth = pool.take(16), pool.take(16)
    assert len({address(view) for view in (second, third, fourth)}) == 3


VIEWS = {
    "a slice": lambda view: view[3:5],
    "a slice of no bytes": lambda view: view[16:],
    "a cast": lambda view: view.cast("I"),
    "read-only": lambda view: view.toreadonly(),
    "an array over it": lambda view: np.frombuffer(view, np.float32),
    "a slice of an array over it": lambda view: np.frombuffer(view, np.float32)[1:2],
    "an array seen as bytes": lambda view: np.frombuffer(view, np.float32).view(np.uint8),
    "the bytes of an array over it": lambda view: np.frombuffer(view, np.float32).view(np.uint8).data,
    "a view of a view of it": lambda view: memoryview(np.frombuffer(view, np.uint8)[2:])[3:],
}


@pytest.mark.parametrize("name", VIEWS)
def test_memory_comes_back_with_the_last_of_its_views_only(name):
    pool = BufferPool()
    view = pool.take(16)
    derived = VIEWS[name](view)
    del view
    assert pool.kept_bytes == 0, "somebody still looks at it"
    del derived
    assert pool.kept_bytes == 16


def test_memory_comes_back_with_the_last_of_many_holders_whichever_that_is():
    pool = BufferPool()
    view = pool.take(16)
    holders = [view, view[:8], np.frombuffer(view, np.uint8), memoryview(view)]
    del view
    while holders:
        assert pool.kept_bytes == 0
        holders.pop()
    assert pool.kept_bytes == 16


def test_what_is_written_through_any_view_is_in_all_of_them():
    view = BufferPool().take(8)
    np.frombuffer(view, np.float32)[:] = [1.5, -2.0]
    assert view[4:].tobytes() == np.float32([-2.0]).tobytes()


def test_a_pool_may_die_before_its_leases():
    pool = BufferPool()
    view = pool.take(16)
    del pool
    view[:] = bytes(16)
    del view


def test_whose_memory_it_is():
    view = BufferPool().take(16)
    assert is_leased(view)
    assert is_leased(view[4:8])
    assert is_leased(view.toreadonly())
    assert not is_leased(memoryview(bytes(16)))
    assert not is_leased(memoryview(bytearray(16)))
    assert not is_leased(np.empty(16, np.uint8).data)
    assert not is_leased(np.frombuffer(view, np.uint8).data), "a result that others may be reading"


# ---- what is kept ----


def test_a_returned_buffer_is_lent_again_for_the_same_size_only():
    pool = BufferPool()
    other, same = pool.take(8), pool.take(16)
    where = address(same)
    del same
    assert pool.kept_bytes == 16
    del other
    assert pool.kept_bytes == 24
    same = pool.take(16)
    assert (address(same), same.nbytes) == (where, 16)
    assert pool.kept_bytes == 8


def test_kept_bytes_count_what_is_in_the_pool():
    pool = BufferPool()
    small, large = pool.take(10), pool.take(100)
    assert pool.kept_bytes == 0
    del small, large
    assert pool.kept_bytes == 110
    again = pool.take(10)
    assert (again.nbytes, pool.kept_bytes) == (10, 100)


def lend(pool, *sizes):
    """Lend buffers of these sizes at once, and take all of them back."""
    views = [pool.take(nbytes) for nbytes in sizes]
    del views


def test_sizes_that_nobody_takes_any_more_make_room_for_new_ones():
    pool = BufferPool()
    lend(pool, 60)
    new = pool.take(50)
    where = address(new)
    assert pool.kept_bytes == 0, "the 60 had to go"
    del new
    assert pool.kept_bytes == 50
    assert address(pool.take(50)) == where


def test_what_was_in_use_at_once_is_kept_however_much_that_is():
    """Many ranks with much credit: what went beyond 64 MiB used to be allocated again and again."""
    pool = BufferPool(extra_bytes_max=0)
    nbytes, count = 4 << 20, 20
    views = [pool.take(nbytes) for _ in range(count)]
    where = {address(view) for view in views}
    del views
    assert pool.kept_bytes == count * nbytes
    for _ in range(3):
        views = [pool.take(nbytes) for _ in range(count)]
        assert {address(view) for view in views} == where
        del views


def test_sizes_that_take_turns_are_kept_up_to_a_bound():
    pool = BufferPool(extra_bytes_max=50)
    for _ in range(5):
        for nbytes in (100, 20, 30):
            lend(pool, nbytes)
            assert pool.kept_bytes <= 150
    assert pool.kept_bytes == 150
    for _ in range(5):
        for nbytes in (100, 20, 31):
            lend(pool, nbytes)
            assert pool.kept_bytes <= 150


def test_a_pool_that_was_cleared_keeps_nothing_but_takes_back_what_is_in_use():
    pool = BufferPool()
    view = pool.take(10)
    lend(pool, 100)
    pool.clear()
    assert pool.kept_bytes == 0
    where = address(view)
    del view
    assert pool.kept_bytes == 10
    assert address(pool.take(10)) == where


def test_a_lease_may_end_while_the_pool_looks_for_another():
    """When garbage is collected, which may be in any line of the pool's."""

    class Collecting(dict):
        """Ends a lease whenever somebody goes through the free buffers."""

        def __iter__(self):
            for nbytes in super().__iter__():
                lost.clear()
                yield nbytes

    pool = BufferPool()
    lend(pool, 10, 20)
    lost = [pool.take(7)]
    pool._shelf._free = Collecting(pool._shelf._free)
    view = pool.take(100)
    assert (view.nbytes, lost) == (100, [])
    assert pool.kept_bytes == 7


def test_the_default_bound():
    pool = BufferPool()
    assert pool._shelf._extra_bytes_max == EXTRA_BYTES_MAX == 64 << 20


def test_what_cannot_be_allocated_does_not_count_as_in_use(monkeypatch):
    pool = BufferPool()

    def refuse(nbytes):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(pool.memory, "allocate", refuse)
        with pytest.raises(MemoryError):
            pool.take(1000)
    assert pool._shelf.used_bytes == 0
    assert pool.take(1000).nbytes == 1000
