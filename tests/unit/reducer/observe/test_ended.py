"""Finished jobs, as seen by all processes together."""

import json

from reduction.model import EndedJob, Outcome
from support.scenes.looks import MIB, process

from reducer.observe.ended import ended_jobs, line
from reducer.observe.summary import summarize, to_json
from reducer.observe.tables import make_console, render


def ended(number=1, **values):
    values = {"received_bytes": MIB, "sent_bytes": 2 * MIB, "waited_for": 0, "waited_s": 0.0} | values
    values = {"outcome": Outcome.ENDED, "collectives": 10, "seconds": 5.0, "ago_s": 3.0} | values
    return EndedJob(job="job", id=bytes([number]) * 16, **{"world_size": 4} | values)


def answer(*jobs):
    return process(ended=jobs).status


def test_a_job_of_several_reducers_is_one_job():
    one = ended(waited_for=2, waited_s=0.8, ago_s=3.5)
    other = ended(waited_for=1, waited_s=0.5, collectives=9, outcome=Outcome.LOST, seconds=4.0)
    [both] = ended_jobs([answer(one), answer(other)])
    assert both == ended(
        received_bytes=2 * MIB, sent_bytes=4 * MIB, waited_for=2, waited_s=0.8, seconds=5.0, ago_s=3.0
    )


def test_two_lives_of_a_job_are_two_jobs():
    jobs = ended_jobs([answer(ended(2, ago_s=9.0), ended(1, ago_s=1.0)), answer(ended(1, ago_s=1.0))])
    assert [job.id[0] for job in jobs] == [2, 1]


def test_the_closing_line():
    assert line([ended(waited_for=2, waited_s=0.84)]) == (
        "1 job of 4 ranks, 10 collectives, 1.0 MiB in, 2.0 MiB out, waited at least 0.8 s for rank 2"
    )
    two = [ended(), ended(2, outcome=Outcome.FAILED)]
    assert line(two) == "2 jobs of 4 ranks (1 did not end well), 20 collectives, 2.0 MiB in, 4.0 MiB out"
    assert line([*two, ended(3, world_size=2)]).startswith("3 jobs of 2 to 4 ranks (1 did")
    assert line([*two, ended(waited_for=3, waited_s=0.5)]).endswith(
        f", waited at least 0.5 s for rank 3 of {two[0].title}"
    )


def test_status_shows_ended_jobs(capsys):
    summary = summarize([process(ended=(ended(outcome=Outcome.FAILED),))])
    render(make_console(), summary, verbose=True)
    said = capsys.readouterr().out
    assert "no jobs" in said
    row = next(row for row in said.splitlines() if row.startswith("job  ") and "failed" in row)
    assert row.split() == "job 4 failed 10 1.0 MiB 2.0 MiB 0: 0.0 s 3 s".split()
    shown = json.loads(json.dumps(to_json(summary), default=lambda value: value.hex()))
    assert shown["ended"][0]["outcome"] == "failed"
    assert "ended" not in shown["processes"][0]
