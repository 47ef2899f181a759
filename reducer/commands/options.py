"""Options shared by several commands, and a class for renamed options."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from reducer.config import TLS_OPTIONS, TOKEN_FILE_VARIABLE, WORKERS_TLS_VARIABLES
from reducer.resources.sizes import size

if TYPE_CHECKING:
    from reducer.planner.advice import Prices

WORKERS_MAX = 10_000

_COUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmbt]?)", re.IGNORECASE)
_TIMES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


class RenamedOption(click.Option):
    """An option whose former names still work. Its help shows only its first name."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option and its help as `click.Parameter` does, without the former names."""
        record = super().get_help_record(ctx)
        if record is None:
            return None
        for former in self.opts[1:]:
            record = record[0].replace(f", {former}", ""), record[1]
        return record


def asking_security_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for certificates and tokens to a command that queries reducers, as a worker does."""
    return _security_options(command, WORKERS_TLS_VARIABLES, TOKEN_FILE_VARIABLE)


def security_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for certificates and tokens to a command."""
    return _security_options(command, (None,) * len(TLS_OPTIONS), None)


def _security_options(
    command: Callable[..., None], tls_variables: Sequence[str | None], token_variable: str | None
) -> Callable[..., None]:
    file_type = click.Path(dir_okay=False)
    help_texts = (
        "Certificate (chain) to present",
        "Its private key",
        "CA that the peer's certificate must chain to",
    )
    for option, help_text, variable in reversed([*zip(TLS_OPTIONS, help_texts, tls_variables, strict=True)]):
        help_text = f"{help_text}, PEM. All three or none."
        command = click.option(option, type=file_type, envvar=variable, help=help_text)(command)
    return click.option(
        "--token-file",
        type=file_type,
        envvar=token_variable,
        help="File with lines JOB:TOKEN, and *:TOKEN for any other job. See SECURITY.md.",
    )(command)


def model_options(*, is_required: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options describing a training step to a command.

    They are `parameters`, `parameter_bytes`, `compute` and `bucket`.

    Args:
        is_required: whether `--parameters` must be given. Otherwise it is None if nothing should be predicted.
    """
    what_for = "" if is_required else " Also predict its training step, as `plan` does."

    def add(command: Callable[..., None]) -> Callable[..., None]:
        options = (
            click.option(
                "--parameters",
                type=count,
                required=is_required,
                metavar="COUNT",
                help=f"Parameters of the model, such as 25.6M or 7B.{what_for}",
            ),
            click.option(
                "--parameter-bytes",
                type=click.IntRange(1, 8),
                default=4,
                metavar="BYTES",
                help="Bytes per gradient element on the wire: 4 for float32, 2 for bfloat16, 1 for wire_dtype int8.",
            ),
            click.option(
                "--compute",
                type=click.FloatRange(0),
                default=0.0,
                metavar="SECONDS",
                help="Duration of a step without communication; docs/when-it-helps.md explains how to measure it.",
            ),
            click.option(
                "--bucket",
                type=_bucket,
                default="25M",
                metavar="SIZE",
                help="Maximum size of DDP's buckets, bucket_cap_mb.",
            ),
        )
        for option in reversed(options):
            command = option(command)
        return command

    return add


def price_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for `prices_of` to a command: `worker_price`, `reducer_price` and `steps`."""
    options = (
        click.option(
            "--worker-price", type=click.FloatRange(0), metavar="PRICE", help="Price of a worker per hour."
        ),
        click.option(
            "--reducer-price",
            type=click.FloatRange(0),
            metavar="PRICE",
            help="Price of a reducer's machine per hour.",
        ),
        click.option(
            "--steps",
            type=click.IntRange(1),
            metavar="COUNT",
            help="Number of steps whose cost is shown, such as those of an epoch.  [default: 1000]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def prices_of(worker_price: float | None, reducer_price: float | None, steps: int | None) -> Prices | None:
    """Return the prices of machines, or None if they are not given.

    Raises:
        click.UsageError: only some of them are given.
    """
    from reducer.planner.advice import Prices

    if (worker_price is None) != (reducer_price is None):
        raise click.UsageError("give both --worker-price and --reducer-price, or neither")
    if worker_price is None or reducer_price is None:
        if steps is not None:
            raise click.UsageError(
                f"--steps {steps} is for what they cost: give --worker-price and --reducer-price too"
            )
        return None
    prices = Prices(worker=worker_price, reducer=reducer_price)
    return prices if steps is None else replace(prices, steps=steps)


def count(text: str) -> float:
    """Return the number of a string such as 25600000, 25.6M or 7B. Used as the type of an option.

    Raises:
        click.BadParameter: the string is not such a number.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise click.BadParameter(
            f"{text!r} is not a number of parameters: write such as 25600000, 25.6M or 7B"
        )
    return float(match[1]) * _TIMES[match[2].lower()]


def _bucket(text: str) -> int:
    if not (nbytes := size(text)):
        raise click.BadParameter(f"{text} is not a size of a bucket: it must be at least 1 byte")
    return nbytes
