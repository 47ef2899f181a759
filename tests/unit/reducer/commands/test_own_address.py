"""The address that `reducer serve` uses."""

import json
import logging

import pytest
from click.testing import CliRunner
from reduction.errors import ConfigError

from reducer.commands.own_address import own_address
from reducer.commands.serve import serve
from reducer.resources.ports import PortRange

NOBODY = {"SAGEMAKER_BASE_DIR": "/nowhere"}
VERTEX = NOBODY | {
    "CLUSTER_SPEC": json.dumps(
        {
            "cluster": {"workerpool0": ["chief:2222"], "workerpool2": ["r-0:2222", "r-1:2222"]},
            "task": {"type": "workerpool2", "index": 1},
        }
    )
}
RANGE = PortRange(7000, 7009)


def test_the_platforms_address():
    address = own_address(None, None, VERTEX)
    assert address.bind == "0.0.0.0:2222"
    assert str(address) == "0.0.0.0:2222, because CLUSTER_SPEC says that this is reducer 1 of 2"


@pytest.mark.parametrize(
    ("given", "port_range", "environ", "bind"),
    [
        (None, None, NOBODY, "127.0.0.1:50051"),
        (None, RANGE, NOBODY, "127.0.0.1:7000"),
        (None, RANGE, VERTEX, "0.0.0.0:7000"),
        ("10.0.0.5:1", None, VERTEX, "10.0.0.5:1"),
        ("10.0.0.5:1", RANGE, VERTEX, "10.0.0.5:1"),
        ("[::1]:0", RANGE, VERTEX, "[::1]:7000"),
        ("[::1]:0", None, VERTEX, "[::1]:0"),
        ("50078", None, NOBODY, "127.0.0.1:50078"),
        ("0", RANGE, NOBODY, "127.0.0.1:7000"),
    ],
)
def test_explicit_options_take_precedence(given, port_range, environ, bind):
    assert own_address(given, port_range, environ).bind == bind


def test_a_malformed_document_is_read_only_if_needed():
    wrong = NOBODY | {"CLUSTER_SPEC": "{"}
    assert str(own_address("127.0.0.1:1", None, wrong)) == "127.0.0.1:1"
    with pytest.raises(ConfigError, match="CLUSTER_SPEC is not what Vertex AI writes"):
        own_address(None, None, wrong)


@pytest.fixture
def checked(monkeypatch):
    """Return a function that returns exit code and output of `reducer serve --check` on Vertex AI."""
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)

    def check(**variables):
        ended = CliRunner().invoke(serve, ["--check"], env=VERTEX | variables)
        return ended.exit_code, " ".join(ended.output.split())

    return check


def test_the_platform_does_not_decide_who_may_use_the_reducer(checked):
    code, output = checked()
    assert code == 2
    assert (
        "or --insecure (REDUCER_INSECURE=1) if everybody on that network may be trusted; --bind 0.0.0.0:2222, "
        in output
    )
    assert "because CLUSTER_SPEC says that this is reducer 1 of 2" in output
    code, output = checked(REDUCER_INSECURE="1")
    assert code == 0
    assert 'bind = "0.0.0.0:2222" # from CLUSTER_SPEC data-port = 0 # default' in output


def test_a_worker_of_the_platform_does_not_serve(checked):
    worker = VERTEX["CLUSTER_SPEC"].replace('"workerpool2", "index": 1', '"workerpool0", "index": 0')
    code, output = checked(CLUSTER_SPEC=worker, REDUCER_INSECURE="1")
    assert code == 2
    assert (
        "Error: CLUSTER_SPEC says that this host is worker 0 of 1, and that reducers serve at r-0:2222"
        in output
    )
    assert checked(CLUSTER_SPEC=worker, REDUCER_BIND="127.0.0.1:1")[0] == 0
