"""Where all ports of all processes are."""

import pytest
from reduction.errors import ConfigError

from reducer.resources.ports import PortRange


def test_a_range():
    assert PortRange.of("2222-2289") == PortRange(2222, 2289)
    assert PortRange.of("1-65535") == PortRange(1, 65535)
    assert str(PortRange(2222, 2289)) == "2222-2289"


@pytest.mark.parametrize(
    "text", ["", "1", "1-", "-1", "0-9", "9-8", "1-65536", "1-2-3", "a-b", "1 - 9", "١-٩"]
)
def test_no_range(text):
    with pytest.raises(ConfigError) as caught:
        PortRange.of(text)
    assert str(caught.value) == (
        f"--port-range {text}: write FIRST-LAST, such as 50051-50066, with ports of 1 to 65535"
    )


def test_all_ports_of_all_processes_are_different_and_within_the_range():
    ports = PortRange(100, 108)
    ports.check(4, 0)
    all_ports = [ports.ports(number, 0) for number in range(4)]
    assert [one.metrics for one in all_ports] == [108, None, None, None]
    numbers = [108, *(port for one in all_ports for port in (one.grpc, one.data))]
    assert sorted(numbers) == list(range(100, 109))


@pytest.mark.parametrize(
    ("ports", "processes", "metrics_port", "text"),
    [
        (
            9,
            5,
            None,
            "5 processes take 10 ports, and it has 9: let it have 10, or set --processes to 4 or less",
        ),
        (8, 4, 0, "4 processes take 9 ports, and it has 8: let it have 9, or set --processes to 3 or less"),
        (1, 1, None, "1 processes take 2 ports, and it has 1: let it have 2"),
    ],
)
def test_a_range_that_is_too_small(ports, processes, metrics_port, text):
    small = PortRange(100, 99 + ports)
    with pytest.raises(ConfigError) as caught:
        small.check(processes, metrics_port)
    assert str(caught.value) == f"--port-range {small}: {text}"


@pytest.mark.parametrize("metrics_port", [100, 103, 107])
def test_metrics_among_the_other_ports(metrics_port):
    with pytest.raises(ConfigError) as caught:
        PortRange(100, 199).check(4, metrics_port)
    assert str(caught.value) == (
        f"--metrics-port {metrics_port}: with --port-range 100-199 the ports from 100 to 107 are for gRPC and data: "
        f"take another, or 0 for the last one of the range"
    )


@pytest.mark.parametrize("metrics_port", [None, 1, 99, 108, 9000])
def test_metrics_elsewhere(metrics_port):
    PortRange(100, 199).check(4, metrics_port)
