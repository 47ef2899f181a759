"""Counters that outlive the jobs."""

from itertools import pairwise

import pytest
from reduction.limits import HOST_TOTALS_MAX, JOB_TOTALS_MAX, RANK_TOTALS_MAX
from reduction.model import Abort, Goodbye
from support.scenes.jobs_scene import NEW, join, make_jobs, receive, running

from reducer.core.events import Lost, Received
from reducer.core.histogram import BOUNDS, Histogram
from reducer.core.totals import OTHER, JobLabel, JobTotals, Totals, Traffic, job_label

UUID = "0fca4d5e-8f0a-4a5b-9d3c-2f1e0d9c8b7a"


def test_the_buckets_double_from_one_millisecond_to_a_minute():
    assert (BOUNDS[0], len(BOUNDS)) == (0.001, 17)
    assert BOUNDS[-1] == pytest.approx(65.536)
    assert all(after == pytest.approx(2 * before) for before, after in pairwise(BOUNDS))


def test_a_bound_belongs_to_its_bucket_and_longer_times_to_the_next():
    histogram = Histogram()
    for seconds in (0.0, 0.001, 0.0011, BOUNDS[-1], 1000.0):
        histogram.add(seconds)
    assert (histogram.counts[:2], histogram.counts[-2:]) == ([2, 1], [1, 1])
    assert sum(histogram.counts) == 5
    assert histogram.sum_s == pytest.approx(1000.0021 + BOUNDS[-1])


@pytest.mark.parametrize(
    ("job", "label"),
    [("resnet", "resnet"), (f"run-{UUID}", ""), (f"run-{UUID}@3", "@3"), ("run-7", "run-7")],
)
def test_generated_job_names_are_left_out_of_labels(job, label):
    assert job_label(job, "0,2") == JobLabel(label, "0,2")


def test_the_ranks_with_the_most_seconds_are_named_and_the_sum_of_the_others_never_falls():
    totals = JobTotals(straggler_s={rank: 5.0 + rank / 100 for rank in range(RANK_TOTALS_MAX)})
    named = [(str(rank), 5.0 + rank / 100) for rank in reversed(range(RANK_TOTALS_MAX))]
    assert totals.worst() == named
    totals.straggler_s |= {50: 4.0, 51: 3.0}
    assert totals.worst() == [*named, (OTHER, 7.0)]
    totals.straggler_s[50] = 6.0  # named from now on
    assert totals.worst()[0] == ("50", 6.0)
    assert totals.worst()[-1] == (OTHER, 8.0)
    totals.straggler_s[51] = 20.0
    assert totals.worst()[0] == ("51", 20.0)
    assert totals.worst()[-1] == (OTHER, pytest.approx(10.01))


def test_hosts_beyond_the_limit_count_as_one():
    totals = JobTotals()
    for host in range(HOST_TOTALS_MAX + 2):
        totals.add_retransmits(f"h{host}", 3)
    totals.add_retransmits("h0", 1)
    assert len(totals.retransmits) == HOST_TOTALS_MAX + 1
    assert (totals.retransmits["h0"], totals.retransmits[OTHER]) == (4, 6)


def test_a_copy_does_not_change():
    totals = JobTotals(straggler_s={1: 1.0}, collectives=4)
    totals.on_plane("tcp").received_bytes = 7
    totals.add_retransmits("h", 1)
    copy = totals.copy()
    totals.on_plane("tcp").received_bytes = 8
    totals.add_retransmits("h", 1)
    totals.chunk_waits.add(1.0)
    totals.chunk_reduces.add(1.0)
    totals.straggler_s[1] = 2.0
    assert (copy.traffic, copy.retransmits) == ({"tcp": Traffic(7, 0)}, {"h": 1})
    assert (copy.straggler_s, copy.collectives) == ({1: 1.0}, 4)
    assert sum(copy.chunk_waits.counts) == sum(copy.chunk_reduces.counts) == 0


def test_the_oldest_labels_without_a_job_are_forgotten():
    totals = Totals()
    labels = [JobLabel(str(number), "") for number in range(JOB_TOTALS_MAX + 1)]
    for label in labels:
        begun = totals.begin(label)
        if label != labels[0]:
            totals.end(begun, "ended")
    assert list(totals.by_label) == [labels[0], *labels[2:]]
    assert totals.jobs["ended"] == JOB_TOTALS_MAX


def test_labels_with_a_job_are_kept_and_forgotten_later():
    totals = Totals()
    labels = [JobLabel(str(number), "") for number in range(JOB_TOTALS_MAX + 5)]
    begun = [totals.begin(label) for label in labels]
    assert totals.begin(labels[0]) is begun[0]
    assert list(totals.by_label) == labels
    for one in [*begun, begun[0]]:
        totals.end(one, "ended")
    assert list(totals.by_label) == [labels[0], *labels[6:]]
    totals.begin(JobLabel("new", ""))
    assert list(totals.by_label) == [*labels[6:], JobLabel("new", "")]


# ---- of all jobs of a reducer ----


def test_a_restarted_job_continues_its_counters():
    jobs = make_jobs()
    running(jobs)
    receive(jobs, 20, join(0, life=1, instance=NEW))  # refused: the old rank 0 is live
    for stream in (10, 11):
        jobs.handle(Lost(stream), 0.0)
    running(jobs, instance=NEW, first_stream=20)
    assert list(jobs.totals.by_label) == [JobLabel("job", "")]
    assert jobs.totals.by_label[JobLabel("job", "")].epochs == 2
    assert jobs.totals.joins == {"admitted": 4, "refused": 1}
    assert jobs.totals.jobs == {"ended": 0, "failed": 0, "lost": 1}


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ([Received(10, Abort(14, "why"))], "failed"),
        ([Received(10, Goodbye(0, 0)), Received(11, Goodbye(0, 0))], "ended"),
        ([Lost(10), Received(11, Goodbye(0, 0))], "lost"),
        ([Lost(10), Lost(11)], "lost"),
    ],
)
def test_outcomes_of_jobs_are_counted(events, outcome):
    jobs = make_jobs()
    running(jobs)
    for event in events:
        jobs.handle(event, 0.0)
    assert jobs.totals.jobs == {"ended": 0, "failed": 0, "lost": 0} | {outcome: 1}


def test_a_job_that_never_had_all_ranks_is_lost():
    jobs = make_jobs()
    receive(jobs, 10, join(0))
    receive(jobs, 10, Goodbye(0, 0))
    assert jobs.totals.jobs == {"ended": 0, "failed": 0, "lost": 1}


def test_only_joins_are_counted_as_such():
    jobs = make_jobs()
    receive(jobs, 10, Goodbye(0, 0))
    assert jobs.totals.joins == {"admitted": 0, "refused": 0}


def test_chunk_durations_are_counted_for_their_job():
    jobs = make_jobs()
    running(jobs)
    jobs.note_reduced(10, 0.5)
    jobs.note_reduced(99, 0.5)  # no longer belongs to any job
    reduces = jobs.totals.by_label[JobLabel("job", "")].chunk_reduces
    assert (sum(reduces.counts), reduces.sum_s) == (1, 0.5)
