"""Strings that name reducers. The word before the first colon is the scheme.

HOST:PORT, name-{0..3}:PORT    addresses, see `address_forms`
dns:NAME:PORT?count=K          all addresses of a DNS name, see `address_forms`
SCHEME:...                     one of `SCHEMES`, or of an installed package

A package adds a scheme by an entry point in the group `reduction.discovery`. The entry point's name is
the scheme, and it refers to a function like those in `SCHEMES`.
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

#: Maps a whole text, such as `slurm:1:50051`, and the environment to a cluster. Raises ConfigError.
Find: TypeAlias = Callable[[str, Mapping[str, str]], Cluster]

SCHEMES: dict[str, Find] = {
    "vertex": vertex.find,
    "sagemaker": sagemaker.find,
    "slurm": slurm.find,
    "ray": ray.find,
    "file": file.find,
}
ENTRY_POINTS = "reduction.discovery"
#: Schemes of platforms that name a job's reducers once, when it starts, and know which host this is. The answers of
#: other schemes may change, including those of installed packages.
FIXED = ("vertex", "sagemaker", "slurm")

_SCHEME = re.compile(r"([a-z][a-z0-9+-]*):(?!//)")
_HOST_AND_PORT = re.compile(r"[^:]+:[0-9]+")
# A node list of Slurm has commas of its own, and no colon.
_ENTRY = re.compile(r"\s*slurm:nodes=[^:]*:[^,]*|[^,]+")


def split(text: str) -> list[str]:
    """Return the entries of a comma-separated string."""
    return [entry.strip() for entry in _ENTRY.findall(text) if entry.strip()]


def scheme_of(text: str) -> str | None:
    """Return the known scheme of a string; None if it has none, like HOST:PORT.

    A host may be named like a scheme, so `slurm:50051` is an address.
    """
    match = _SCHEME.match(text)
    if match is None or is_dns(text) or _HOST_AND_PORT.fullmatch(text):
        return None
    return match[1] if match[1] in SCHEMES or match[1] in _installed() else None


def may_change(text: str) -> bool:
    """Return whether a string may later stand for other reducers, as a DNS name, a file or a Ray pool may."""
    scheme = scheme_of(text)
    return is_dns(text) or (scheme is not None and scheme not in FIXED)


def cluster_of(text: str, environ: Mapping[str, str] = os.environ) -> Cluster:
    """Return the cluster that a string of a known scheme stands for. May read files, and query Ray.

    Raises:
        ConfigError: the platform is absent, knows no reducers, or gives malformed data.
    """
    scheme = text.partition(":")[0]
    cluster = SCHEMES.get(scheme, _find_installed)(text, environ)
    try:
        check_texts(cluster.reducers)
    except ConfigError as error:
        raise ConfigError(f"reducers {text!r} of {cluster.source}: {error}") from None
    return cluster


def check_texts(texts: Sequence[str]) -> None:
    """Check that all strings are addresses or have a known scheme, without opening anything.

    Raises:
        ConfigError: one is neither, the list is empty or too long, or a string is listed twice.
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
        raise ConfigError(f"the list of reducers has {count} addresses; the limit is {ADDRESSES_MAX}")


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
    return f"{scheme!r} is not a scheme either; known schemes are {', '.join(known)}{hint}"


def _installed() -> set[str]:
    return {point.name for point in entry_points(group=ENTRY_POINTS)}


def _find_installed(text: str, environ: Mapping[str, str]) -> Cluster:
    [point, *_] = entry_points(group=ENTRY_POINTS, name=text.partition(":")[0])
    try:
        cluster: Cluster = point.load()(text, environ)
    except ConfigError:
        raise
    except Exception as error:  # third-party code may raise anything
        raise ConfigError(f"reducers {text!r}: {point.value} failed: {error!r}") from error
    return cluster
