"""Which strings name reducers. The word before the first colon says which scheme a string is of.

HOST:PORT, name-{0..3}:PORT    addresses, see `address_forms`
dns:NAME:PORT?count=K          all addresses of a DNS name, see `address_forms`
SCHEME:...                     one of `SCHEMES`, or of an installed package

A package adds a scheme by an entry point of the group `reduction.discovery`: the scheme is its name,
and it leads to a function like those in `SCHEMES`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import TypeAlias

from reduction.discovery import file
from reduction.discovery.address_forms import check_address, expand, is_dns
from reduction.discovery.cluster import Cluster
from reduction.discovery.platforms import ray, sagemaker, slurm, vertex
from reduction.errors import ConfigError
from reduction.limits import ADDRESSES_MAX

#: From a whole text, such as `slurm:1:50051`, and the environment to its cluster. Raises ConfigError.
Find: TypeAlias = Callable[[str, Mapping[str, str]], Cluster]

SCHEMES: dict[str, Find] = {
    "vertex": vertex.find,
    "sagemaker": sagemaker.find,
    "slurm": slurm.find,
    "ray": ray.find,
    "file": file.find,
}
ENTRY_POINTS = "reduction.discovery"
#: Schemes of platforms that tell a job's reducers once, at its start, and know which host this one is. What others
#: say may change, and those of installed packages may, too.
FIXED = ("vertex", "sagemaker", "slurm")

_SCHEME = re.compile(r"([a-z][a-z0-9+-]*):(?!//)")
_HOST_AND_PORT = re.compile(r"[^:]+:[0-9]+")
# A node list of Slurm has commas of its own, and no colon.
_ENTRY = re.compile(r"\s*slurm:nodes=[^:]*:[^,]*|[^,]+")


def split(text: str) -> list[str]:
    """Return the entries of a string with commas between them."""
    return [entry.strip() for entry in _ENTRY.findall(text) if entry.strip()]


def scheme_of(text: str) -> str | None:
    """Return the known scheme of a string; None if it has none, as HOST:PORT.

    A host may have the name of a scheme: `slurm:50051` is an address.
    """
    match = _SCHEME.match(text)
    if match is None or is_dns(text) or _HOST_AND_PORT.fullmatch(text):
        return None
    return match[1] if match[1] in SCHEMES or match[1] in _installed() else None


def may_change(text: str) -> bool:
    """Whether a string may stand for other reducers later: a DNS name, a file, a pool of Ray."""
    scheme = scheme_of(text)
    return is_dns(text) or (scheme is not None and scheme not in FIXED)


def cluster_of(text: str, environ: Mapping[str, str] = os.environ) -> Cluster:
    """Return what a string of a known scheme stands for; it may read files, and ask Ray.

    Raises:
        ConfigError: the platform is not there, does not know of reducers, or says something malformed.
    """
    scheme = text.partition(":")[0]
    cluster = SCHEMES.get(scheme, _find_installed)(text, environ)
    try:
        check_texts(cluster.reducers)
    except ConfigError as error:
        raise ConfigError(f"reducers {text!r} of {cluster.source}: {error}") from None
    return cluster


def check_texts(texts: Sequence[str]) -> None:
    """Return if all strings are addresses or of a known scheme; nothing is opened.

    Raises:
        ConfigError: one is not; or there are none, the same one twice, or too many.
    """
    if not texts:
        raise ConfigError("the list of reducers is empty: name at least one HOST:PORT")
    count = 0
    for text in texts:
        scheme = scheme_of(text)
        if scheme is None:
            _check_address(text)
        count += 1 if scheme is not None or is_dns(text) else len(expand(text))
    if len(set(texts)) != len(texts):
        raise ConfigError(f"the list of reducers names an address twice: {', '.join(texts)}")
    if count > ADDRESSES_MAX:
        raise ConfigError(f"the list of reducers has {count} addresses, allowed are {ADDRESSES_MAX}")


def _check_address(text: str) -> None:
    try:
        check_address(text)
    except ConfigError as error:
        if not _looks_like_scheme(text):
            raise
        raise ConfigError(f"{error}; {_known_schemes(text)}") from None


def _looks_like_scheme(text: str) -> bool:
    # fe80::1 is an IPv6 address without brackets, host:0 an address with a wrong port, host:1;host:2 are two.
    first = re.split(r"[;\s]", text)[0]
    return bool(_SCHEME.match(text)) and not (is_dns(text) or "::" in text or _HOST_AND_PORT.fullmatch(first))


def _known_schemes(text: str) -> str:
    scheme, known = text.partition(":")[0], ["dns", *SCHEMES, *sorted(_installed())]
    near = difflib.get_close_matches(scheme, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{scheme!r} is not a scheme either, known are {', '.join(known)}{hint}"


def _installed() -> set[str]:
    return {point.name for point in entry_points(group=ENTRY_POINTS)}


def _find_installed(text: str, environ: Mapping[str, str]) -> Cluster:
    [point, *_] = entry_points(group=ENTRY_POINTS, name=text.partition(":")[0])
    try:
        cluster: Cluster = point.load()(text, environ)
    except ConfigError:
        raise
    except Exception as error:  # Somebody else's code may raise anything.
        raise ConfigError(f"reducers {text!r}: {point.value} failed: {error!r}") from error
    return cluster
