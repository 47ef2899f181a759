"""Code shared by commands that query running reducers: addresses, and errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
from reduction.discovery.cluster import DEFAULT_PORT, REDUCERS_VARIABLE
from reduction.errors import ConfigError, ReducerUnavailable

from reducer.config import DEFAULT_HOST, complete_address

#: Exit code when a given address did not answer, or refused the call.
EXIT_NO_ANSWER = 4


def named(given: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return the strings that name reducers, and their source: the command line, REDUCTION_REDUCERS, the platform.

    Args:
        given: the ADDRESSes of the command line, each of which may be a comma-separated list.

    Raises:
        ConfigError: a string or a platform's document is malformed.
    """
    from reduction.discovery.platforms.automatic import named_by_platform
    from reduction.discovery.schemes import check_texts, split

    if given:
        texts = tuple(dict.fromkeys(complete_address(text) for word in given for text in split(word)))
        source = "the command line"
    elif variable := os.environ.get(REDUCERS_VARIABLE):
        texts, source = tuple(split(variable)), REDUCERS_VARIABLE
    elif (cluster := named_by_platform(os.environ)) is not None:
        texts, source = cluster.texts, cluster.source
    else:
        texts, source = (f"{DEFAULT_HOST}:{DEFAULT_PORT}",), "the default"
    check_texts(texts)
    return texts, source


def addresses_of(given: Sequence[str], timeout_s: float) -> tuple[str, ...]:
    """Return the addresses that the strings of `named` stand for.

    Args:
        given: the ADDRESSes of the command line.
        timeout_s: how long to wait for a DNS name with too few addresses.

    Raises:
        ConfigError: a string is not an address, or a platform's document is malformed.
        ReducerUnavailable: a DNS name has too few addresses.
    """
    from reduction.discovery.resolve import resolve

    texts, _ = named(given)
    return resolve(texts, timeout_s, timeout_s).addresses


@contextmanager
def errors_for_users() -> Iterator[None]:
    """Convert errors of settings and addresses to a message and an exit code."""
    try:
        yield
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    except ReducerUnavailable as error:  # a DNS name without addresses
        click.echo(f"reducer: {error}", err=True)
        sys.exit(EXIT_NO_ANSWER)
