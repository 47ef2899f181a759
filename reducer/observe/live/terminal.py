"""Show views on the terminal until `q`: draw, read keys, and poll the reducers on a thread."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue

from rich.live import Live

from reducer.observe.live.screen import render
from reducer.observe.live.view import View, Watcher
from reducer.observe.summary import Process
from reducer.observe.tables import make_console
from reducer.observe.watching import RATE_S

Look = Callable[[], list[Process]]

#: How long the screen waits for a key before it looks for news, in seconds.
KEY_S = 0.1
HINT = "q quits"


def show_once(look: Look) -> Sequence[Process]:
    """Print one view, with the rates of RATE_S if there are jobs. Return the last look."""
    watcher = Watcher()
    processes = look()
    view = watcher.take(processes, time.time())
    if any(process.status is not None for process in processes):
        time.sleep(RATE_S)
        processes = look()
        view = watcher.take(processes, time.time())
    console = make_console()
    console.print(render(console, view))
    return processes


def run(look: Look, interval_s: float) -> None:
    """Show a view every `interval_s` seconds until the user types q or Ctrl-C.

    Raises:
        Exception: any error of `look`.
    """
    console = make_console()
    views: SimpleQueue[View | Exception] = SimpleQueue()
    # A look may take as long as the timeout of a silent reducer, and keys must not wait for it.
    threading.Thread(target=_look_again, args=(look, interval_s, views), daemon=True).start()
    view: View | None = None
    size = console.size
    with _ended_well(), _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(f"asking ...  {HINT}", refresh=True)
        while pressed() not in ("q", "Q"):
            latest = _newest(views)
            if isinstance(latest, Exception):
                raise latest
            if latest is None and console.size == size:
                continue
            view, size = latest or view, console.size
            if view is not None:
                live.update(render(console, view, height=size.height, hint=HINT), refresh=True)


def _look_again(look: Look, interval_s: float, views: SimpleQueue[View | Exception]) -> None:
    watcher = Watcher()
    while True:
        started = time.monotonic()
        try:
            views.put(watcher.take(look(), time.time()))
        except Exception as error:
            views.put(error)
            return
        time.sleep(max(0.0, started + interval_s - time.monotonic()))


def _newest(views: SimpleQueue[View | Exception]) -> View | Exception | None:
    newest = None
    while True:
        try:
            newest = views.get_nowait()
        except Empty:
            return newest


@contextmanager
def _ended_well() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the view cleanly, so that the terminal is restored."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, former)


@contextmanager
def _keys() -> Iterator[Callable[[], str]]:
    """Yield a function that waits KEY_S for a key, and returns the key or "".

    Without a terminal on stdin there are no keys, and the function only waits.
    """
    if not sys.stdin.isatty():

        def none() -> str:
            time.sleep(KEY_S)
            return ""

        yield none
        return
    descriptor = sys.stdin.fileno()
    former = termios.tcgetattr(descriptor)

    def pressed() -> str:
        ready, _, _ = select.select([descriptor], [], [], KEY_S)
        return os.read(descriptor, 1).decode("latin-1") if ready else ""

    tty.setcbreak(descriptor)
    try:
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, former)
