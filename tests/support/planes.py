"""Over which data planes a test runs that asks for the fixture `plane`: over all, unless it says one of these."""

from __future__ import annotations

import pytest

#: Memory that ranks and reducers share leads past every relay.
OVER_A_NETWORK = pytest.mark.parametrize("plane", ["tcp", "grpc"], indirect=True)
#: What the test shows lies above the planes: the others have their turn with --full.
ANY_PLANE = pytest.mark.parametrize(
    "plane",
    [
        "tcp",
        pytest.param("grpc", marks=pytest.mark.full),
        pytest.param("auto", marks=pytest.mark.full, id="shared"),
    ],
    indirect=True,
)
