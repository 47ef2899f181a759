"""Messages between a supervisor and its processes."""

import pytest

from reducer.process.messages import DRAIN, siblings_line, siblings_of


@pytest.mark.parametrize("ports", [(), (50052,), (1, 65535)])
def test_siblings_round_trip(ports):
    assert siblings_of(siblings_line(ports) + "\n") == ports


@pytest.mark.parametrize("line", ["", "\n", DRAIN, "siblingsx 1"])
def test_other_lines_are_ignored(line):
    assert siblings_of(line) is None
