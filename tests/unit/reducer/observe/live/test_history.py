"""The data behind the page's timeline."""

from support.scenes.looks import job, process

from reducer.observe.live.history import JOB_LINES, JOBS_MAX, SAMPLES_MAX, History
from reducer.observe.live.view import Watcher


def taken(*looks):
    watcher, history = Watcher(), History()
    for number, processes in enumerate(looks):
        history.take(watcher.take(processes, 1000.0 + number))
    return history.to_json()


def test_lines_have_a_value_for_each_time_and_gaps_where_it_is_missing():
    timeline = taken(
        [process(uptime_seconds=1.0)],
        [process(job(minimum=10), uptime_seconds=2.0, cpu_seconds=0.5)],
        [process(job(minimum=16), uptime_seconds=4.0, cpu_seconds=1.0)],
        [process(uptime_seconds=5.0, cpu_seconds=1.0)],
    )
    assert timeline["at_s"] == [1000.0, 1001.0, 1002.0, 1003.0]
    [line] = timeline["jobs"]
    assert line["title"] == "job"
    assert line["collectives_per_s"] == [None, None, 3.0, None]
    assert line["wait_p99_s"] == [None, 0.0145, 0.0145, None]
    assert timeline["busiest"] == [None, 0.5, 0.25, 0.0]
    assert set(line) == {"title", *JOB_LINES}


def test_it_is_bounded():
    names = [f"job-{number}" for number in range(JOBS_MAX + 2)]
    timeline = taken([process(*map(job, names))], *([[process()]] * (SAMPLES_MAX - 1)))
    assert len(timeline["at_s"]) == SAMPLES_MAX
    assert [line["title"] for line in timeline["jobs"]] == names[-JOBS_MAX:]
    timeline = taken([process(*map(job, names))], *([[process()]] * SAMPLES_MAX))
    assert len(timeline["at_s"]) == SAMPLES_MAX
    assert timeline["jobs"] == [], "they ended longer ago"
