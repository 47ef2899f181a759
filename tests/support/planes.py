"""The data planes over which a test with the fixture `plane` runs: all, unless it declares one of these."""

from __future__ import annotations

import pytest

#: Memory that ranks and reducers share bypasses every relay.
OVER_A_NETWORK = pytest.mark.parametrize("plane", ["tcp", "grpc"], indirect=True)
#: The test's subject lies above the planes, so the other planes run only with --full.
ANY_PLANE = pytest.mark.parametrize(
    "plane",
    [
        "tcp",
        pytest.param("grpc", marks=pytest.mark.full),
        pytest.param("auto", marks=pytest.mark.full, id="shared"),
    ],
    indirect=True,
)
