"""Notices from a cloud's metadata service that it will reclaim this machine.

| service | how long before | polled |
|---|---|---|
| Google Compute Engine | 30 s | instance/preempted, and instance/maintenance-event for machines with GPUs, 60 min |
| AWS EC2 | 2 min | spot/instance-action, with a token (IMDSv2) |
| Azure | 30 s | scheduledevents: Preempt, Terminate and Redeploy of this machine |

The services are described in cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption,
docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html and
learn.microsoft.com/azure/virtual-machines/linux/scheduled-events. Kubernetes, Slurm and Vertex AI send SIGTERM.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Protocol
from urllib.error import HTTPError

log = logging.getLogger(__name__)

#: Poll interval, timeout of an answer, and poll interval while there is no answer, in seconds.
POLL_S, ANSWER_S, AGAIN_S = 2.0, 5.0, 10.0
ANSWER_BYTES_MAX = 1 << 20
#: The services' addresses, and the variables with which their own clients override them. No proxy is used.
ADDRESSES = {
    "gce": ("http://metadata.google.internal", "GCE_METADATA_HOST"),
    "aws": ("http://169.254.169.254", "AWS_EC2_METADATA_SERVICE_ENDPOINT"),
    "azure": ("http://169.254.169.254", ""),
}
#: The files that identify a machine's cloud, and how their text begins.
MACHINE = Path("/sys/class/dmi/id")
SIGNS = {
    "gce": ("product_name", "Google Compute Engine"),
    "aws": ("sys_vendor", "Amazon EC2"),
    "azure": ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
}


class Get(Protocol):
    """A function that requests a path from a service."""

    def __call__(self, path: str, headers: Mapping[str, str], method: str = "GET") -> str:
        """Return the answer.

        Raises:
            HTTPError: the service refuses, or does not have the path.
            OSError: there is no answer.
            HTTPException: the answer is not HTTP.
        """


def _gce(get: Get) -> str:
    headers = {"Metadata-Flavor": "Google"}
    if get("/computeMetadata/v1/instance/preempted", headers) == "TRUE":
        return "preempted"
    event = get("/computeMetadata/v1/instance/maintenance-event", headers)
    return event if event.startswith("TERMINATE") else ""


def _aws(get: Get) -> str:
    token = get("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    try:
        action = get("/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token})
    except HTTPError as error:
        if error.code == 404:  # there is no notice
            return ""
        raise
    return str(json.loads(action)["action"])


def _azure(get: Get) -> str:
    headers = {"Metadata": "true"}
    # The list has the events of all machines in a scale set.
    own = get("/metadata/instance/compute/name?api-version=2021-02-01&format=text", headers)
    found = json.loads(get("/metadata/scheduledevents?api-version=2020-07-01", headers))
    ours = [event["EventType"] for event in found["Events"] if own in event["Resources"]]
    return next((str(kind) for kind in ours if kind in ("Preempt", "Terminate", "Redeploy")), "")


SERVICES: Mapping[str, Callable[[Get], str]] = {"gce": _gce, "aws": _aws, "azure": _azure}


def recognise() -> str | None:
    """Return the service of the cloud that this machine runs in; None if it runs in none of them."""
    for service, (name, begin) in SIGNS.items():
        try:
            if (MACHINE / name).read_text().startswith(begin):
                return service
        except OSError:
            continue
    return None


def watch(service: str, on_notice: Callable[[], None]) -> threading.Thread | None:
    """Poll a service in the background until it has a notice. A slow or failing service delays nothing else.

    Args:
        service: "gce", "aws", "azure", or "auto" for the service of this machine.
        on_notice: called once, on the polling thread.

    Returns:
        The thread; None if the machine is in none of these clouds.
    """
    found = recognise() if service == "auto" else service
    if found is None:
        log.info("notices='auto', but this machine is not in a cloud that provides them")
        return None
    thread = threading.Thread(target=_watch, args=(found, on_notice), name="reduction-notices", daemon=True)
    thread.start()
    return thread


def _watch(service: str, on_notice: Callable[[], None]) -> None:
    usual, variable = ADDRESSES[service]
    address = os.environ.get(variable, usual).rstrip("/")
    address = address if "://" in address else f"http://{address}"
    pause = threading.Event()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(path: str, headers: Mapping[str, str], method: str = "GET") -> str:
        request = urllib.request.Request(address + path, headers=dict(headers), method=method)
        with opener.open(request, timeout=ANSWER_S) as answer:
            return str(answer.read(ANSWER_BYTES_MAX).decode().strip())

    answered: bool | None = None
    while True:
        try:
            notice = SERVICES[service](get)
        except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
            if answered is not False:
                log.warning("notices: %s at %s does not answer as expected: %r", service, address, error)
            answered = False
            pause.wait(AGAIN_S)
            continue
        if notice:
            log.warning("notices: %s reclaims this machine: %s", service, notice)
            on_notice()
            return
        if not answered:
            log.info("notices: %s at %s is polled every %g s", service, address, POLL_S)
        answered = True
        pause.wait(POLL_S)
