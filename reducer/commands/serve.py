"""`reducer serve` runs one reducer."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from reduction.discovery.cluster import DEFAULT_PORT
from reduction.errors import ConfigError
from reduction.limits import PROCESSES_MAX
from reduction.process.launch import SETTINGS_PREFIX
from reduction.process.place import link_mbit
from reduction.values import from_json

from reducer.commands import sources
from reducer.commands.options import RenamedOption, security_options
from reducer.commands.own_address import own_address
from reducer.config import (
    DEFAULT_HOST,
    DRAIN_TIMEOUT_S,
    LOG_FORMATS,
    LOG_LEVELS,
    ReducerConfig,
    split_address,
)
from reducer.process.supervisor import supervise
from reducer.resources.host_limits import MEMORY_SHARE, PROCESSES_DEFAULT_MAX
from reducer.resources.ports import PortRange
from reducer.resources.sizes import size

log = logging.getLogger(__name__)

#: Exit code when an address could not be bound.
EXIT_BIND = 3
#: Exit code when no job came in time.
EXIT_NO_JOB = 5
#: Fields of ReducerConfig with a unit in their name, by the option without it.
_FIELDS = {
    "memory_limit": "memory_limit_bytes",
    "link": "link_mbit",
    "drain_timeout": "drain_timeout_s",
    "exit_after_job": "exit_after_job_s",
    "wait_for_job": "wait_for_job_s",
}


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


#: Parsers of options whose fields are not strings. Their errors name the option and the problem.
_READ: dict[str, Callable[[str], Any]] = {
    "port_range": PortRange.of,
    "page_hosts": _names,
    "link_mbit": partial(link_mbit, "--link"),
}


@click.command(
    cls=sources.SettingsCommand,
    short_help="Run one reducer.",
    context_settings={"auto_envvar_prefix": SETTINGS_PREFIX.removesuffix("_")},
)
@click.option(
    "--bind",
    metavar="HOST:PORT",
    help=f"Address to serve; port 0 picks a free one. A bare PORT is on {DEFAULT_HOST}.  [default: what Vertex AI, "
    f"SageMaker or Slurm reports for this host, else {DEFAULT_HOST}:{DEFAULT_PORT}]",
)
@click.option(
    "--data-port",
    type=int,
    default=0,
    metavar="PORT",
    help="Port of the TCP data plane on the same host; 0 picks a free one, otherwise process i serves PORT + i. "
    "Workers that cannot reach it stay on gRPC.",
)
@click.option(
    "--metrics-port",
    type=int,
    metavar="PORT",
    help="Serve /metrics of all processes for Prometheus, and /livez and /readyz, over HTTP on the same host. With "
    "--port-range, 0 takes its last port.",
)
@click.option(
    "--port-range",
    metavar="FIRST-LAST",
    help="Take all ports from this range: process i, from i = 0, serves gRPC at FIRST + 2i and data at FIRST + 2i + 1; "
    "with --metrics-port 0, metrics are at LAST.",
)
@click.option(
    "--page",
    is_flag=True,
    help="Also serve a page for browsers on the metrics port, at /, with all jobs, this reducer and events; see "
    "SECURITY.md.",
)
@click.option(
    "--page-hosts",
    metavar="NAMES",
    help="Comma-separated names of this host by which browsers may request the page, or * for all. IP addresses, names "
    "without a dot, the host's own name and that of --bind are always allowed.",
)
@click.option(
    "--memory-limit",
    type=size,
    metavar="SIZE",
    help="Memory that all jobs together may reserve in all processes: bytes, or with K, M, G (KiB, MiB, GiB).  "
    f"[default: {MEMORY_SHARE:.0%} of the memory of this machine or container]",
)
@click.option(
    "--processes",
    "--workers",
    "processes",
    cls=RenamedOption,
    type=int,
    metavar="N",
    help="Number of serving processes; all but the first take free ports. A parent process restarts those that "
    "end; with 1 there is no parent, unless a platform provided --bind.  [default: the whole cores of this "
    f"machine or container, at most {PROCESSES_DEFAULT_MAX}; up to {PROCESSES_MAX}]",
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
    help="How long to wait after SIGTERM for jobs to move to other reducers or end.",
)
@click.option(
    "--exit-after-job",
    type=float,
    metavar="SECONDS",
    help="End with exit code 0 this long after the last job has left. Before its first job a reducer waits "
    "indefinitely.",
)
@click.option(
    "--trace",
    type=click.Path(file_okay=False),
    metavar="DIRECTORY",
    help="Record when this reducer received and published each collective of a job; written when the job ends or on "
    "SIGUSR2. `reducer trace` reads it.",
)
@click.option(
    "--wait-for-job",
    type=float,
    metavar="SECONDS",
    help="End with exit code 5 if no job has come by then.  [default: wait indefinitely]",
)
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="info",
    help="Minimum level of logs on stderr.",
)
@click.option("--log-format", type=click.Choice(LOG_FORMATS), default=LOG_FORMATS[0], help="Format of logs.")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=sources.read_file,
    help='TOML file with options, such as bind = "0.0.0.0:50051".',
)
@click.option(
    "--check",
    is_flag=True,
    allow_from_autoenv=False,
    help="Only check settings, certificates and tokens, and print the settings as a file for --config.",
)
@click.option(
    "--stop-with-stdin", is_flag=True, hidden=True, allow_from_autoenv=False, help="Stop when stdin closes."
)
@click.option("--ports-are-held", is_flag=True, hidden=True, allow_from_autoenv=False)
@click.option("--under-supervisor", metavar="CONFIG", hidden=True, allow_from_autoenv=False)
@click.pass_context
def serve(
    context: click.Context, /, bind: str | None, check: bool, under_supervisor: str | None, **options: Any
) -> None:
    """Run one reducer until SIGTERM, Ctrl-C or `reducer drain`; a second signal ends all its processes immediately.

    Prints the single line `listening on HOST:PORT` to stdout when it is ready; logs go to stderr.

    Every option can also be set by a variable, such as REDUCER_BIND for --bind, or in the --config
    file. The command line takes precedence over variables, and variables over the file.

    Exit codes: 0 drained, or its job is over; 1 its processes keep ending; 2 wrong settings or files; 3 an address
    cannot be bound; 5 no job came within --wait-for-job; 130 a second signal cut the draining short.
    """
    from reducer.binding import BindError, check_host
    from reducer.process.unused import NoJob

    address = None
    try:
        if under_supervisor is not None:
            config = from_json(ReducerConfig, json.loads(under_supervisor))
            _log_as(config.log_level, config.log_format)
            _serve(config)
            return
        _log_as(options["log_level"], options["log_format"])
        for text in sources.unknown_variables(context.command):
            log.warning("%s", text)
        settings = {_FIELDS.get(name, name): value for name, value in options.items() if value is not None}
        for field, read in _READ.items():
            if field in settings:
                settings[field] = read(settings[field])
        address = own_address(bind, settings.get("port_range"), os.environ)
        check_host(address.bind, split_address(address.bind)[0])
        config = ReducerConfig(bind=address.bind, **settings)
        if check:
            _check(config)
            found = {
                "bind": (address.bind, "default" if address.platform is None else f"from {address.platform}"),
                "processes": (config.processes, "default: cores"),
                "memory-limit": (config.memory_limit_bytes, f"default: {MEMORY_SHARE:.0%} of the memory"),
            }
            for line in sources.as_file(context, found):
                click.echo(line)
        elif options["processes"] == 1 and address.platform is None:
            _serve(config)
        else:
            if address.platform is not None:
                log.info("--bind %s", address)
            sys.exit(asyncio.run(supervise(config)))
    except ConfigError as error:
        platform = "" if address is None or address.platform is None else f"; --bind {address}"
        raise click.UsageError(f"{error}{platform}{sources.from_elsewhere(context)}") from None
    except BindError as error:
        click.echo(f"reducer: {error}", err=True)
        sys.exit(EXIT_BIND)
    except NoJob as error:
        click.echo(f"reducer: {error}", err=True)
        sys.exit(EXIT_NO_JOB)


def _log_as(level: str, form: str) -> None:
    from reducer.observe.log_formats import formatter

    handler = logging.StreamHandler()
    handler.setFormatter(formatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _serve(config: ReducerConfig) -> None:
    """Serve in this process. The imports are here because a supervisor must not load them."""
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # this process never forks
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC would log every failed TLS handshake
    from reducer.resources.heap import use_few_arenas

    use_few_arenas()
    import uvloop

    from reducer.process.lifecycle import serve as serve_until_stopped

    uvloop.run(serve_until_stopped(config))


def _check(config: ReducerConfig) -> None:
    """Read certificates and tokens as `serve` would. Ports are not bound.

    Raises:
        ConfigError: a file cannot be used.
    """
    from reducer.credentials import Certificates, Tokens

    if config.tls is not None:
        Certificates(config.tls)
    if config.token_file is not None:
        Tokens(config.token_file)
