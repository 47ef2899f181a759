"""`reducer run` runs a training with reducers beside it, without a line of code."""

from __future__ import annotations

import os
import sys

import click

#: More processes on one host only take turns on its cores.
REDUCERS_MAX = 64


@click.command(
    short_help="Run a training through reducers on this host.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--reducers",
    type=click.IntRange(0, REDUCERS_MAX),
    default=1,
    metavar="N",
    help="Reducers to start, on free ports of 127.0.0.1. With 0, or where REDUCTION_REDUCERS names some, none.",
)
@click.option(
    "--auto/--no-auto",
    default=True,
    help="Have every DistributedDataParallel module of the command average through the reducers (REDUCTION_AUTO=ddp).",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(reducers: int, auto: bool, command: tuple[str, ...]) -> None:
    """Run COMMAND, such as `torchrun --nproc-per-node 4 SCRIPT`, with reducers that end when it ends.

    \b
        reducer run -- torchrun --nproc-per-node 4 SCRIPT

    The script needs no change: its DistributedDataParallel modules average through the reducers. Signals are
    passed on, and the exit code is the command's, as in a shell: 127 if there is no such command, 128 + n if signal n
    ended it.
    """
    from reduction.process.ready import NotReady

    from reducer.launch import on_this_host

    named = os.environ.get("REDUCTION_REDUCERS")
    if named and reducers:
        click.echo(
            f"reducer run: REDUCTION_REDUCERS names reducers ({named}); none is started here", err=True
        )
    try:
        with on_this_host.running_reducers(0 if named else reducers) as addresses:
            if addresses:
                click.echo(f"reducer run: reducers at {', '.join(addresses)}", err=True)
            environment = on_this_host.settings_for(addresses, "ddp" if auto else None)
            code = on_this_host.run(command, environment)
    except NotReady as error:
        click.echo(f"reducer run: {error}", err=True)
        code = 1
    sys.exit(code)
