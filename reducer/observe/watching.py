"""Decide how often `reducer status` looks, and print each look."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence

import click

from reducer.observe.summary import Process, Summary, summarize, to_json
from reducer.observe.tables import make_console, render

#: Pause between the two looks that rates need, in seconds.
RATE_S = 1.0

Look = Callable[[], list[Process]]


def show_once(look: Look, *, as_json: bool, verbose: bool) -> Sequence[Process]:
    """Print tables with rates over RATE_S, or JSON of a single look. Return the last look."""
    processes = look()
    before: Sequence[Process] = ()
    if not as_json and any(process.status is not None and process.status.jobs for process in processes):
        time.sleep(RATE_S)
        before, processes = processes, look()
    if any(process.status is not None for process in processes):
        _show(summarize(processes, before), as_json=as_json, verbose=verbose, clear=False)
    return processes


def watch(look: Look, seconds: float, *, as_json: bool, verbose: bool) -> None:
    """Print each look with its rates, until Ctrl-C. JSON is one line per look."""
    try:
        for summary in _looks(look, seconds):
            _show(summary, as_json=as_json, verbose=verbose, clear=True)
    except KeyboardInterrupt:
        return


def _looks(look: Look, seconds: float) -> Iterator[Summary]:
    before: Sequence[Process] = ()
    while True:
        processes = look()
        yield summarize(processes, before)
        before = processes
        time.sleep(seconds)


def _show(summary: Summary, *, as_json: bool, verbose: bool, clear: bool) -> None:
    if as_json:
        indent = None if clear else 2
        click.echo(json.dumps(to_json(summary), indent=indent, default=lambda value: value.hex()))
        return
    console = make_console()
    if clear:
        console.clear()  # does nothing if stdout is not a terminal
    render(console, summary, verbose=verbose)
