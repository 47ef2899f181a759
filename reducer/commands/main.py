"""The `reducer` command.

Exit codes: 0 stopped after draining, or status shown; 1 an error inside; 2 wrong usage, settings or files;
3 an address could not be bound; 4 `status` got no answer, or was refused; 130 a second signal cut the draining short.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import partial

import click
from reduction import __version__
from reduction.errors import ConfigError
from reduction.limits import PROCESSES_MAX

from reducer.config import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    DRAIN_TIMEOUT_S,
    TLS_OPTIONS,
    ReducerConfig,
    complete_address,
    split_address,
)
from reducer.resources.allowance import MEMORY_SHARE, PROCESSES_DEFAULT_MAX
from reducer.resources.sizes import size

#: Between two looks of `status --watch`, in seconds.
WATCH_S = 2.0
EXIT_BIND = 3
EXIT_NO_ANSWER = 4

#: So that what a peer wrote stays on its line, and moves no cursor.
_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


class LineFormatter(logging.Formatter):
    """One line per record, whatever a peer's message has in it; tracebacks follow as they are."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return super().formatMessage(record).translate(_VISIBLE)


class _Renamed(click.Option):
    """An option whose help shows the first of its names only; the others are former ones."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """See `click.Parameter`."""
        record = super().get_help_record(ctx)
        if record is None:
            return None
        for former in self.opts[1:]:
            record = record[0].replace(f", {former}", ""), record[1]
        return record


def _security_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that server and `status` have in common."""
    file = click.Path(dir_okay=False)
    texts = (
        "Certificate (chain) to show",
        "Its private key",
        "CA that the other side's certificate must lead to",
    )
    for option, text in reversed(tuple(zip(TLS_OPTIONS, texts, strict=True))):
        command = click.option(option, type=file, help=f"{text}, PEM. All three or none.")(command)
    return click.option(
        "--token-file", type=file, help="Lines of JOB:TOKEN, *:TOKEN for any other job. See SECURITY.md."
    )(command)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="reducer")
def main() -> None:
    """Sum gradients for PyTorch data-parallel training."""


@main.command(short_help="Run one reducer.")
@click.option(
    "--bind",
    default=f"{DEFAULT_HOST}:{DEFAULT_PORT}",
    metavar="HOST:PORT",
    help=f"Address to serve; port 0 picks a free one. A bare PORT is on {DEFAULT_HOST}.",
)
@click.option(
    "--data-port",
    type=int,
    default=0,
    metavar="PORT",
    help="TCP data plane on the same host; 0 picks a free one, otherwise process i serves PORT + i. Workers that "
    "cannot reach it stay on gRPC.",
)
@click.option(
    "--metrics-port",
    type=int,
    metavar="PORT",
    help="Serve Prometheus metrics on the same host: process i serves PORT + i, from i = 0, each about itself.",
)
@click.option(
    "--memory-limit",
    type=size,
    metavar="SIZE",
    help="Most memory that all jobs together may reserve, in all processes: bytes, or with K, M, G (KiB, MiB, GiB).  "
    f"[default: {MEMORY_SHARE:.0%} of the memory of this machine or container]",
)
@click.option(
    "--processes",
    "--workers",
    "processes",
    cls=_Renamed,
    type=int,
    metavar="N",
    help="Processes that serve; those after the first take free ports.  [default: the whole cores that this "
    f"machine or container has, at most {PROCESSES_DEFAULT_MAX}; up to {PROCESSES_MAX}]",
)
@_security_options
@click.option("--insecure", is_flag=True, help="Allow a non-loopback address without TLS or token.")
@click.option(
    "--drain-timeout",
    type=float,
    default=DRAIN_TIMEOUT_S,
    metavar="SECONDS",
    help="How long SIGTERM waits for jobs to move to other reducers or end.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="What goes to stderr.",
)
@click.option("--stop-with-stdin", is_flag=True, hidden=True, help="Stop when stdin closes.")
def serve(
    bind: str,
    data_port: int,
    metrics_port: int | None,
    memory_limit: int | None,
    processes: int | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    token_file: str | None,
    insecure: bool,
    drain_timeout: float,
    log_level: str,
    stop_with_stdin: bool,
) -> None:
    """Run one reducer until SIGTERM or Ctrl-C; a second one ends it at once, with all its processes.

    Prints the one line `listening on HOST:PORT` to stdout when it is ready; logs go to stderr.
    """
    # Its handlers only complain when we start siblings, which never use the parent's connections.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    from reducer.resources.heap import use_few_arenas

    use_few_arenas()
    import uvloop

    from reducer.binding import BindError, check_host
    from reducer.process.lifecycle import serve as run

    handler = logging.StreamHandler()
    handler.setFormatter(
        LineFormatter("%(asctime)s level=%(levelname)s logger=%(name)s pid=%(process)d %(message)s")
    )
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    given = {"processes": processes, "memory_limit_bytes": memory_limit}
    try:
        bind = complete_address(bind)
        check_host(bind, split_address(bind)[0])
        config = ReducerConfig(
            bind=bind,
            data_port=data_port,
            metrics_port=metrics_port,
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_ca=tls_ca,
            token_file=token_file,
            insecure=insecure,
            stop_with_stdin=stop_with_stdin,
            drain_timeout_s=drain_timeout,
            **{name: value for name, value in given.items() if value is not None},
        )
        uvloop.run(run(config))
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    except BindError as error:
        click.echo(f"reducer: {error}", err=True)
        sys.exit(EXIT_BIND)


@main.command(short_help="Show what reducers serve.")
@click.argument("addresses", metavar="[ADDRESS]...", nargs=-1)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of tables; with --watch a line per look."
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Also list everything that each process knows of each job."
)
@click.option(
    "--watch",
    "watch_s",
    is_flag=False,
    flag_value=f"{WATCH_S:g}",
    metavar="[SECONDS]",
    help=f"Look again every so many seconds, {WATCH_S:g} if none are given, until Ctrl-C.",
)
@_security_options
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
    """Show what the reducers at each ADDRESS serve, in all their processes, and the jobs of all together.

    ADDRESS is HOST:PORT, or a bare PORT of this machine; 127.0.0.1:50051 if there is none. Rates are those between
    two looks: of --watch, or one second apart. JSON without --watch takes one look and has no rates, only totals.

    A rank is called a straggler if it is the last to push 60 % of the chunks (of two ranks 75 %), by 1 ms at least.

    A reducer with TLS asks for a certificate here too, and one with tokens for any of them. The exit code is 4 if
    nobody answers at an ADDRESS.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # it would report handshakes beside us
    from reduction.security.tls import tls_files

    from reducer.observe.status import Access, look
    from reducer.observe.watching import show_once, watch

    try:
        seconds, addresses = _watch_seconds(watch_s, addresses)
        addresses = tuple(map(complete_address, addresses)) or (f"{DEFAULT_HOST}:{DEFAULT_PORT}",)
        for address in addresses:
            split_address(address)
        access = Access.of(tls_files(tls_cert, tls_key, tls_ca, TLS_OPTIONS), token_file)
        look_again = partial(look, addresses, timeout, access)
        if seconds is not None:
            watch(look_again, seconds, as_json=as_json, verbose=verbose)
            return
        processes = show_once(look_again, as_json=as_json, verbose=verbose)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    silent = [process for process in processes if process.status is None]
    for process in silent:
        note = "" if process.is_given else "; it may be starting again"
        click.echo(f"reducer: no answer from {process.address}: {process.reason}{note}", err=True)
    if any(process.is_given for process in silent):
        sys.exit(EXIT_NO_ANSWER)


def _watch_seconds(given: str | None, addresses: tuple[str, ...]) -> tuple[float | None, tuple[str, ...]]:
    """Return the seconds of --watch and the addresses: `--watch HOST:PORT` has no seconds, but an address.

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
