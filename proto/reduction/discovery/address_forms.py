"""The forms of a reducer's address: HOST:PORT, a range of them, or a DNS name for several.

HOST:PORT                a host name, an IPv4 address, or an IPv6 address in brackets
name-{0..3}.svc:50051    four addresses; leading zeros, as in {00..11}, give all numbers the same width
dns:NAME:PORT            all current addresses of the name; ?count=K waits until there are K
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from reduction.errors import ConfigError
from reduction.limits import ADDRESSES_MAX, HOST_BYTES_MAX

_RANGE = re.compile(r"\{([0-9]{1,9})\.\.([0-9]{1,9})\}")
_NUMBER = re.compile("[0-9]{1,9}")
#: DNS names may have letters of any language.
_NOT_IN_NAMES = re.compile(r"[^\w.-]")
#: Variables of shells and of templates such as Helm's, Jinja's and Ansible's.
_VARIABLE = re.compile(r"\$|\{\{")
_SEPARATORS = re.compile(r"[\s;]+")
#: Range syntax of Slurm's node lists and other tools.
_OTHER_RANGE = re.compile(r"[\[{]([0-9]+)(?:-|\.\.\.)([0-9]+)[\]}]")
_DNS = "dns:"


@dataclass(frozen=True, slots=True)
class DnsName:
    """A DNS name whose addresses are reducers."""

    text: str
    name: str
    port: int
    #: The name is looked up again until it has at least this many addresses.
    count: int


def is_dns(address: str) -> bool:
    """Return whether an address is a DNS name."""
    return address.startswith(_DNS)


def dns_name(address: str) -> DnsName:
    """Return the parts of `dns:NAME:PORT?count=K`.

    Raises:
        ConfigError: the address does not have that form.
    """
    rest, question_mark, query = address.removeprefix(_DNS).partition("?")
    name, _, port = rest.rpartition(":")
    key, _, count = query.partition("=")
    if question_mark and (
        key != "count" or not _NUMBER.fullmatch(count) or not 1 <= int(count) <= ADDRESSES_MAX
    ):
        raise ConfigError(
            f"reducer {address!r}: only count=K is allowed after the question mark, with K from 1 to {ADDRESSES_MAX}"
        )
    return DnsName(address, name, int(port), int(count) if question_mark else 1)


def expand(address: str) -> tuple[str, ...]:
    """Return the addresses that an address with ranges stands for.

    Raises:
        ConfigError: a range is empty, or there are too many addresses.
    """
    parts = _RANGE.split(address)  # text, first, last, text, first, last, ..., text
    choices: list[Sequence[str]] = []
    count = 1
    for index in range(0, len(parts) - 1, 3):
        first, last = parts[index + 1], parts[index + 2]
        count *= max(0, int(last) - int(first) + 1)
        if not 1 <= count <= ADDRESSES_MAX:
            raise ConfigError(
                f"reducer {address!r} stands for {count} addresses; allowed: 1 to {ADDRESSES_MAX}"
            )
        digits = len(first) if first.startswith("0") else 0
        numbers = [str(number).zfill(digits) for number in range(int(first), int(last) + 1)]
        choices += [[parts[index]], numbers]
    return tuple("".join(pieces) for pieces in itertools.product(*choices, [parts[-1]]))


def check_address(address: str) -> None:
    """Check that an address has one of the forms, without opening anything.

    Raises:
        ConfigError: the address has none of the forms.
    """
    if "://" in address:
        raise ConfigError(
            f"reducer {address!r} is a URL: write HOST:PORT, without {address.split('://')[0]}://"
        )
    try:
        size = len(address.encode())
    except UnicodeEncodeError:  # bytes of the environment that are not UTF-8
        raise ConfigError(f"reducer {address!r} is not text") from None
    if size > HOST_BYTES_MAX:
        raise ConfigError(f"reducer {address!r} is longer than {HOST_BYTES_MAX} bytes")
    _check_mistakes(address)
    if is_dns(address):
        dns_name_of = address.removeprefix(_DNS).partition("?")[0]
        _check_host_and_port(dns_name_of, address)
        dns_name(address)
    else:
        for host_and_port in expand(address):
            _check_host_and_port(host_and_port, address)


def port_of(text: str, port: str) -> int:
    """Return the number of a port that is a part of `text`.

    Raises:
        ConfigError: `port` is not a port.
    """
    if not _is_port(port):
        raise ConfigError(f"reducers {text!r}: {port!r} is not a port of 1 to 65535")
    return int(port)


def join_host_and_port(host: str, port: int) -> str:
    """Return HOST:PORT for an IP address, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_host_and_port(text: str, address: str) -> None:
    host, _, port = text.rpartition(":")
    if not host or not _is_port(port):
        raise ConfigError(f"reducer {address!r} is not HOST:PORT or dns:NAME:PORT with a port of 1 to 65535")
    if ":" in host and not _is_bracketed(host):
        raise ConfigError(f"reducer {address!r}: write an IPv6 address in brackets, [{host}]:{port}")
    if _is_wildcard(host):
        raise ConfigError(
            f"reducer {address!r}: a reducer may listen at {host}, but workers need the name or address of its host; "
            f"for this host that is 127.0.0.1:{port}"
        )
    if ":" not in host and (wrong := _NOT_IN_NAMES.search(host)):
        hint = "; a range is written {0..3}" if wrong[0] in "[]{}" else ""
        raise ConfigError(f"reducer {address!r}: a host name cannot have {wrong[0]!r}{hint}")


def _check_mistakes(address: str) -> None:
    """Reject the syntax of other programs, and say how to write it here."""
    if _VARIABLE.search(address):
        raise ConfigError(
            f"reducer {address!r} has a variable that was not replaced by its value: shells do that, but not between "
            f"single quotes, and nothing does it here"
        )
    if len(several := _SEPARATORS.split(address)) > 1:
        commas = ",".join(filter(None, several))
        raise ConfigError(f"reducer {address!r}: write commas between addresses, {commas}")
    if wrong := _OTHER_RANGE.search(address):
        raise ConfigError(f"reducer {address!r}: write {{{wrong[1]}..{wrong[2]}}} instead of {wrong[0]}")


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return host == "*"


def _is_port(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None and 0 < int(text) <= 65535


def _is_bracketed(host: str) -> bool:
    try:
        return host[0] == "[" and host[-1] == "]" and bool(ipaddress.IPv6Address(host[1:-1]))
    except ValueError:
        return False
