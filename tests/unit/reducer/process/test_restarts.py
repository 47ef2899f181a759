"""When a serving process that ended is started again."""

from reducer.process.restarts import FAILED_STARTS_MAX, PAUSE_MAX_S, STEADY_S, Restarts


def test_pauses_grow_up_to_a_limit():
    restarts = Restarts()
    pauses = [restarts.after(1.0) for _ in range(8)]
    assert pauses == [1, 2, 4, 8, 16, PAUSE_MAX_S, PAUSE_MAX_S, PAUSE_MAX_S]


def test_a_process_that_has_served_long_begins_anew():
    restarts = Restarts()
    assert [restarts.after(0.0), restarts.after(STEADY_S), restarts.after(STEADY_S - 1)] == [1, 1, 2]


def test_it_gives_up_after_starts_that_failed_in_succession():
    restarts = Restarts()
    assert [restarts.after(None) for _ in range(FAILED_STARTS_MAX)] == [1, 2, 4, 8, None]


def test_a_start_in_between_counts_anew():
    restarts = Restarts()
    for _ in range(3):
        assert None not in [restarts.after(None) for _ in range(FAILED_STARTS_MAX - 1)]
        assert restarts.after(0.5) is not None
