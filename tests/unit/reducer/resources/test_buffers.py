"""The buffer pool: leases that return when their last view dies, and are lent again.

Which buffers are kept, and for how long, is tested in `tests/property/test_reuse.py`.
"""

import gc

import numpy as np
import pytest

from reducer.resources.buffers import BufferPool, is_leased


@pytest.fixture(autouse=True)
def _no_collector():
    """Leases must return through reference counting: the garbage collector may not run for a long time."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def address(view):
    """Return the bytes' address."""
    return np.frombuffer(view, np.uint8).__array_interface__["data"][0]


# ---- leases ----


@pytest.mark.parametrize("nbytes", [0, 1, 4096])
def test_a_lease_has_the_size_asked_for_and_can_be_written(nbytes):
    view = BufferPool().take(nbytes)
    assert (view.nbytes, view.readonly) == (nbytes, False)
    view[:] = bytes(nbytes)


def test_memory_comes_back_when_its_view_dies_and_is_lent_again_for_the_same_size_only():
    pool = BufferPool()
    other, view = pool.take(8), pool.take(16)
    where = address(view)
    assert pool.kept_bytes == 0
    del view
    assert pool.kept_bytes == 16
    del other
    assert pool.kept_bytes == 24
    again = pool.take(16)
    assert (address(again), again.nbytes, pool.kept_bytes) == (where, 16, 8)


def test_memory_is_never_lent_twice_at_the_same_time():
    pool = BufferPool()
    first, second = pool.take(16), pool.take(16)
    del first
    views = [second, pool.take(16), pool.take(16)]
    assert len(set(map(address, views))) == 3


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


def test_a_write_through_one_view_shows_in_all_views():
    view = BufferPool().take(8)
    np.frombuffer(view, np.float32)[:] = [1.5, -2.0]
    assert view[4:].tobytes() == np.float32([-2.0]).tobytes()


def test_a_pool_may_die_before_its_leases():
    pool = BufferPool()
    view = pool.take(16)
    del pool
    view[:] = bytes(16)
    del view


def test_leased_memory_is_recognized():
    view = BufferPool().take(16)
    assert is_leased(view)
    assert is_leased(view[4:8])
    assert is_leased(view.toreadonly())
    assert not is_leased(memoryview(bytes(16)))
    assert not is_leased(memoryview(bytearray(16)))
    assert not is_leased(np.empty(16, np.uint8).data)
    assert not is_leased(np.frombuffer(view, np.uint8).data), "a result that others may be reading"


# ---- kept buffers ----


def lend(pool, *sizes):
    """Lend buffers of these sizes at the same time, and take all of them back."""
    views = [pool.take(nbytes) for nbytes in sizes]
    del views


def test_alternating_sizes_are_kept_up_to_a_bound():
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


def test_a_cleared_pool_keeps_nothing_but_takes_back_what_is_in_use():
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
    """Garbage collection may run at any line of the pool's code."""

    class Collecting(dict):
        """Ends a lease whenever the free buffers are iterated."""

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


def test_failed_allocations_do_not_count_as_in_use(monkeypatch):
    pool = BufferPool()

    def refuse(nbytes):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(pool.memory, "allocate", refuse)
        with pytest.raises(MemoryError):
            pool.take(1000)
    lend(pool, 500)
    lend(pool, 600)
    assert pool.kept_bytes == 600, "the 500 had to go: no more than 600 bytes were in use at once"
