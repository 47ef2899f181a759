"""Training gives the same weights with and without reducers, and its collectives went through the reducer."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Callable

import pytest
from support.processes.reducers import Reducer

Script = Callable[..., str]


def needs(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(library) is None,
        reason=f"{library} is not installed: make test-integrations",
    )


def weights_in(said: str) -> set[str]:
    """Return the weights' sum that the ranks printed, as a hexadecimal number."""
    return set(re.findall(r"weights (-?0x[0-9a-f.]+p[+-]\d+)", said))


def received_bytes(reducer: Reducer) -> int:
    """Return how much ranks have pushed to a reducer, from its log lines about ended jobs."""
    return sum(map(int, re.findall(r"job ended .*received_bytes=(\d+)", reducer.log.text)))


#: Bytes of the gradients of `lightning_script.py` and `accelerate_script.py`, and steps of each rank.
MODEL_BYTES, STEPS = 4 * (64 * 8 + 8), 4


@needs("lightning")
@pytest.mark.parametrize("way", ["reduction", "backend", "fabric"])
def test_lightning(script: Script, reducer: Reducer, way: str) -> None:
    plain = weights_in(script("lightning_script.py", "fabric on gloo" if way == "fabric" else "ddp", ranks=0))
    ours = weights_in(script("lightning_script.py", way, ranks=0, REDUCTION_REDUCERS=reducer.address))
    assert ours == plain
    assert len(ours) == 1
    assert received_bytes(reducer) >= 2 * STEPS * MODEL_BYTES


@needs("lightning")
def test_lightning_without_code_changes(script: Script, reducer: Reducer) -> None:
    plain = weights_in(script("lightning_script.py", "ddp", ranks=0))
    variables = {"REDUCTION_REDUCERS": reducer.address, "REDUCTION_AUTO": "ddp"}
    assert weights_in(script("lightning_script.py", "ddp", ranks=0, **variables)) == plain
    assert received_bytes(reducer) >= 2 * STEPS * MODEL_BYTES


@needs("lightning")
def test_lightning_skips_steps(script: Script) -> None:
    """After an overflow and a step that the script skips, training has the same bits as without them."""
    plain = weights_in(script("lightning_skips_script.py", "plain", ranks=0))
    assert weights_in(script("lightning_skips_script.py", "skips", ranks=0)) == plain
    assert len(plain) == 1


@needs("accelerate")
@pytest.mark.parametrize("way", ["hook", "backend", "without a line"])
def test_accelerate(script: Script, reducer: Reducer, way: str) -> None:
    plain = weights_in(script("accelerate_script.py", "gloo"))
    variables = {"REDUCTION_REDUCERS": reducer.address}
    if way == "without a line":
        way, variables["REDUCTION_AUTO"] = "gloo", "ddp"
    assert weights_in(script("accelerate_script.py", way, **variables)) == plain
    assert len(plain) == 1
    assert received_bytes(reducer) >= 2 * STEPS * MODEL_BYTES


@needs("transformers")
@pytest.mark.parametrize("way", ["backend", "without a line"])
def test_transformers(script: Script, reducer: Reducer, way: str) -> None:
    plain = weights_in(script("transformers_script.py", "gloo"))
    variables = {"REDUCTION_REDUCERS": reducer.address}
    if way == "without a line":
        variables["REDUCTION_AUTO"] = "ddp"
    backend = "reduction" if way == "backend" else "gloo"
    assert weights_in(script("transformers_script.py", backend, **variables)) == plain
    assert len(plain) == 1
    assert received_bytes(reducer) > 100_000


@needs("pyspark")
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java, and there is none")
@pytest.mark.parametrize("where", ["local", "cluster"])
def test_spark_without_code_changes(script: Script, reducer: Reducer, where: str) -> None:
    """Spark's TorchDistributor runs in local mode, and on two executors, which get the variables from Spark."""
    plain = script("spark_script.py", where, ranks=0)
    assert "hook none" in plain
    variables = {"REDUCTION_REDUCERS": reducer.address, "REDUCTION_AUTO": "ddp"}
    ours = script("spark_script.py", where, ranks=0, **variables)
    assert "hook reduction_hook" in ours
    assert weights_in(ours) == weights_in(plain)
    assert len(weights_in(ours)) == 1
    assert received_bytes(reducer) >= 2 * STEPS * MODEL_BYTES


@needs("ray")
@pytest.mark.parametrize("way", ["hook", "reduction", "kill"])
def test_ray_train(script: Script, way: str) -> None:
    """Reducers are actors on their own nodes; with "kill" one of the two actors is killed in the middle."""
    said = script("ray_script.py", way, ranks=0)
    assert len(weights_in(said)) == 1
    expected = "reduction None 2 reducers" if way == "reduction" else "gloo reduction_hook 2 reducers"
    assert expected in said
    assert ("killed one of 2 actors" in said) == (way == "kill")


@needs("ray")
def test_a_ray_pool(script: Script) -> None:
    """A pool is found by its name, outlives its creator, and frees its name at its end."""
    said = script("ray_pool_script.py", ranks=0)
    assert "sums [3.0, 3.0], found 2, as started: True" in said
    assert "no such pool answers: Failed to look up actor" in said


@needs("torchft")
@pytest.mark.parametrize("way", ["ddp", "local", "diloco", "ddp, a replica killed"])
def test_torchft(script: Script, reducer: Reducer, way: str) -> None:
    """All replicas have the same weights after every step; one that is killed comes back."""
    algorithm, _, is_killing = way.partition(",")
    said = script(
        "torchft_script.py",
        algorithm,
        "1" if is_killing else "0",
        ranks=0,
        REDUCTION_REDUCERS=reducer.address,
    )
    assert "same weights: True" in said
    assert received_bytes(reducer) > 0


@needs("torch.distributed.debug")
@needs("tabulate")
@needs("requests")
def test_torchs_debug_server(script: Script, reducer: Reducer) -> None:
    """Its page shows the state of all ranks, and the collective that waits for a rank."""
    said = script("debug_server_script.py", REDUCTION_REDUCERS=reducer.address)
    name = "&lt;b&gt;job&lt;/b&gt;"
    for rank in range(2):
        assert f"rank {rank}: &lt;ReductionState: job &#39;{name}&#39;, rank {rank} of 2, open&gt;" in said
    assert "<b>job" not in "".join(re.findall("<pre>.*?</pre>", said, re.DOTALL))
    assert re.search(r"  mean of \d+ rounds of 2 ranks: [\d.]+ ms for ", said)
    waits = r"  rank 0 \(.*\) has 1 without a result, the oldest is 3: SUM of 7 x float32: 0 of 28 bytes not pushed"
    assert re.search(rf"{waits}, no result from {re.escape(reducer.address)}", said), said
    assert "menu: True" in said
    assert "later: False" in said
