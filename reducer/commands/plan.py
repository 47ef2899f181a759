"""`reducer plan` predicts the gain of reducers, and whether they are worth their price."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click
from reduction.errors import ConfigError
from reduction.process.place import link_mbit

from reducer.commands.options import WORKERS_MAX, model_options, price_options, prices_of

REDUCERS_MAX = 10_000


def counts(text: str) -> list[int]:
    """Return the numbers of a string such as 0,4,8. Used as the type of an option.

    Raises:
        click.BadParameter: the string is not such a list.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) <= REDUCERS_MAX for part in parts):
        raise click.BadParameter(f"{text!r} is not a list of numbers up to {REDUCERS_MAX}, such as 0,4,8")
    return [int(part) for part in parts]


@click.command(short_help="Predict what reducers would gain.")
@click.option(
    "--workers",
    type=click.IntRange(2, WORKERS_MAX),
    required=True,
    metavar="COUNT",
    help="Number of training machines. A node counts once.",
)
@click.option("--ranks", type=click.IntRange(1, 64), default=1, metavar="COUNT", help="Ranks per worker.")
@click.option("--link", required=True, metavar="RATE", help="Rate of a worker's link, such as 25G or 100M.")
@model_options(is_required=True)
@click.option(
    "--reducers",
    type=counts,
    metavar="COUNTS",
    help="Numbers of reducers to compare, such as 0,4,8.  [default: up to the number with the full gain]",
)
@click.option("--reducer-link", metavar="RATE", help="Rate of a reducer's link.  [default: as --link]")
@click.option(
    "--reducer-cores",
    type=click.IntRange(1, 1024),
    default=8,
    metavar="COUNT",
    help="Cores of a reducer's machine.",
)
@click.option(
    "--round-trip",
    type=click.FloatRange(0),
    default=0.1,
    metavar="MS",
    help="Round-trip time to another machine.",
)
@price_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def plan(
    workers: int,
    ranks: int,
    link: str,
    parameters: float,
    parameter_bytes: int,
    compute: float,
    reducers: list[int] | None,
    reducer_link: str | None,
    reducer_cores: int,
    bucket: int,
    round_trip: float,
    worker_price: float | None,
    reducer_price: float | None,
    steps: int | None,
    as_json: bool,
) -> None:
    """Predict the time of a training step with a ring and with reducers, and recommend one of them.

    This is arithmetic, not a measurement: it uses what you specify about your machines and your model. With prices
    it compares the cost of steps. Exposed is the time that a step waits for its sums. Rows with
    fewer reducers than the full gain needs assume colocated="auto". The last column shows
    below which fraction of a worker's price a reducer's machine pays off.

    \b
    reducer plan --workers 8 --link 10G --parameters 340M --compute 0.41
    """
    from reducer.planner.advice import advise, usual_counts
    from reducer.planner.formulas import Training

    try:
        worker_mbit = link_mbit("--link", link)
        reducer_mbit = worker_mbit if reducer_link is None else link_mbit("--reducer-link", reducer_link)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    prices = prices_of(worker_price, reducer_price, steps)
    training = Training(
        workers=workers,
        ranks_per_worker=ranks,
        gradient_bytes=parameters * parameter_bytes,
        worker_mbit=worker_mbit,
        reducer_mbit=reducer_mbit,
        reducer_cores=reducer_cores,
        compute_s=compute,
        bucket_bytes=bucket,
        round_trip_s=round_trip / 1e3,
    )
    advice = advise(training, usual_counts(training) if reducers is None else reducers, prices)
    if as_json:
        document: dict[str, Any] = {"training": dataclasses.asdict(training), **dataclasses.asdict(advice)}
        click.echo(json.dumps(document, indent=2))
        return
    from reducer.planner.table import print_advice

    print_advice(training, advice)
