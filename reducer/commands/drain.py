"""`reducer drain` asks reducers to drain, and waits until they have ended."""

from __future__ import annotations

import os
import sys

import click

from reducer.commands.asking import EXIT_NO_ANSWER, addresses_of, errors_for_users
from reducer.commands.options import asking_security_options
from reducer.config import TLS_OPTIONS

#: Timeout of a call, in seconds.
ANSWER_S = 5.0
#: Exit code when a reducer has not ended in time.
EXIT_NOT_ENDED = 5


@click.command(short_help="Drain and end reducers.")
@click.argument("addresses", metavar="ADDRESS...", nargs=-1, required=True)
@asking_security_options
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long to wait until all have ended.  [default: the reducers' longest drain timeout plus 10 seconds]",
)
def drain(
    addresses: tuple[str, ...],
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    token_file: str | None,
    timeout: float | None,
) -> None:
    """Drain the reducers at each ADDRESS, in all their processes, and wait until they have ended.

    ADDRESS is as for `reducer status`. A draining reducer accepts no new jobs. Its jobs move to their other
    reducers, and it ends when no job needs it, or after its --drain-timeout. Until it ends, the
    jobs that it waits for are shown on stderr.

    A reducer with tokens requires the token of `*`, or that of any job if its file has no such line.

    The exit code is 4 if an ADDRESS did not answer or refused, and 5 if a reducer has not ended in time.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # see `reducer status`
    from reduction.security.tls import tls_files

    from reducer.observe.drain_call import ask_to_drain, wait_for_end
    from reducer.observe.status import StatusAccess

    with errors_for_users():
        access = StatusAccess.of(tls_files(tls_cert, tls_key, tls_ca, TLS_OPTIONS), token_file)
        answers = ask_to_drain(addresses_of(addresses, ANSWER_S), ANSWER_S, access)
        for address, reason in answers.refusals.items():
            click.echo(f"reducer: no answer from {address}: {reason}", err=True)
        limit_s = answers.timeout_s + 10 if timeout is None else timeout
        left = wait_for_end(answers.processes, limit_s, access, lambda line: click.echo(line, err=True))
    if left:
        click.echo(f"reducer: not ended after {limit_s:g} s: {', '.join(left)}", err=True)
    sys.exit(EXIT_NO_ANSWER if answers.refusals else EXIT_NOT_ENDED if left else 0)
