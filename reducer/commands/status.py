"""`reducer status` shows the status and the jobs of reducers."""

from __future__ import annotations

import os
import sys
from functools import partial

import click
from reduction.errors import ConfigError

from reducer.commands.asking import EXIT_NO_ANSWER, addresses_of, errors_for_users
from reducer.commands.options import asking_security_options
from reducer.config import TLS_OPTIONS

#: Default interval of `status --watch`, in seconds.
WATCH_S = 2.0


@click.command(short_help="Show what reducers serve.")
@click.argument("addresses", metavar="[ADDRESS]...", nargs=-1)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of tables; with --watch one line per refresh."
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Also list everything that each process knows about each job."
)
@click.option(
    "--watch",
    "watch_s",
    is_flag=False,
    flag_value=f"{WATCH_S:g}",
    metavar="[SECONDS]",
    help=f"Refresh every SECONDS seconds, {WATCH_S:g} by default, until Ctrl-C.",
)
@asking_security_options
@click.option("--timeout", type=float, default=5.0, metavar="SECONDS", help="How long to wait for an answer.")
def status(
    addresses: tuple[str, ...],
    as_json: bool,
    verbose: bool,
    watch_s: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    token_file: str | None,
    timeout: float,
) -> None:
    """Show what the reducers at each ADDRESS serve, in all their processes, and all their jobs together.

    ADDRESS is HOST:PORT, or a bare PORT of this machine. It may also be a string such as
    red-{0..3}:50051 or slurm:1:50051, in any form of REDUCTION_REDUCERS; separate several with commas.
    The default is what that variable or the platform names, or else 127.0.0.1:50051. Rates
    are computed from two samples: those of --watch, or two that are one second apart. JSON without
    --watch takes one sample, and has totals but no rates.

    A rank is called a straggler if it is the last to push 60 % of the chunks (75 % with two ranks),
    by at least 1 ms.

    A reducer with TLS requires a certificate here too, and one with tokens requires any of them. The
    exit code is 4 if nothing answers at an ADDRESS.
    """
    os.environ.setdefault(
        "GRPC_VERBOSITY", "ERROR"
    )  # gRPC would report failed handshakes on stderr, beside ours
    from reduction.security.tls import tls_files

    from reducer.observe.status import StatusAccess, look
    from reducer.observe.watching import show_once, watch

    with errors_for_users():
        seconds, addresses = watch_seconds(watch_s, addresses)
        addresses = addresses_of(addresses, timeout)
        access = StatusAccess.of(tls_files(tls_cert, tls_key, tls_ca, TLS_OPTIONS), token_file)
        look_again = partial(look, addresses, timeout, access)
        if seconds is not None:
            watch(look_again, seconds, as_json=as_json, verbose=verbose)
            return
        processes = show_once(look_again, as_json=as_json, verbose=verbose)
    silent = [process for process in processes if process.status is None]
    for process in silent:
        note = "" if process.is_given else "; it may be starting again"
        click.echo(f"reducer: no answer from {process.address}: {process.reason}{note}", err=True)
    if any(process.is_given for process in silent):
        sys.exit(EXIT_NO_ANSWER)


def watch_seconds(given: str | None, addresses: tuple[str, ...]) -> tuple[float | None, tuple[str, ...]]:
    """Return the seconds of --watch, and the addresses, since `--watch HOST:PORT` names an address.

    Raises:
        ConfigError: the seconds are not positive.
    """
    if given is None:
        return None, addresses
    try:
        seconds = float(given)
    except ValueError:
        return WATCH_S, (given, *addresses)
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"--watch {given}: must be positive")
    return seconds, addresses
