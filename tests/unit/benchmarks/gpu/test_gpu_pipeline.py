"""The references for the GPU's pipeline, and the text of its report."""

from __future__ import annotations

import pytest

from benchmarks.gpu import pipeline as gpu_pipeline
from benchmarks.lab.traffic import Traffic
from benchmarks.method.paired import Measurement, Sample


def measurement(*seconds: float) -> Measurement:
    made = Measurement()
    for turn in seconds:
        made.add([Sample([turn / 2], 0.1), Sample([turn], 0.1)], 0.1, Traffic())
    return made


def test_the_whole_is_compared_with_the_slowest_stage() -> None:
    measured = {
        "down": measurement(0.1, 0.1, 0.1),
        "network": measurement(1.0, 2.0, 4.0),
        "up": measurement(0.2, 0.2, 0.2),
        "all": measurement(1.1, 2.2, 4.4),
    }
    table = gpu_pipeline.lines(measured, 10**9)
    assert table[-1] == "all: 1.10 (1.10-1.10) x slowest, which is network"
    assert any("down" in line and "100" in line and "10.00" in line for line in table)


@pytest.mark.parametrize(
    "given", [["--size", "4MiB", "--bucket", "8MiB"], ["--bucket", "2"], ["--device", "tpu"]]
)
def test_bad_arguments(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu_pipeline.parse(given)
    assert ended.value.code == 2
    assert "error" in capsys.readouterr().err
