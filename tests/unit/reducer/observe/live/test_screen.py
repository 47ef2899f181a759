"""The display of `reducer top`: its width, its height, and text from peers."""

import io
import re

import pytest
from reduction.model import Waiting
from rich.console import Console
from support.scenes.looks import MIB, job, process, silent

from reducer.observe.live.screen import rate_text, render
from reducer.observe.live.view import Watcher

NAME = "run-0123456789abcdef0123456789abcdef"


def drawn(view, width=80, height=None, *, is_terminal=False):
    out = io.StringIO()
    console = Console(
        file=out, width=width, height=height or 100, markup=False, highlight=False, force_terminal=is_terminal
    )
    console.print(render(console, view, height=height, hint="q quits"))
    return out.getvalue()


def busy_view(jobs=2):
    """Return a view of two looks with large numbers in all columns; one reducer is silent."""
    watcher = Watcher()
    for minimum, received, up in ((0, 0, 90_000.0), (123, 123_456 * MIB, 90_001.0)):
        parts = [
            job(
                NAME[:-1] + str(number), minimum=minimum, received=received, last=[(0, 3, 0.1), (2, 97, 3.44)]
            )
            for number in range(jobs)
        ]
        looks = [
            process(
                *parts,
                address=f"100.100.100.{number}:50051",
                life=number,
                uptime_seconds=up,
                cpu_seconds=up * 3.85,
                events=[(1, 1.0, "JOINED", NAME, "rank 0 of 3 joined from a-host-with-a-long-name" * 3)],
            )
            for number in (100, 101)
        ]
        view = watcher.take([*looks, silent("100.100.100.102:50051", "Connection refused " * 5)], 1e9)
    return view


def test_it_fits_80_columns():
    text = drawn(busy_view())
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80, text
    row = next(line for line in lines if line.startswith("100.100.100.100:"))
    assert row.split() == "100.100.100.100:50051 serving 385 % 5.0 MiB 6 259 GB 259 GB".split()
    assert any(re.match(r"100.100.100.102:50051 no answer$", line.rstrip()) for line in lines), text
    # A long name is wrapped, and nothing else is cut.
    upper = text[: text.index("events")]
    assert "…" not in upper
    assert "2: 97%" in upper
    assert "1.20/14.5" in upper


def test_it_uses_more_columns_if_there_are_more():
    text = drawn(busy_view(), width=160)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 160
    for word in ("busiest", "resident", "host-2", "running", "Connection refused", "25 h"):
        assert word in text, text
    assert not any(word in drawn(busy_view()) for word in ("busiest", "resident"))


@pytest.mark.parametrize("width", [20, 40, 80, 119, 120, 300])
def test_no_line_is_longer_than_the_screen(width):
    assert max(map(len, drawn(busy_view(), width).splitlines())) <= width


def test_the_latest_events_fill_the_rest_of_the_screen():
    watcher = Watcher()
    events = [(number, 1.0, "ENDED", f"job-{number}", "ended") for number in range(1, 51)]
    view = watcher.take([process(events=events)], 1e9)
    lines = drawn(view, height=20).splitlines()
    assert len(lines) == 20
    assert "job-50" in lines[-1]
    assert "job-50" in drawn(view, height=3)
    assert drawn(view).count("job-") == 50


def test_a_job_that_is_not_running_shows_its_state():
    view = Watcher().take([process(job(started=False))], 1e9)
    assert "starting" in drawn(view)
    assert "no jobs" in drawn(Watcher().take([process()], 1e9))


def test_a_job_that_hangs_shows_who_is_missing():
    peer = job().peers[1]
    hangs = job(last=[(2, 80, 9.0)], waiting=Waiting(7, 0, 9.2, 1, (peer,)))
    text = drawn(Watcher().take([process(hangs)], 1e9))
    assert "1: 9 s" in text
    assert "2: 100%" not in text


def test_text_from_peers_is_not_read_as_markup():
    assert "[bold]<b>[/x]" in drawn(Watcher().take([process(job("[bold]<b>[/x]"))], 1e9), width=160)


def test_colors_are_only_for_terminals():
    assert "\x1b" not in drawn(busy_view())
    text = drawn(busy_view(), is_terminal=True)
    codes = set(re.findall(r"\x1b\[([\d;]*)m", text))
    assert {"32", "1;31"} <= codes, "green what serves, red what does not answer"
    # Yellow, blue, white and black are unreadable on some backgrounds.
    colours = {number for code in codes for number in code.split(";") if len(number) == 2}
    assert colours <= {"31", "32", "35"}, codes


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (None, "-"),
        (0.0, "0 B"),
        (999.0, "999 B"),
        (1234.0, "1.23 kB"),
        (12_345_678.0, "12.3 MB"),
        (123.4e9, "123 GB"),
        (5e15, "5000 TB"),
        (float("inf"), "inf TB"),
        (float("nan"), "nan B"),
    ],
)
def test_rates(rate, text):
    assert rate_text(rate) == text
