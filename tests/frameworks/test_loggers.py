"""`state.stats()` in TensorBoard, MLflow and Lightning, read back with their own readers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes.reducers import Reducer

Script = Callable[..., str]
#: Bytes of both scripts' gradients, and steps of each rank.
MODEL_BYTES, STEPS = 4 * (64 * 8 + 8), 4


def scalars(folder: Path) -> dict[str, list[float]]:
    """Return the values of each scalar in TensorBoard's event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def check(found: dict[str, list[float]]) -> None:
    """Check a curve of each kind; the last step may be in flight when it is logged."""
    assert len(found["reduction/steps"]) == STEPS
    assert found["reduction/steps"] == [1.0, 2.0, 3.0, 4.0]
    assert set(found["reduction/world_size"]) == {2.0}
    assert found["reduction/bytes_pushed"][-1] >= MODEL_BYTES * (STEPS - 1)
    assert 0 < found["reduction/round_s"][-1] < 60
    assert 0 < found["reduction/efficiency"][-1] <= 1
    assert len(found) >= 20


def test_tensorboard(script: Script, reducer: Reducer, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: make test-integrations")
    script("loggers_script.py", "tensorboard", str(tmp_path / "runs"), REDUCTION_REDUCERS=reducer.address)
    check(scalars(tmp_path / "runs"))


@pytest.mark.filterwarnings("ignore")  # of the libraries that MLflow uses
def test_mlflow(script: Script, reducer: Reducer, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: make test-integrations")
    script("loggers_script.py", "mlflow", str(tmp_path), REDUCTION_REDUCERS=reducer.address)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("reduction").experiment_id])
    history = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    check({name: [metric.value for metric in metrics] for name, metrics in history.items()})


def test_lightning(script: Script, reducer: Reducer, tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed: make test-integrations")
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: make test-integrations")
    script("lightning_stats_script.py", str(tmp_path / "logs"), ranks=0, REDUCTION_REDUCERS=reducer.address)
    (events,) = (tmp_path / "logs").rglob("events.out.tfevents.*")
    check(scalars(events.parent))
