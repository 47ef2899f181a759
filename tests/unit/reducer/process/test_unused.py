"""A reducer that ends with its job."""

from reducer.process.unused import Unused


def test_before_its_first_job_a_reducer_waits_for_ever():
    unused = Unused(5.0)
    assert not any(unused.is_over(has_served=False, jobs=0, now_s=now) for now in (0.0, 4.0, 1e6))


def test_time_counts_from_the_end_of_the_last_job():
    unused = Unused(5.0)
    looks = [(1, 0.0), (0, 10.0), (0, 14.9), (1, 15.0), (0, 16.0), (0, 20.9)]
    assert not any(unused.is_over(has_served=True, jobs=jobs, now_s=now) for jobs, now in looks)
    assert unused.is_over(has_served=True, jobs=0, now_s=21.0)


def test_at_once():
    assert Unused(0.0).is_over(has_served=True, jobs=0, now_s=3.0)


def test_a_first_job_that_never_comes():
    unused = Unused(None, 5.0)
    assert not unused.is_over(has_served=False, jobs=0, now_s=1.0)
    assert not unused.is_over(has_served=False, jobs=0, now_s=5.9)
    assert unused.is_over(has_served=False, jobs=0, now_s=6.0)


def test_a_first_job_that_comes_at_the_last_moment():
    unused = Unused(3.0, 5.0)
    assert not unused.is_over(has_served=False, jobs=0, now_s=0.0)
    # It has come and gone between two looks.
    assert not unused.is_over(has_served=True, jobs=0, now_s=5.5)
    assert not unused.is_over(has_served=True, jobs=0, now_s=8.4)
    assert unused.is_over(has_served=True, jobs=0, now_s=8.5)


def test_without_a_limit_after_the_job_it_stays():
    assert not any(Unused(None, 5.0).is_over(has_served=True, jobs=0, now_s=now) for now in (0.0, 1e6))
