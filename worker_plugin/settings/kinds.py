"""What users hand over for a setting, in an argument or a variable: the right type, or an error that says what is.

Numbers may be text everywhere, because `os.environ["RANK"]` is. A value that has the right type and is too large or
too small is found later (config.py).
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import SupportsIndex

from reduction import layout
from reduction.errors import ConfigError
from reduction.wire import frames as wire

#: About a month; what the clocks of a communicator can still add up.
SECONDS_MAX = 3e6
SECONDS = f"more than 0 to {SECONDS_MAX:g} seconds"
#: How to get along without a reducer of one's own.
UNSET = "rank 0 starts a private one on its host"

_SWITCH = {"0": False, "1": True, False: False, True: True}


def parse(name: str, value: object, variable: str | None = None) -> object:
    """Return the value of a setting.

    Args:
        name: of the setting.
        value: what was given for it, which is not None.
        variable: where it was found, if that is the environment.

    Raises:
        ConfigError: it cannot be meant; the message names the argument or variable, the value and what is allowed.
    """
    return _PARSE[name](variable or name, value)


def _whole(allowed: str) -> Callable[[str, object], int]:
    def whole(name: str, value: object) -> int:
        try:
            if isinstance(value, str):
                return int(value)
            if isinstance(value, SupportsIndex) and not isinstance(value, bool):
                return operator.index(value)
        except (TypeError, ValueError):
            pass
        raise ConfigError(f"{name} is {value!r}, which is no whole number: allowed are {allowed}")

    return whole


def _seconds(name: str, value: object) -> float:
    try:
        if isinstance(value, (str, Real)) and not isinstance(value, bool):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise ConfigError(f"{name} is {value!r}, which is no number: allowed are {SECONDS}")


def _text(allowed: str) -> Callable[[str, object], str]:
    def text(name: str, value: object) -> str:
        if isinstance(value, str):
            return value
        raise ConfigError(f"{name} is {value!r}; it must be {allowed}")

    return text


def _path(name: str, value: object) -> str:
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if isinstance(path, str):
        return path
    raise ConfigError(f"{name} is {value!r}; it must be the path of a file")


def _switch(name: str, value: object) -> bool:
    if isinstance(value, (str, int)) and value in _SWITCH:
        return _SWITCH[value]
    allowed = "0 or 1" if name.isupper() else "True or False"
    raise ConfigError(f"{name} is {value!r}; it must be {allowed}")


def _local_group(name: str, value: object) -> object:
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return operator.index(value)
    return value  # "auto"; whatever else is refused later


def _addresses(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
        raise ConfigError(
            f"{name} is {value!r}; it must be a list of HOST:PORT, or one string with commas between them"
        )
    parts = value.split(",") if isinstance(value, str) else list(value)
    for number, part in enumerate(parts):
        if not isinstance(part, str):
            raise ConfigError(f"{name}[{number}] is {part!r}; it must be a string, HOST:PORT")
    addresses = tuple(part.strip() for part in parts if part.strip())
    if not addresses:
        instead = "unset it" if name.isupper() else "leave it out"
        raise ConfigError(
            f"{name} is {value!r}, which names no reducer: give at least one HOST:PORT, or {instead}, and {UNSET}"
        )
    return addresses


_RANK = f"0 to {layout.WORLD_SIZE_MAX - 1}"
_BYTES = f"{layout.CHUNK_BYTES_MIN} to"

_PARSE: Mapping[str, Callable[[str, object], object]] = {
    "reducers": _addresses,
    "job": _text(f"a string of 1 to {wire.JOB_NAME_BYTES_MAX} bytes"),
    "rank": _whole(_RANK),
    "world_size": _whole(f"1 to {layout.WORLD_SIZE_MAX}"),
    "transport": _text("'auto', 'tcp' or 'grpc'"),
    "wire_dtype": _text("a string such as 'bf16'"),
    "on_reducer_loss": _text("'reshard', 'wait' or 'raise'"),
    "fallback": _text("None or 'embedded'"),
    "timeout_s": _seconds,
    "stall_warn_s": _seconds,
    "join_timeout_s": _seconds,
    "close_timeout_s": _seconds,
    "chunk_bytes": _whole(f"{_BYTES} {layout.CHUNK_BYTES_MAX} bytes"),
    "credit_bytes": _whole(f"{_BYTES} {layout.CREDIT_BYTES_MAX} bytes"),
    "checksums": _switch,
    "local_group": _local_group,
    "tls_cert": _path,
    "tls_key": _path,
    "tls_ca": _path,
    "token_file": _path,
}
