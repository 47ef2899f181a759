"""The ports of all processes."""

import pytest
from reduction.errors import ConfigError

from reducer.resources.ports import PortRange


@pytest.mark.parametrize(("text", "first", "last"), [("2222-2289", 2222, 2289), ("1-65535", 1, 65535)])
def test_valid_ranges(text, first, last):
    assert PortRange.of(text) == PortRange(first, last)
    assert str(PortRange(first, last)) == text


@pytest.mark.parametrize(
    "text", ["", "1", "1-", "-1", "0-9", "9-8", "1-65536", "1-2-3", "a-b", "1 - 9", "١-٩"]
)
def test_invalid_ranges(text):
    with pytest.raises(ConfigError) as caught:
        PortRange.of(text)
    assert str(caught.value).startswith(f"--port-range {text}: write FIRST-LAST")
    assert "1 to 65535" in str(caught.value)


def test_all_ports_of_all_processes_are_different_and_within_the_range():
    ports = PortRange(100, 108)
    ports.check(4, 0)
    all_ports = [ports.ports(number, 0) for number in range(4)]
    assert [one.metrics for one in all_ports] == [108, None, None, None]
    numbers = [108, *(port for one in all_ports for port in (one.grpc, one.data))]
    assert sorted(numbers) == list(range(100, 109))


@pytest.mark.parametrize("metrics_port", [None, 1, 99, 108, 9000])
def test_metrics_ports_that_fit(metrics_port):
    PortRange(100, 199).check(4, metrics_port)


@pytest.mark.parametrize(
    ("ports", "processes", "metrics_port", "values"),
    [
        (
            9,
            5,
            None,
            ["--port-range 100-108", "5 processes take 10 ports", "has 9", "--processes to 4 or less"],
        ),
        (8, 4, 0, ["--port-range 100-107", "4 processes take 9 ports", "has 8", "--processes to 3 or less"]),
        (1, 1, None, ["--port-range 100-100", "1 processes take 2 ports", "has 1: let it have 2"]),
        *[
            (100, 4, port, [f"--metrics-port {port}", "--port-range 100-199", "from 100 to 107"])
            for port in (100, 103, 107)
        ],
    ],
)
def test_ports_that_do_not_fit(ports, processes, metrics_port, values):
    with pytest.raises(ConfigError) as caught:
        PortRange(100, 99 + ports).check(processes, metrics_port)
    for value in values:
        assert value in str(caught.value)
    assert ("--processes to" in str(caught.value)) == (processes > 1 and ports < 100)
