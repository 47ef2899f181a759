"""When a serving process that ended is restarted."""

from reducer.process.restarts import FAILED_STARTS_MAX, PAUSE_MAX_S, STEADY_S, Restarts


def test_pauses_grow_up_to_a_limit():
    restarts = Restarts()
    pauses = [restarts.after(1.0) for _ in range(8)]
    assert pauses == [1, 2, 4, 8, 16, PAUSE_MAX_S, PAUSE_MAX_S, PAUSE_MAX_S]


def test_pauses_start_over_after_long_service():
    restarts = Restarts()
    assert [restarts.after(0.0), restarts.after(STEADY_S), restarts.after(STEADY_S - 1)] == [1, 1, 2]


def test_it_has_failed_after_several_failed_starts_in_a_row():
    restarts = Restarts()
    for pause_s in (1, 2, 4, 8):
        assert (restarts.after(None), restarts.has_failed) == (pause_s, False)
    assert (restarts.after(None), restarts.has_failed) == (16, True)


def test_a_successful_start_resets_the_count():
    restarts = Restarts()
    for _ in range(3):
        for _ in range(FAILED_STARTS_MAX - 1):
            restarts.after(None)
        assert not restarts.has_failed
        restarts.after(0.5)
