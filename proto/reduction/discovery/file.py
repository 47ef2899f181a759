"""`file:PATH` names a file with one address per line. `#` starts a comment."""

from __future__ import annotations

from collections.abc import Mapping

from reduction.discovery.address_forms import check_address, expand, is_dns
from reduction.discovery.cluster import Cluster
from reduction.errors import ConfigError
from reduction.limits import FILE_BYTES_MAX


def find(text: str, environ: Mapping[str, str]) -> Cluster:
    """Return the cluster.

    Raises:
        ConfigError: the file cannot be read, has no address, or has a line that is not an address.
    """
    path = text.partition(":")[2]
    if not path:
        raise ConfigError(f"reducers {text!r}: write file:PATH")
    try:
        with open(path) as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"reducers {text!r}: the file cannot be read: {error}") from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"reducers {text!r}: the file has more than {FILE_BYTES_MAX} bytes")
    return parse(text, content)


def parse(text: str, content: str) -> Cluster:
    """Return the cluster of the file's content; `text` names the file in errors.

    Raises:
        ConfigError: there is no address, or a line is not an address.
    """
    reducers: dict[str, None] = {}
    for number, line in enumerate(content.splitlines(), 1):
        address = line.partition("#")[0].strip()
        if not address:
            continue
        try:
            check_address(address)
            if is_dns(address):
                raise ConfigError(f"reducer {address!r} is a DNS name: write HOST:PORT")
        except ConfigError as error:
            raise ConfigError(f"{text}, line {number}: {error}") from None
        reducers.update(dict.fromkeys(expand(address)))
    if not reducers:
        raise ConfigError(f"reducers {text!r}: the file names no reducer")
    return Cluster("file", tuple(reducers))
