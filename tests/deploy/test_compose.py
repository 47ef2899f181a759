"""`deploy/compose/compose.yaml`: against the compose schema, and against what its services accept."""

from __future__ import annotations

import subprocess

import pytest
from support.artefacts import DEPLOY, ROOT, checked_settings, documents, tool

PATH = DEPLOY / "compose/compose.yaml"


@pytest.fixture
def services() -> dict:
    [document] = documents("compose/compose.yaml")
    return document["services"]


def test_compose_file_matches_its_schema() -> None:
    command = [tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(PATH)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout


def test_workers_on_this_machine_reach_every_port(services: dict) -> None:
    """A worker connects to the data port that the reducer advertises, so a port has the same number outside."""
    published = []
    for name in ("reducer-1", "reducer-2"):
        settings = checked_settings(services[name]["command"])
        ports = {settings["bind"].rpartition(":")[2], str(settings["data-port"])}
        assert set(services[name]["ports"]) == {f"127.0.0.1:{port}:{port}" for port in ports}
        assert settings["processes"] == 1
        published += services[name]["ports"]
    assert len(set(published)) == 4


def test_no_port_is_open_to_the_network(services: dict) -> None:
    ports = [port for service in services.values() for port in service["ports"]]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_mounted_and_built_paths_exist(services: dict) -> None:
    build = services["reducer-1"]["build"]
    context = (PATH.parent / build["context"]).resolve()
    assert context == ROOT
    assert (context / build["dockerfile"]).is_file()
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("."):
                path = (PATH.parent / source).resolve()
                assert path.exists(), source
