"""The window: what a rank has issued, holds, and may forget."""

from reduction.model import Collective, DType, ReduceOp

from worker_plugin.core.window import Window


def collective(kib):
    """A collective of this many KiB; as many chunks on the smallest grid."""
    return Collective(ReduceOp.SUM, DType.FLOAT32, kib * 256, 7)


def window_of(*sizes, chunk_bytes=1024):
    window = Window()
    window.regrid(chunk_bytes)
    for kib in sizes:
        window.issue(collective(kib))
    return window


def marks(window):
    return window.released, window.minimum, window.held, window.issued


def test_a_new_window_is_idle():
    assert window_of().is_idle
    assert marks(window_of()) == (0, 0, 0, 0)


def test_issuing_needs_no_grid_yet():
    window = Window()
    window.issue(collective(2))
    assert (marks(window), window.is_idle) == ((0, 0, 0, 1), False)
    window.regrid(1024)
    assert window.outstanding[0].here == bytearray(2)
    assert window.outstanding[0].missing == 2


def test_chunks_are_needed_until_they_are_taken():
    window = window_of(2)
    assert [window.needs(0, chunk) for chunk in (0, 1)] == [True, True]
    assert not window.take(0, 1)
    assert [window.needs(0, chunk) for chunk in (0, 1)] == [True, False]
    assert window.take(0, 0)
    assert [window.needs(0, chunk) for chunk in (0, 1)] == [False, False]


def test_an_empty_collective_has_one_chunk_to_wait_for():
    window = window_of(0)
    assert window.take(0, 0)
    assert window.is_idle


def test_held_waits_for_the_gap():
    window = window_of(1, 1, 1)
    assert window.take(1, 0)
    assert marks(window) == (0, 0, 0, 3)
    assert window.take(0, 0)
    assert marks(window) == (0, 0, 2, 3)
    assert not window.is_idle
    assert window.take(2, 0)
    assert window.is_idle


def test_released_is_what_all_hold_and_what_was_pushed():
    window = window_of(1, 1, 1, 1)
    for seq in range(3):
        window.take(seq, 0)
    window.minimum = 2
    assert window.release(bound=1) == range(0, 1)
    assert window.release(bound=4) == range(1, 2)
    assert window.release(bound=4) == range(2, 2)
    window.minimum = 3
    assert window.release(bound=2) == range(2, 2), "its push has not gone out in this epoch"
    assert window.release(bound=3) == range(2, 3)
    assert marks(window) == (3, 3, 3, 4)
    assert set(window.outstanding) == {3}


def test_a_released_collective_needs_nothing():
    window = window_of(1)
    window.take(0, 0)
    window.minimum = 1
    window.release(1)
    assert not window.needs(0, 0)


def test_the_same_grid_again_keeps_what_is_here():
    window = window_of(2)
    window.take(0, 0)
    window.regrid(1024)
    assert [window.needs(0, chunk) for chunk in (0, 1)] == [False, True]


def test_another_grid_gives_up_what_is_here_in_part():
    window = window_of(4)
    window.take(0, 0)
    window.regrid(2048)
    assert [window.needs(0, chunk) for chunk in (0, 1)] == [True, True]
    assert window.outstanding[0].missing == 2


def test_another_grid_keeps_whole_results():
    window = window_of(4)
    for chunk in range(4):
        window.take(0, chunk)
    window.regrid(2048)
    assert marks(window) == (0, 0, 1, 1)
    assert not any(window.needs(0, chunk) for chunk in (0, 1))
