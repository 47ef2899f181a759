"""The `reducer` command.

Exit codes: 0 stopped after draining, or status shown; 1 an error inside; 2 wrong usage, settings or files;
3 an address could not be bound; 4 `status` got no answer, or was refused; 130 a second signal cut the draining short.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import asdict

import click
from reduction import __version__
from reduction.errors import ConfigError

from reducer.config import DRAIN_TIMEOUT_S, TLS_OPTIONS, WORKERS_MAX, ReducerConfig
from reducer.resources.allowance import MEMORY_SHARE, WORKERS_DEFAULT_MAX

EXIT_BIND = 3
EXIT_NO_ANSWER = 4

#: So that what a peer wrote stays on its line, and moves no cursor.
_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


class LineFormatter(logging.Formatter):
    """One line per record, whatever a peer's message has in it; tracebacks follow as they are."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return super().formatMessage(record).translate(_VISIBLE)


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


@main.command()
@click.option("--bind", required=True, metavar="HOST:PORT", help="Address to serve; port 0 picks a free one.")
@click.option(
    "--data-port",
    type=int,
    default=0,
    metavar="PORT",
    help="TCP data plane on the same host; 0 picks a free one. Workers that cannot reach it stay on gRPC.",
)
@click.option("--metrics-port", type=int, help="Serve Prometheus metrics on this port of the same host.")
@click.option(
    "--memory-limit",
    type=int,
    metavar="BYTES",
    help=f"Most bytes that all jobs together may reserve, in all processes.  [default: {MEMORY_SHARE:.0%} of the "
    "memory of this machine or container]",
)
@click.option(
    "--workers",
    type=int,
    metavar="N",
    help="Processes that serve; those after the first take free ports.  [default: the whole cores that this "
    f"machine or container has, at most {WORKERS_DEFAULT_MAX}; up to {WORKERS_MAX}]",
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
    workers: int | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    token_file: str | None,
    insecure: bool,
    drain_timeout: float,
    log_level: str,
    stop_with_stdin: bool,
) -> None:
    """Run one reducer until SIGTERM.

    Prints the one line `listening on HOST:PORT` to stdout when it is ready; logs go to stderr.
    """
    # Its handlers only complain when we start siblings, which never use the parent's connections.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    from reducer.resources.heap import use_few_arenas

    use_few_arenas()
    import uvloop

    from reducer.lifecycle import BindError
    from reducer.lifecycle import serve as run

    handler = logging.StreamHandler()
    handler.setFormatter(
        LineFormatter("%(asctime)s level=%(levelname)s logger=%(name)s pid=%(process)d %(message)s")
    )
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    given = {"workers": workers, "memory_limit_bytes": memory_limit}
    try:
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
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    try:
        uvloop.run(run(config))
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    except BindError as error:
        click.echo(f"reducer: {error}", err=True)
        sys.exit(EXIT_BIND)


@main.command()
@click.argument("address", metavar="HOST:PORT")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@_security_options
@click.option("--timeout", type=float, default=5.0, metavar="SECONDS", help="How long to wait for an answer.")
def status(
    address: str,
    as_json: bool,
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    token_file: str | None,
    timeout: float,
) -> None:
    """Show what a reducer serves, in all its processes; JSON has the one that answers.

    A reducer with TLS asks for a certificate here too, and one with tokens for any of them.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # it would report handshakes beside us
    from reduction.security.tls import tls_files

    from reducer.observe.status import Access, NoAnswer, fetch, render

    try:
        access = Access.of(tls_files(tls_cert, tls_key, tls_ca, TLS_OPTIONS), token_file)
        answer = fetch(address, timeout, access)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    except NoAnswer as error:
        click.echo(f"reducer: no answer from {address}: {error}", err=True)
        sys.exit(EXIT_NO_ANSWER)
    if as_json:
        click.echo(json.dumps(asdict(answer), indent=2, default=lambda value: value.hex()))
        return
    render(address, answer)
    for port in answer.siblings:
        sibling = f"{address.rpartition(':')[0]}:{port}"
        try:
            render(sibling, fetch(sibling, timeout, access))
        except NoAnswer:
            click.echo(f"{sibling}: no answer; it may be starting again", err=True)
