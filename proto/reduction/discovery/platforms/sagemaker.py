"""SageMaker: `sagemaker:GROUP:PORT` is an instance group of a heterogeneous cluster.

Its hosts are in resourceconfig.json. The training toolkit copies that document into SM_RESOURCE_CONFIG:
https://github.com/aws/sagemaker-training-toolkit

    {"current_host": "algo-1", "current_group_name": "gpu", "hosts": ["algo-1", "algo-2"],
     "instance_groups": [{"instance_group_name": "gpu", "hosts": ["algo-1"]}, ...]}

Hosts of a group are in no order. This host's group is found by the host's name, because the toolkit's
local stand-in uses another key, `current_instance_group`. All groups except the reducers' are workers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reduction.discovery.address_forms import port_of
from reduction.discovery.cluster import DEFAULT_PORT, Cluster, cluster_of_hosts
from reduction.discovery.platforms.documents import Malformed, objects, parse_document, strings
from reduction.errors import ConfigError

VARIABLE = "SM_RESOURCE_CONFIG"
GROUP = "reducers"


def find(text: str, environ: Mapping[str, str]) -> Cluster:
    """Return the cluster; `text` is `sagemaker:GROUP:PORT`, `sagemaker:GROUP` or `sagemaker:`.

    Raises:
        ConfigError: there is no such document or group, or the string or the document is malformed.
    """
    group, _, port = text.partition(":")[2].partition(":")
    number = port_of(text, port) if port else DEFAULT_PORT
    document = read(environ)
    if document is None:
        raise ConfigError(
            f"reducers {text!r}: neither {VARIABLE} nor {path(environ)} exists, so this is not a SageMaker training job"
        )
    cluster = parse(document, group or GROUP, number)
    if not cluster.reducers:
        others = ", ".join(map(repr, _read(document)[1])) or "none"
        raise ConfigError(f"resourceconfig.json has no instance group {group or GROUP!r}; it has {others}")
    return cluster


def path(environ: Mapping[str, str]) -> Path:
    """Return where SageMaker puts the document."""
    return Path(environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml", "input/config/resourceconfig.json")


def read(environ: Mapping[str, str]) -> str | None:
    """Return the document, None if this is not a SageMaker training job.

    Raises:
        ConfigError: the file exists but cannot be read.
    """
    if document := environ.get(VARIABLE):
        return document
    try:
        return path(environ).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path(environ)} cannot be read: {error}") from None


def parse(document: str, group: str = GROUP, port: int = DEFAULT_PORT) -> Cluster:
    """Return the cluster of a resourceconfig.json. The given group has the reducers; there are none without it.

    Raises:
        ConfigError: the document is malformed, or the group has no hosts.
    """
    own, hosts_of = _read(document)
    if hosts_of.get(group) == []:
        raise ConfigError(f"resourceconfig.json says that the instance group {group!r} has no hosts")
    reducers = hosts_of.pop(group, [])
    workers = _in_order([host for hosts in hosts_of.values() for host in hosts])
    return cluster_of_hosts("sagemaker", reducers, port, workers, own)


def _read(document: str) -> tuple[Any, dict[str, list[str]]]:
    """Return the document's name for this host, and the hosts of each group, sorted by their numbers."""
    return parse_document("resourceconfig.json", "SageMaker", document, _hosts)


def _hosts(fields: Mapping[str, Any]) -> tuple[Any, dict[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for group in objects(fields, "instance_groups"):
        name = group.get("instance_group_name")
        if not isinstance(name, str):
            raise Malformed(f"instance_group_name is not text: {name!r}")
        found[name] = _in_order(strings(group, "hosts"))
    return fields.get("current_host"), found


def _in_order(hosts: list[str]) -> list[str]:
    """Return the hosts with algo-2 before algo-10."""
    return sorted(set(hosts), key=lambda host: [(len(part), part) for part in re.split(r"(\d+)", host)])
