"""The table that `reducer status` builds from the answers, and its width."""

import io
import json
from dataclasses import replace

import pytest
from reduction.model import Presence, Waiting
from rich.console import Console
from support.scenes import looks
from support.scenes.looks import MIB, silent

from reducer.observe.summary import summarize, to_json
from reducer.observe.tables import make_console, render

NAME = "run-0123456789abcdef0123456789abcdef"


def job(received=0, *, name="job", gone=None, life=b"1", **values):
    """Return a job of a given life, some of whose ranks have left."""
    made = looks.job(name, received=received, **values)
    peers = [
        replace(peer, nonce=life + peer.nonce[1:], presence=(gone or {}).get(peer.rank, peer.presence))
        for peer in made.peers
    ]
    return replace(made, peers=tuple(peers))


def process(*jobs, number=0, up=10.0, **values):
    address = f"100.100.100.{number}:50051"
    return looks.process(*jobs, address=address, life=number, uptime_seconds=up, **values)


def one_job(*processes, before=()):
    [one] = summarize(processes, before).jobs
    return one


def test_rates_are_sums_over_processes_between_two_looks():
    before = [process(job(0)), process(job(MIB), number=1)]
    after = [process(job(4 * MIB), up=12.0), process(job(2 * MIB), number=1, up=11.0)]
    summary = summarize(after, before)
    [one] = summary.jobs
    assert one.rates.received == one.rates.sent == 3 * MIB
    assert [rates.received for rates in summary.rates.values()] == [2 * MIB, MIB]
    assert to_json(summary)["total"]["received_bytes_per_s"] == 3 * MIB


@pytest.mark.parametrize(
    ("now", "before"),
    [
        (process(job(MIB)), ()),
        (process(job(MIB), number=1), [process(job(0))]),  # another process
        (process(job(MIB, life=b"2"), up=11.0), [process(job(0))]),  # another job
    ],
)
def test_entries_missing_from_the_previous_look_have_no_rate_yet(now, before):
    summary = summarize([now], before)
    assert (summary.jobs[0].rates, summary.rates) == (None, {})
    assert "received_bytes_per_s" not in to_json(summary)["jobs"][0]


def test_a_process_without_jobs_has_a_rate_of_zero():
    [rates] = summarize([process(up=11.0)], [process(job(0))]).rates.values()
    assert rates.received == rates.sent == 0


def test_jobs_of_one_name_with_no_ranks_in_common_are_separate():
    assert len(summarize([process(job(1)), process(job(1, life=b"2"), number=1)]).jobs) == 2


@pytest.mark.parametrize(
    ("ranks", "last", "slowest", "verdict"),
    [
        (
            3,
            [(0, 10, 0.01), (1, 10, 0.01), (2, 80, 3.44)],
            "rank 2",
            "rank 2 (host-2) is last 80 % of the time, by 43.0 ms",
        ),
        (3, [(0, 30, 3.0), (1, 30, 3.0), (2, 40, 4.0)], "no straggler", "no straggler"),
        (3, [(2, 100, 0.05)], "no straggler", "no straggler"),
        (2, [(0, 30, 1.0), (1, 70, 7.0)], "no straggler", "no straggler"),
        (2, [(0, 20, 1.0), (1, 80, 8.0)], "rank 1", "rank 1 (host-1) is last 80 % of the time, by 100.0 ms"),
        (3, [(2, 15, 9.0)], "too early", "fewer than 16 chunks: too early to tell"),
        (1, [(0, 100, 9.0)], "no straggler", "no straggler"),
    ],
)
def test_the_verdict(ranks, last, slowest, verdict):
    one = one_job(process(job(ranks=ranks, last=last)))
    assert (one.slowest, one.verdict) == (slowest, verdict)


def test_the_verdict_is_about_the_time_between_the_looks():
    before = [process(job(last=[(1, 1000, 100.0)]))]
    after = [process(job(last=[(1, 1004, 100.1), (2, 40, 2.0)]), up=11.0)]
    assert one_job(*after, before=before).slowest == "rank 2"
    idle = process(job(last=[(1, 1000, 100.0)]), up=11.0)
    assert one_job(idle, before=before).slowest == "rank 1", "of its whole life, if nothing has come since"


@pytest.mark.parametrize(
    ("values", "state", "ranks"),
    [
        ({}, "running", "3/3"),
        ({"started": False}, "starting", "3/3"),
        ({"world_size": 4}, "joining", "3/4"),
        ({"gone": {1: Presence.LOST}}, "rank lost", "2/3"),
        ({"gone": {1: Presence.LEFT}}, "ending", "2/3"),
    ],
)
def test_the_state_is_a_word(values, state, ranks):
    one = one_job(process(job(**values)), process(job(), number=1))
    assert (one.state, one.ranks) == (state, ranks)


@pytest.mark.parametrize(
    ("world_size", "slowest", "waits_for"),
    [
        (4, "no rank 3", [3]),
        (5, "no ranks 3,4", [3, 4]),
        (13, "no ranks 3,4,5,6,7,8,9,10,...", [*range(3, 13)]),
    ],
)
def test_ranks_that_have_not_joined_are_named(world_size, slowest, waits_for):
    summary = summarize([process(job(world_size=world_size))])
    assert summary.jobs[0].slowest == slowest
    assert summary.jobs[0].verdict == f"waits for {slowest.removeprefix('no ')} to join"
    assert to_json(summary)["jobs"][0]["waits_for"] == waits_for


def test_a_job_that_hangs_names_the_missing_rank_and_not_the_previously_slow_one():
    peer = job().peers[1]
    for waited_s, state, slowest in [(1.0, "running", "rank 2"), (9.2, "waiting", "rank 1: 9 s")]:
        waiting = Waiting(7, 0, waited_s, 1, (peer,))
        parts = (
            process(job(last=[(2, 80, 9.0)], waiting=waiting)),
            process(job(last=[(2, 80, 9.0)]), number=1),
        )
        summary = summarize(parts)
        assert (summary.jobs[0].state, summary.jobs[0].slowest) == (state, slowest)
    assert summary.jobs[0].verdict == "has been waiting for rank 1 (host-1) for 9 s"
    answer = to_json(summary)
    assert answer["jobs"][0]["waits_for"] == [1]
    assert answer["processes"][0]["jobs"][0]["waiting"]["missing"][0]["presence"] == "present"
    out = io.StringIO()
    render(Console(file=out, width=200), summary, verbose=True)
    assert "rank 1 (host-1), for 9.2 s so far" in out.getvalue()


def test_json_has_all_processes_and_named_states():
    summary = summarize([process(job(gone={1: Presence.LEFT}), draining=True), silent("c:3")])
    answer = json.loads(json.dumps(to_json(summary), default=lambda value: value.hex()))
    first, second = answer["processes"]
    assert first["state"] == "draining"
    assert first["incarnation"] == "00" * 16
    assert [peer["presence"] for peer in first["jobs"][0]["peers"]] == ["present", "left", "present"]
    assert second == {"address": "c:3", "state": "no answer", "reason": "refused"}
    assert (answer["total"]["processes"], answer["total"]["answered"]) == (2, 1)


@pytest.mark.parametrize("verbose", [False, True])
def test_it_fits_80_columns(verbose):
    last = [(0, 1, 0.1), (1, 1, 0.1), (2, 80, 3.44)]
    both = [
        [process(job(size, name=NAME, last=last), number=number, up=up) for number in (100, 101)]
        for size, up in ((0, 90_000.0), (12_345 * MIB, 90_001.0))
    ]
    out = io.StringIO()
    console = Console(file=out, width=80, markup=False, highlight=False)
    now, before = [*both[1], silent("100.100.100.102:50051")], both[0]
    render(console, summarize(now, before), verbose=verbose)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in out.getvalue()
    assert any(line.split()[:2] == ["100.100.100.102:50051", "no"] for line in lines)
    [total] = [line for line in lines if line.startswith("total")]
    assert total.split() == ["total", "24690.0", "24690.0", "122.0", "MiB", "10.0", "MiB", "0%"]
    if not verbose:
        assert len(lines) <= 10, out.getvalue()
        assert f"{NAME}: rank 2 (host-2) is last" in out.getvalue().replace("\n", " ")


def test_siblings_are_listed_below_the_given_reducer(capsys):
    one = process(number=1, siblings=(41001,), memory_limit_bytes=20 * MIB, resident_bytes=66 * MIB)
    other = process(number=3)
    sibling = replace(process(number=2), address="100.100.100.1:41001", is_given=False)
    render(make_console(), summarize([one, other, sibling]), verbose=False)
    heading, _, *rows = capsys.readouterr().out.splitlines()
    assert heading == "reducers: 2 with 3 processes, version 0.1.0, jobs: 0"
    assert [row.split(" serving")[0].rstrip() for row in rows[:3]] == [
        "100.100.100.1:50051",
        "  100.100.100.1:41001",
        "100.100.100.3:50051",
    ]
    assert rows[0].split()[-5:] == ["66.0", "MiB", "5.0", "MiB", "25%"]
    assert [row for row in [heading, *rows] if row != row.rstrip()] == []
