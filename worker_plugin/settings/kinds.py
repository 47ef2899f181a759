"""Kinds of settings: how a user's value is parsed, and which values are allowed.

A kind has two methods. `parse` takes the user's value, of whatever type, and returns a value of the
right type. Numbers may always be text, because `os.environ["RANK"]` is text. `check` refuses a
value of the right type that is not allowed. Both raise ConfigError with a message that names the
setting, the value and the allowed values.

The `name` passed to `parse` is the argument's, or the variable's if the value comes from the
environment. Variables are in capital letters.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol, SupportsIndex, TypeVar

from reduction import limits
from reduction.discovery.schemes import check_texts, split
from reduction.errors import ConfigError

#: The longest timeout, in seconds: about a month. Clocks of a communicator can still add times of
#: this size.
SECONDS_MAX = 3e6

_SWITCH_POSITIONS = {"0": False, "1": True, False: False, True: True}

T_co = TypeVar("T_co", covariant=True)


class Kind(Protocol[T_co]):
    """The methods of all kinds of settings."""

    def parse(self, name: str, value: object) -> T_co:
        """Return the value that the user meant.

        Raises:
            ConfigError: it has a type that makes no sense here, or is a string that does not.
        """
        ...

    def check(self, name: str, value: Any) -> None:
        """Return if a value that `parse` could have returned is allowed.

        Raises:
            ConfigError: it is not.
        """
        ...


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """A whole number within bounds."""

    least: int
    most: int
    unit: str = ""
    #: Every allowed number is a multiple of this one.
    multiple_of: int = 1

    @property
    def allowed(self) -> str:
        """The bounds, as messages write them."""
        multiples = "" if self.multiple_of == 1 else f", multiples of {self.multiple_of}"
        return f"{self.least} to {self.most} {self.unit}".strip() + multiples

    def parse(self, name: str, value: object) -> int:
        """Return an integer of any type, or of a string."""
        try:
            if isinstance(value, str):
                return int(value)
            if isinstance(value, SupportsIndex) and not isinstance(value, bool):
                return operator.index(value)
        except (TypeError, ValueError):
            pass
        raise ConfigError(f"{name} is {value!r}, which is not a whole number; allowed: {self.allowed}")

    def check(self, name: str, value: int) -> None:
        """Refuse numbers outside the bounds, and those between the multiples."""
        if not self.least <= value <= self.most:
            raise ConfigError(f"{name} is {value}; allowed: {self.allowed}")
        if value % self.multiple_of:
            raise ConfigError(f"{name} is {value}; it must be a multiple of {self.multiple_of}")


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time in seconds, greater than 0."""

    #: Whether 0 is allowed as well, meaning never.
    may_be_never: bool = False

    @property
    def allowed(self) -> str:
        """The bounds, as messages write them."""
        return f"{'0, or ' if self.may_be_never else ''}more than 0 to {SECONDS_MAX:g} seconds"

    def parse(self, name: str, value: object) -> float:
        """Return a real number of any type, or of a string."""
        try:
            if isinstance(value, (str, Real)) and not isinstance(value, bool):
                return float(value)
        except (ValueError, OverflowError):
            pass
        raise ConfigError(f"{name} is {value!r}, which is not a number; allowed: {self.allowed}")

    def check(self, name: str, value: float) -> None:
        """Refuse zero, negative numbers, NaN and times that are too long."""
        if not 0 < value <= SECONDS_MAX and not (self.may_be_never and value == 0):
            raise ConfigError(f"{name} is {value}; allowed: {self.allowed}")


@dataclass(frozen=True, slots=True)
class Text:
    """A string."""

    #: A description of allowed strings, for messages.
    allowed: str
    #: Takes the name of the setting and the string, and raises ConfigError for a string that is not allowed.
    validate: Callable[[str, str], object] | None = None

    def parse(self, name: str, value: object) -> str:
        """Return the string itself."""
        if isinstance(value, str):
            return value
        raise ConfigError(f"{name} is {value!r}; it must be {self.allowed}")

    def check(self, name: str, value: str) -> None:
        """Leave the decision to `validate`."""
        if self.validate is not None:
            self.validate(name, value)


class Choice:
    """One of a few words; None among them means that the setting may be left out."""

    def __init__(self, *words: str | None) -> None:
        self._words = words

    def parse(self, name: str, value: object) -> str:
        """Return the word itself."""
        if isinstance(value, str):
            return value
        *others, last = map(repr, self._words)
        raise ConfigError(f"{name} is {value!r}; it must be {', '.join(others)} or {last}")

    def check(self, name: str, value: str) -> None:
        """Refuse all other words."""
        if value not in self._words:
            raise ConfigError(f"{name} is {value!r}; this version knows {', '.join(map(repr, self._words))}")


@dataclass(frozen=True, slots=True)
class FilePath:
    """The path of a file that this user can read."""

    def parse(self, name: str, value: object) -> str:
        """Return the path as a string."""
        path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
        if isinstance(path, str):
            return path
        raise ConfigError(f"{name} is {value!r}; it must be the path of a file")

    def check(self, name: str, value: str) -> None:
        """Allow every path. Whether the file exists is checked when a state is created: see `require_readable`."""

    def require_readable(self, name: str, path: str) -> None:
        """Return if the file exists.

        Raises:
            ConfigError: it does not exist, or may not be read.
        """
        if not os.path.exists(path):
            why = "is not there"
        elif os.path.isdir(path):
            why = "is a directory"
        elif not os.access(path, os.R_OK):
            why = "may not be read by this user"
        else:
            return
        raise ConfigError(f"{name} is {path!r}, which {why}: give the path of a file")


@dataclass(frozen=True, slots=True)
class Switch:
    """On or off."""

    def parse(self, name: str, value: object) -> bool:
        """Return a truth value, for 0 and 1 as well."""
        if isinstance(value, (str, int)) and value in _SWITCH_POSITIONS:
            return _SWITCH_POSITIONS[value]
        allowed = "0 or 1" if name.isupper() else "True or False"
        raise ConfigError(f"{name} is {value!r}; it must be {allowed}")

    def check(self, name: str, value: bool) -> None:
        """Allow both."""


@dataclass(frozen=True, slots=True)
class LocalGroup:
    """The word "auto", or how many ranks of each node reduce among themselves first."""

    def parse(self, name: str, value: object) -> int | str:
        """Return a whole number of any type or of a string, or any other string."""
        if isinstance(value, str):
            return int(value) if value.isdecimal() else value
        if isinstance(value, SupportsIndex) and not isinstance(value, bool):
            return operator.index(value)
        raise self._refusal(name, value)

    def check(self, name: str, value: int | str) -> None:
        """Refuse other words, and numbers outside the bounds."""
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if value != "auto" and not (is_number and 1 <= int(value) <= limits.WORLD_SIZE_MAX):
            raise self._refusal(name, value)

    def _refusal(self, name: str, value: object) -> ConfigError:
        allowed = f"None, 'auto' or a number of ranks, 1 to {limits.WORLD_SIZE_MAX}"
        return ConfigError(f"{name} is {value!r}; it must be {allowed}")


@dataclass(frozen=True, slots=True)
class Addresses:
    """Texts that name reducers, in the forms of `reduction.discovery.schemes`."""

    def parse(self, name: str, value: object) -> tuple[str, ...]:
        """Return the addresses of a list, or of a string with commas between them."""
        if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
            raise ConfigError(
                f"{name} is {value!r}; it must be a list of HOST:PORT, or one string with commas between them"
            )
        parts = split(value) if isinstance(value, str) else list(value)
        for number, part in enumerate(parts):
            if not isinstance(part, str):
                raise ConfigError(f"{name}[{number}] is {part!r}; it must be a string, HOST:PORT")
        addresses = tuple(part.strip() for part in parts if part.strip())
        if not addresses:
            instead = "unset it" if name.isupper() else "leave it out"
            raise ConfigError(
                f"{name} is {value!r}, which names no reducer: give at least one HOST:PORT, or {instead}, and "
                f"rank 0 starts a private one on its host"
            )
        if name.isupper():
            try:
                check_texts(addresses)
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from None
        return addresses

    def check(self, name: str, value: tuple[str, ...]) -> None:
        """Refuse unknown forms, and lists that are empty, too long, or repeat an address."""
        check_texts(value)
