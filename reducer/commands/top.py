"""`reducer top` shows the activity of reducers live."""

from __future__ import annotations

import os
import sys
from functools import partial

import click

from reducer.commands.asking import EXIT_NO_ANSWER, addresses_of, errors_for_users
from reducer.commands.options import asking_security_options
from reducer.config import TLS_OPTIONS

#: Default interval between two looks, in seconds.
INTERVAL_S = 1.0


@click.command(short_help="Watch reducers live.")
@click.argument("addresses", metavar="[ADDRESS]...", nargs=-1)
@click.option("--once", is_flag=True, help="Print one view and end; the default if stdout is not a terminal.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1, max=3600),
    default=INTERVAL_S,
    metavar="SECONDS",
    help="Refresh every SECONDS seconds.",
)
@asking_security_options
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1, max=3600),
    default=2.0,
    metavar="SECONDS",
    help="How long to wait for an answer.",
)
def top(
    addresses: tuple[str, ...],
    once: bool,
    interval: float,
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    token_file: str | None,
    timeout: float,
) -> None:
    """Watch the reducers at each ADDRESS: their CPU, memory and rates, their jobs, and events.

    ADDRESS is as for `reducer status`: HOST:PORT, a bare PORT, or any text that REDUCTION_REDUCERS
    accepts. For each job it shows the sums completed per second, the incoming payload, how long
    chunks wait for their last rank, which rank that is and how often. For each reducer it shows all its
    processes together, where 100 % of CPU is one core. `q` ends it.

    A reducer that does not answer stays on the screen and is retried. With --once the exit code
    is then 4, as for `reducer status`.
    """
    # gRPC would report failed connections on the screen.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from reduction.security.tls import tls_files

    from reducer.observe.live.terminal import run, show_once
    from reducer.observe.status import StatusAccess, look

    with errors_for_users():
        found = addresses_of(addresses, timeout)
        access = StatusAccess.of(tls_files(tls_cert, tls_key, tls_ca, TLS_OPTIONS), token_file)
        look_again = partial(look, found, timeout, access)
        if not once and sys.stdout.isatty():
            run(look_again, interval)
            return
        processes = show_once(look_again)
    silent = [process for process in processes if process.status is None]
    for process in silent:
        click.echo(f"reducer: no answer from {process.address}: {process.reason}", err=True)
    if any(process.is_given for process in silent):
        sys.exit(EXIT_NO_ANSWER)
