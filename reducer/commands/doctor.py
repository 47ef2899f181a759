"""`reducer doctor` reports whether reducers can be used from here, how fast, and what to fix first."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import secrets
import sys
from typing import TYPE_CHECKING, Any, TextIO

import click
from reduction.errors import ConfigError, ReducerUnavailable, ReductionError
from reduction.process.place import link_mbit
from reduction.security.tls import tls_files

from reducer.commands.asking import named
from reducer.commands.options import (
    WORKERS_MAX,
    asking_security_options,
    model_options,
    price_options,
    prices_of,
)
from reducer.config import TLS_OPTIONS

if TYPE_CHECKING:
    from reducer.doctor.facts import Facts


@click.command(short_help="Find out what is broken or slow, and what to fix first.")
@click.argument("addresses", metavar="[ADDRESS]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print everything that was measured and found as JSON.")
@click.option("--no-rates", is_flag=True, help="Do not measure bandwidth; only a few kilobytes are sent.")
@click.option("--anyway", is_flag=True, help="Measure bandwidth even if jobs are running, which slows them.")
@click.option("--link", metavar="RATE", help="Expected rate of this host's link, such as 25G or 100M.")
@model_options(is_required=False)
@click.option(
    "--workers",
    type=click.IntRange(2, WORKERS_MAX),
    metavar="COUNT",
    help="Number of training machines for the prediction.  [default: those that were measured]",
)
@price_options
@asking_security_options
@click.option("--job", metavar="NAME", help="Name of the doctor's job, if tokens are only for certain jobs.")
@click.option("--timeout", type=float, default=5.0, metavar="SECONDS", help="How long to wait for an answer.")
@click.option(
    "--facts",
    type=click.File(),
    metavar="FILE",
    help="Measure nothing; evaluate measurements of `--json` or `reduction_server.doctor`. - is stdin.",
)
def doctor(
    addresses: tuple[str, ...],
    as_json: bool,
    no_rates: bool,
    anyway: bool,
    link: str | None,
    parameters: float | None,
    parameter_bytes: int,
    compute: float,
    bucket: int,
    workers: int | None,
    worker_price: float | None,
    reducer_price: float | None,
    steps: int | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    token_file: str | None,
    job: str | None,
    timeout: float,
    facts: TextIO | None,
) -> None:
    """Check from a worker's host whether the reducers at each ADDRESS can be used, and how fast.

    ADDRESS is as for `reducer status`, in any form of REDUCTION_REDUCERS; the default is what that
    variable or the platform names, or else 127.0.0.1:50051. It does not need torch. For all ranks together:

    \b
    torchrun ... -m reduction_server.doctor

    Bandwidth is measured over the real data plane, in the doctor's own job, for about 15 s. This
    cannot change sums of another job but slows it, so it is skipped if jobs are running.

    Exit codes: 0 everything is good; 1 it works, but something makes it slow; 2 it does not work.
    """
    # Modules that import gRPC, numpy or rich are imported where they are needed, because the doctor of all ranks
    # runs this command once per rank, and once more to judge.
    from reducer.doctor.facts import from_json
    from reducer.doctor.findings import first, verdict
    from reducer.doctor.judge import judge
    from reducer.doctor.model import Model, forecast

    prices = prices_of(worker_price, reducer_price, steps)
    try:
        expected = 0 if link is None else link_mbit("--link", link)
        if timeout <= 0:
            raise ConfigError(f"--timeout {timeout:g}: must be positive")
        if parameters is None and (compute or workers is not None or prices is not None):
            raise ConfigError("--compute, --workers and prices are for a prediction: give --parameters too")
        if facts is not None:
            document = _document(facts)
            measured = from_json(document.get("facts", document))
            _check_ranks(measured)
        else:
            # Otherwise gRPC would report failed handshakes on stderr, and our client closed data ports.
            os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
            logging.getLogger("reduction.client").setLevel(logging.ERROR)
            import uvloop

            from reducer.doctor.examine import examine
            from reducer.doctor.reach import Visit
            from reducer.observe.status import StatusAccess
            from reducer.recent import DOCTOR_PREFIX

            access = StatusAccess.of(tls_files(tls_cert, tls_key, tls_ca, TLS_OPTIONS), token_file)
            visit = Visit(
                access=access, job=job or f"{DOCTOR_PREFIX}{secrets.token_hex(4)}", timeout_s=timeout
            )
            access.metadata_of(visit.job)  # or each reducer would be reported as broken
            texts, source = named(addresses)
            measured = uvloop.run(examine(texts, source, visit, with_rates=not no_rates, anyway=anyway))
    except ReducerUnavailable as error:  # a DNS name without addresses
        click.echo(f"BROKEN addresses: {error}", err=True)
        sys.exit(2)
    except (ConfigError, ReductionError) as error:
        raise click.UsageError(str(error)) from None
    if expected:
        measured = dataclasses.replace(measured, expected_mbit=float(expected))
    findings = judge(measured)
    predicted = None
    if parameters is not None:
        model = Model(
            workers=workers or max(2, len(measured.workers)),
            gradient_bytes=parameters * parameter_bytes,
            compute_s=compute,
            bucket_bytes=bucket,
            prices=prices,
        )
        predicted = forecast(measured, model)
    if as_json:
        worst = first(findings)
        answer = {
            "verdict": verdict(findings).name.lower(),
            "fix_first": None if worst is None else _finding(worst),
            "findings": [_finding(finding) for finding in findings],
            "forecast": None if predicted is None else dataclasses.asdict(predicted),
            "facts": dataclasses.asdict(measured),
        }
        click.echo(json.dumps(answer, indent=2))
    else:
        from reducer.doctor.text import print_report

        print_report(measured, findings, predicted)
    sys.exit(int(verdict(findings)))


def _check_ranks(facts: Facts) -> None:
    ranks = {worker.rank for worker in facts.workers}
    strangers = {rate.rank for rate in (*facts.alone, *facts.incast, *facts.together, *facts.ring)} - ranks
    if not ranks or strangers:
        raise ConfigError(
            f"--facts: they have workers {sorted(ranks)}, and rates of ranks {sorted(strangers)} beside"
        )


def _finding(finding: Any) -> dict[str, Any]:
    return dataclasses.asdict(finding) | {"level": finding.level.name.lower()}


def _document(file: TextIO) -> dict[str, Any]:
    try:
        document = json.load(file)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--facts {file.name}: it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"--facts {file.name}: it is not a JSON object")
    return document
