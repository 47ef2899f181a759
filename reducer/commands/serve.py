"""`reducer serve` runs one reducer."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import fields
from pathlib import Path

import click
from reduction.discovery.cluster import DEFAULT_PORT
from reduction.errors import ConfigError
from reduction.limits import PROCESSES_MAX
from reduction.process.launch import SETTINGS_PREFIX
from reduction.process.place import link_mbit

from reducer.commands import sources
from reducer.commands.options import RenamedOption, security_options
from reducer.config import (
    DEFAULT_HOST,
    DRAIN_TIMEOUT_S,
    LOG_FORMATS,
    ReducerConfig,
    complete_address,
    split_address,
)
from reducer.resources.allowance import MEMORY_SHARE, PROCESSES_DEFAULT_MAX
from reducer.resources.sizes import size

#: Exit code when an address could not be bound.
EXIT_BIND = 3
#: Exit code when no job came in time.
EXIT_NO_JOB = 5


@click.command(
    cls=sources.SettingsCommand,
    short_help="Run one reducer.",
    context_settings={"auto_envvar_prefix": SETTINGS_PREFIX.removesuffix("_")},
)
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
    help="Serve /metrics for Prometheus, /livez and /readyz over HTTP on the same host: process i serves PORT + i, "
    "from i = 0, each about itself.",
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
    cls=RenamedOption,
    type=int,
    metavar="N",
    help="Processes that serve; those after the first take free ports.  [default: the whole cores that this "
    f"machine or container has, at most {PROCESSES_DEFAULT_MAX}; up to {PROCESSES_MAX}]",
)
@security_options
@click.option("--insecure", is_flag=True, help="Allow a non-loopback address without TLS or token.")
@click.option(
    "--link",
    metavar="RATE",
    help="Rate of this host's link in its slower direction, such as 25G or 100M. Hosts with faster links get a "
    "larger share.  [default: all links of a job count as equal]",
)
@click.option(
    "--drain-timeout",
    type=float,
    default=DRAIN_TIMEOUT_S,
    metavar="SECONDS",
    help="How long SIGTERM waits for jobs to move to other reducers or end.",
)
@click.option(
    "--exit-after-job",
    type=float,
    metavar="SECONDS",
    help="End with exit code 0 that long after the last job has left; before its first job a reducer waits for ever.",
)
@click.option(
    "--wait-for-job",
    type=float,
    metavar="SECONDS",
    help="End with exit code 5 if no job has come by then.  [default: wait for ever]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="What goes to stderr.",
)
@click.option(
    "--log-format", type=click.Choice(LOG_FORMATS), default=LOG_FORMATS[0], help="How it is written."
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=sources.read_file,
    help='TOML with options, such as bind = "0.0.0.0:50051".',
)
@click.option(
    "--check",
    is_flag=True,
    allow_from_autoenv=False,
    help="Only check settings, certificates and tokens, and show them.",
)
@click.option(
    "--stop-with-stdin", is_flag=True, hidden=True, allow_from_autoenv=False, help="Stop when stdin closes."
)
@click.pass_context
def serve(
    context: click.Context,
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
    link: str | None,
    drain_timeout: float,
    exit_after_job: float | None,
    wait_for_job: float | None,
    log_level: str,
    log_format: str,
    check: bool,
    stop_with_stdin: bool,
) -> None:
    """Run one reducer until SIGTERM or Ctrl-C; a second one ends it at once, with all its processes.

    Prints the one line `listening on HOST:PORT` to stdout when it is ready; logs go to stderr.

    Every option is also a variable, REDUCER_BIND for --bind and so on, or a line of the --config
    file. The command line counts first, then the variables, then the file.
    """
    # gRPC's fork handlers would only complain when this process starts its siblings, which never
    # use the parent's connections.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    from reducer.resources.heap import use_few_arenas

    use_few_arenas()
    import uvloop

    from reducer.binding import BindError, check_host
    from reducer.observe.log_lines import formatter
    from reducer.process.lifecycle import NoJob
    from reducer.process.lifecycle import serve as serve_until_stopped

    handler = logging.StreamHandler()
    handler.setFormatter(formatter(log_format))
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    for text in sources.unknown_variables(context.command):
        logging.getLogger(__name__).warning("%s", text)
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
            link_mbit=0 if link is None else link_mbit("--link", link),
            stop_with_stdin=stop_with_stdin,
            drain_timeout_s=drain_timeout,
            exit_after_job_s=exit_after_job,
            wait_for_job_s=wait_for_job,
            log_format=log_format,
            **{name: value for name, value in given.items() if value is not None},
        )
        if check:
            _check(config)
            return
        uvloop.run(serve_until_stopped(config))
    except ConfigError as error:
        raise click.UsageError(f"{error}{sources.from_elsewhere(context)}") from None
    except BindError as error:
        click.echo(f"reducer: {error}", err=True)
        sys.exit(EXIT_BIND)
    except NoJob as error:
        click.echo(f"reducer: {error}", err=True)
        sys.exit(EXIT_NO_JOB)


def _check(config: ReducerConfig) -> None:
    """Read certificates and tokens as `serve` would, and print the settings. Ports are not bound.

    Raises:
        ConfigError: a file cannot be used.
    """
    from reducer.credentials import Certificates, Tokens

    if config.tls is not None:
        Certificates(config.tls)
    if config.token_file is not None:
        Tokens(config.token_file)
    for item in fields(config):
        click.echo(f"{item.name} = {getattr(config, item.name)}")
