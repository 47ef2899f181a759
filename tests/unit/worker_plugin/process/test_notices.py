"""Termination notices of clouds, from local servers that answer like their metadata services."""

import json
import logging
import socket
import threading
import time

import pytest
from support.fakes.metadata import Service

from worker_plugin.process import notices

TOKEN = "a token"
GCE = {"Metadata-Flavor": "Google"}
AZURE = {"Metadata": "true"}


def event(kind, *machines):
    return {"EventId": "1", "EventType": kind, "Resources": list(machines), "EventStatus": "Scheduled"}


def azure(*events):
    return {
        "/metadata/instance/compute/name?api-version=2021-02-01&format=text": (AZURE, "vm_1"),
        "/metadata/scheduledevents?api-version=2020-07-01": (
            AZURE,
            json.dumps({"DocumentIncarnation": 2, "Events": list(events)}),
        ),
    }


def gce(preempted, event):
    return {
        "/computeMetadata/v1/instance/preempted": (GCE, preempted),
        "/computeMetadata/v1/instance/maintenance-event": (GCE, event),
    }


def aws(action=None):
    pages = {"/latest/api/token": ({"X-aws-ec2-metadata-token-ttl-seconds": "60"}, TOKEN)}
    if action is not None:
        text = json.dumps({"action": action, "time": "2026-11-28T08:22:00Z"})
        pages["/latest/meta-data/spot/instance-action"] = ({"X-aws-ec2-metadata-token": TOKEN}, text)
    return pages


@pytest.fixture
def service(monkeypatch):
    one = Service()
    address = f"127.0.0.1:{one.server.server_port}"
    monkeypatch.setenv("GCE_METADATA_HOST", address)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{address}/")
    monkeypatch.setitem(notices.ADDRESSES, "azure", (f"http://{address}", ""))
    monkeypatch.setattr(notices, "POLL_S", 0.01)
    monkeypatch.setattr(notices, "AGAIN_S", 0.01)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    yield one
    one.pages = gce("TRUE", "NONE") | aws("terminate") | azure(event("Preempt", "vm_1"))
    one.close()


def wait_until(is_so):
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("name", "quiet", "loud", "text"),
    [
        ("gce", gce("FALSE", "NONE"), gce("TRUE", "NONE"), "preempted"),
        (
            "gce",
            gce("FALSE", "MIGRATE_ON_HOST_MAINTENANCE"),
            gce("FALSE", "TERMINATE_ON_HOST_MAINTENANCE"),
            "TERMINATE_ON_HOST_MAINTENANCE",
        ),
        ("aws", aws(), aws("terminate"), "terminate"),
        (
            "azure",
            azure(event("Preempt", "vm_0"), event("Freeze", "vm_1")),
            azure(event("Preempt", "vm_0", "vm_1")),
            "Preempt",
        ),
        ("azure", azure(), azure(event("Redeploy", "vm_1")), "Redeploy"),
    ],
)
def test_a_notice_is_reported_once(service, caplog, name, quiet, loud, text):
    caplog.set_level(logging.INFO, "worker_plugin")
    noticed = threading.Event()
    service.pages = quiet
    thread = notices.watch(name, noticed.set)
    asked = service.asked
    wait_until(lambda: service.asked > asked + 6)
    assert not noticed.is_set()
    service.pages = loud
    assert noticed.wait(20)
    thread.join(20)
    assert not thread.is_alive()
    said = [record.getMessage() for record in caplog.records]
    assert any(f"{name} at http://127.0.0.1" in line and "is polled every" in line for line in said)
    assert f"notices: {name} reclaims this machine: {text}" in said
    assert not any("does not answer" in line for line in said)


@pytest.mark.parametrize(
    ("name", "pages"),
    [
        ("gce", {}),
        ("aws", {}),
        ("azure", azure() | {"/metadata/scheduledevents?api-version=2020-07-01": (AZURE, "{}")}),
        ("aws", aws() | {"/latest/meta-data/spot/instance-action": ({}, "no JSON")}),
        ("aws", aws() | {"/latest/meta-data/spot/instance-action": ({"X-aws-ec2-metadata-token": "?"}, "")}),
    ],
)
def test_an_unexpected_service_is_logged_once_and_polled_again(service, caplog, name, pages):
    service.pages = pages
    noticed = threading.Event()
    notices.watch(name, noticed.set)
    wait_until(lambda: service.asked > 8)
    assert not noticed.is_set()
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if "does not answer as expected" in line]) == 1
    service.pages = gce("TRUE", "NONE") | aws("stop") | azure(event("Preempt", "vm_1"))
    assert noticed.wait(20)


def test_a_service_that_hangs_delays_nobody(monkeypatch, caplog):
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        address = f"http://127.0.0.1:{hangs.getsockname()[1]}"
        for name, value in {"ADDRESSES": {"gce": (address, "")}, "ANSWER_S": 0.05, "AGAIN_S": 0.01}.items():
            monkeypatch.setattr(notices, name, value)
        begin = time.monotonic()
        thread = notices.watch("gce", lambda: None)
        assert time.monotonic() - begin < 1.0
        wait_until(lambda: "does not answer as expected" in caplog.text)
        assert thread.daemon
        monkeypatch.setattr(notices, "SERVICES", {"gce": lambda get: "the test is over"})
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, None),
        ({"sys_vendor": "QEMU\n"}, None),
        ({"product_name": "Google Compute Engine\n", "sys_vendor": "Google\n"}, "gce"),
        ({"sys_vendor": "Amazon EC2\n"}, "aws"),
        (
            {
                "sys_vendor": "Microsoft Corporation\n",
                "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77\n",
            },
            "azure",
        ),
        ({"sys_vendor": "Microsoft Corporation\n"}, None),
    ],
)
def test_the_cloud_is_recognized(monkeypatch, tmp_path, caplog, files, found):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(notices, "MACHINE", tmp_path)
    assert notices.recognise() == found
    if found is None:
        assert notices.watch("auto", pytest.fail) is None
