"""`reducer run` runs a training with reducers on one machine or a whole cluster, without code changes."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

import click
from click.core import ParameterSource
from reduction.discovery.cluster import DEFAULT_PORT, REDUCERS_VARIABLE, Cluster
from reduction.errors import ConfigError, ReducerUnavailable

from reducer.commands.sources import RUN_PREFIX
from reducer.config import TOKEN_FILE_VARIABLE
from reducer.launch import on_this_host, role, serving, world
from reducer.launch.waiting_for_reducers import wait_for_reducers

#: More processes on one host would only take turns on its cores.
REDUCERS_MAX = 64
#: How long workers wait for the reducers of a cluster, in seconds.
WAIT_FOR_REDUCERS_S = 600.0
_SECONDS = click.FloatRange(0, 1e9)


@click.command(
    short_help="Run a training with reducers, on one machine or a whole cluster.",
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "auto_envvar_prefix": RUN_PREFIX.removesuffix("_"),
    },
)
@click.option(
    "--reducers",
    type=click.IntRange(0, REDUCERS_MAX),
    default=1,
    metavar="N",
    help="Number of reducers to start, on free ports of 127.0.0.1. None are started with 0, or if REDUCTION_REDUCERS "
    "names some. Not for clusters.",
)
@click.option(
    "--auto",
    type=click.Choice(["ddp", "group"]),
    default="ddp",
    help="What goes through the reducers (REDUCTION_AUTO): gradients of DistributedDataParallel modules, or all "
    "all-reduces of the process group, which HSDP, LocalSGD and hand-written ones need. FSDP over all ranks has none.",
)
@click.option("--no-auto", is_flag=True, help="Reduce only what the script sends explicitly.")
@click.option(
    "--cluster",
    metavar="TEXT",
    help="Which hosts of the platform have reducers, such as slurm:1:50051 or vertex:workerpool1.  [default: "
    "REDUCTION_REDUCERS if it is such a string; otherwise what Vertex AI or SageMaker reports]",
)
@click.option(
    "--hosts",
    metavar="LIST",
    help="Alternative to --cluster: hosts with workers in node order, such as 'gpu-{0..3}', in quotes.",
)
@click.option("--reducer-hosts", metavar="LIST", help="Hosts with reducers, none of which has workers.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help=f"Port on which reducers listen, with --hosts.  [default: {DEFAULT_PORT}]",
)
@click.option(
    "--host", metavar="NAME", help="This host's name in the lists.  [default: by its name and addresses]"
)
@click.option(
    "--master-port",
    type=click.IntRange(1, 65535),
    default=world.MASTER_PORT,
    help="Port where the ranks meet, on the first host with workers.",
)
@click.option(
    "--wait-for-reducers",
    type=_SECONDS,
    default=WAIT_FOR_REDUCERS_S,
    metavar="SECONDS",
    help="How long hosts with workers wait for all reducers of the cluster.",
)
@click.option(
    "--wait-for-job",
    type=_SECONDS,
    metavar="SECONDS",
    help=f"How long hosts with reducers wait for the training.  [default: {serving.WAIT_FOR_JOB_S:g}]",
)
@click.option(
    "--exit-after-job",
    type=_SECONDS,
    metavar="SECONDS",
    help=f"How long hosts with reducers stay after the training.  [default: {serving.EXIT_AFTER_JOB_S:g}]",
)
@click.option("--insecure", is_flag=True, help="Let reducers of the cluster serve without TLS or token.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(
    context: click.Context,
    reducers: int,
    auto: str,
    no_auto: bool,
    cluster: str | None,
    hosts: str | None,
    reducer_hosts: str | None,
    port: int | None,
    host: str | None,
    master_port: int,
    wait_for_reducers: float,
    wait_for_job: float | None,
    exit_after_job: float | None,
    insecure: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND, such as `torchrun --nproc-per-node 4 SCRIPT`, with reducers that stop when it ends.

    \b
        reducer run -- torchrun --nproc-per-node 4 SCRIPT

    On a cluster the same command runs on every host. Hosts with reducers serve until the training has ended; they
    take the options of `reducer serve` from variables REDUCER_.... Hosts with workers wait for the reducers,
    and run COMMAND with the right number of nodes.

    \b
        srun --het-group=0,1 reducer run --cluster slurm:1:50051 -- \\
            torchrun --nproc-per-node 4 SCRIPT

    The script needs no changes. Its DistributedDataParallel modules average through the reducers; with --auto group
    all its all-reduces go through them. At the end a line reports what the reducers started here have done, or that
    no job came. Signals are forwarded, and the exit code is the command's, as in a shell: 127 if there is no such
    command, 128 + n if signal n ended it. Every option can also be set by a variable, such as REDUCER_RUN_CLUSTER for
    --cluster.
    """
    if command[0].startswith("-"):  # click takes words that are not our options as the command
        known = [name for parameter in context.command.params for name in parameter.opts]
        raise click.NoSuchOption(command[0], possibilities=get_close_matches(command[0], known), ctx=context)
    wish = None if no_auto else auto
    settings = role.Request(cluster=cluster, hosts=hosts, reducer_hosts=reducer_hosts, port=port, host=host)
    try:
        found = role.find(settings, os.environ)
        if found is None:
            sys.exit(_on_this_host(reducers, wish, command))
        if context.get_parameter_source("reducers") is not ParameterSource.DEFAULT:
            raise ConfigError(
                f"--reducers {reducers} starts reducers on one machine, and {found.source} names those of a "
                f"cluster: leave it out"
            )
        if found.role == "reducer":
            given = {"exit-after-job": exit_after_job, "wait-for-job": wait_for_job}
            _say(f"this host is reducer {found.index} of {len(found.reducers)} ({found.source})")
            serving.become_reducer(serving.serve_options(found, given, insecure=insecure, environ=os.environ))
        world.check(found, command, os.environ)
        _say(
            f"this host is node {found.index} of {len(found.workers)} ({found.source}), "
            f"MASTER_ADDR={found.workers[0]} MASTER_PORT={master_port}"
        )
        sys.exit(_as_worker(found, wish, master_port, wait_for_reducers, command))
    except ConfigError as error:
        _say(str(error))
        sys.exit(2)
    except ReducerUnavailable as error:
        _say(str(error))
        sys.exit(1)


def _on_this_host(reducers: int, auto: str | None, command: tuple[str, ...]) -> int:
    """Run the command with reducers on this host, and return its exit code."""
    named = os.environ.get(REDUCERS_VARIABLE)
    if named and reducers:
        _say(
            f"{REDUCERS_VARIABLE} names reducers ({named}); none is started here, and `reducer status` tells "
            f"afterwards what they have done"
        )
    logging.basicConfig(format="reducer run: %(message)s")
    with (
        on_this_host.running_reducers(0 if named else reducers) as running,
        on_this_host.variables_of(running) as variables,
    ):
        if running:
            _say(f"reducers at {', '.join(reducer.address for reducer in running)}")
            _say(f"`reducer status` and `reducer top` need --token-file {variables[TOKEN_FILE_VARIABLE]}")
        environment = on_this_host.settings_for(variables, auto)
        code = on_this_host.run(command, environment, running)
        if running:
            addresses = [reducer.address for reducer in running]
            _say(_closing_line(addresses, auto, running[0].token, environment, code))
        return code


def _as_worker(
    cluster: Cluster, auto: str | None, master_port: int, wait_s: float, command: tuple[str, ...]
) -> int:
    """Run the command as one node of the training once the reducers are ready, and return its exit code.

    Raises:
        ReducerUnavailable: the reducers did not become ready.
    """
    if cluster.reducers:
        wait_for_reducers(cluster.reducers, wait_s, _say)
    named = {REDUCERS_VARIABLE: ",".join(cluster.reducers)} if cluster.reducers else {}
    environment = on_this_host.settings_for(named, auto) | world.variables(cluster, master_port)
    code = on_this_host.run(command, environment)
    if cluster.index == 0 and cluster.reducers:
        _say(_closing_line(cluster.reducers, auto, None, environment, code))
    return code


def _closing_line(
    addresses: Sequence[str], auto: str | None, token: str | None, environment: Mapping[str, str], code: int
) -> str:
    # Only from here on gRPC is needed, which is slow to load. It would report failed handshakes on stderr.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from reducer.launch import closing

    try:
        access = closing.workers_access(environment) if token is None else closing.own_access(token)
        return closing.closing_line(addresses, access, auto, code)
    except ConfigError as error:  # the exit code is still the command's
        return f"its reducers cannot be asked what they have done: {error}"


def _say(text: str) -> None:
    click.echo(f"reducer run: {text}", err=True)
