"""What the commands that ask running reducers share: their addresses, and how errors are shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
from reduction.discovery.cluster import DEFAULT_PORT
from reduction.errors import ConfigError, ReducerUnavailable

from reducer.config import DEFAULT_HOST, complete_address

#: Exit code when an address that was given did not answer, or refused the call.
EXIT_NO_ANSWER = 4


def addresses_of(given: Sequence[str], timeout_s: float) -> tuple[str, ...]:
    """Return the addresses that the ADDRESSes of a command stand for, the default one if there are none.

    Args:
        given: the words of the command line.
        timeout_s: how long a DNS name with too few addresses is waited for.

    Raises:
        ConfigError: a word is no address, or a platform says something malformed.
        ReducerUnavailable: a DNS name has too few addresses.
    """
    from reduction.discovery.resolve import resolve
    from reduction.discovery.schemes import check_texts

    texts = tuple(dict.fromkeys(map(complete_address, given))) or (f"{DEFAULT_HOST}:{DEFAULT_PORT}",)
    check_texts(texts)
    return resolve(texts, timeout_s, timeout_s).addresses


@contextmanager
def errors_for_users() -> Iterator[None]:
    """Turn errors of settings and addresses into a message and an exit code."""
    try:
        yield
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    except ReducerUnavailable as error:  # a DNS name without addresses
        click.echo(f"reducer: {error}", err=True)
        sys.exit(EXIT_NO_ANSWER)
