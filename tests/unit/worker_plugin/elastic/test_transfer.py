"""A training's state between workers: tensors and JSON, and what comes from a donor that is lost."""

import math
import threading

import pytest
import torch
from reduction.errors import ConfigError, WorkerLost

from worker_plugin.elastic import transfer


class Sums:
    """All-reduces among threads: each blocks until all have come."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count)
        self._parts: list[torch.Tensor] = []
        self._lock = threading.Lock()

    def add(self, tensor: torch.Tensor) -> None:
        with self._lock:
            self._parts.append(tensor.clone())
        if self._barrier.wait(10) == 0:
            assert len({part.shape for part in self._parts}) == 1
            self.total = torch.stack(self._parts).sum(0, dtype=tensor.dtype)
            self._parts.clear()
        self._barrier.wait(10)
        tensor.copy_(self.total)
        self._barrier.wait(10)


def exchange(tree: object, receivers: int = 2) -> list[object]:
    sums, got = Sums(receivers + 1), []
    threads = [
        threading.Thread(target=lambda: got.append(transfer.receive(sums.add))) for _ in range(receivers)
    ]
    for thread in threads:
        thread.start()
    transfer.send(tree, sums.add)
    for thread in threads:
        thread.join(10)
    assert len(got) == receivers
    return got


def test_a_model_and_its_optimizer_arrive_with_all_bits(monkeypatch):
    monkeypatch.setattr(transfer, "PIECE_BYTES", 100)
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model[0].bias[0], model[0].bias[1] = -0.0, math.inf
    tree = {
        "model": dict(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "extra": {"step": 3, "x": (1.5, None, "t", [True])},
    }
    for got in exchange(tree):
        for name, tensor in model.state_dict().items():
            assert torch.equal(got["model"][name], tensor)
            assert got["model"][name].dtype == tensor.dtype
        assert torch.equal(torch.signbit(got["model"]["0.bias"]), torch.signbit(model[0].bias))
        assert got["extra"] == tree["extra"]
        again = torch.optim.Adam(torch.nn.Linear(5, 3).parameters(), 1.0)
        other = torch.optim.Adam([*model.parameters()], 1.0)
        other.load_state_dict(got["optimizer"])
        assert other.param_groups[0]["lr"] == 0.1
        assert len(again.state) == 0


def test_empty_trees_and_tensors():
    got = exchange({"none": torch.zeros(0, 3), "scalar": torch.tensor(2.5, dtype=torch.bfloat16)}, 1)[0]
    assert got["none"].shape == (0, 3)
    assert got["scalar"] == torch.tensor(2.5, dtype=torch.bfloat16)


def test_only_tensors_and_json_can_be_sent():
    with pytest.raises(ConfigError, match="the state has a object"):
        transfer.pack({"x": [object()]})


@pytest.mark.parametrize(
    "packed",
    [
        {"tensor": ["torch.float99", [2]]},
        {"tensor": ["torch.float32", [-1]]},
        {"set": []},
        {"dict": 3},
        {"a": 1, "b": 2},
    ],
)
def test_what_nobody_packs(packed):
    with pytest.raises(ConfigError):
        transfer.unpack(packed)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_donor_that_is_lost(after):
    """From some message on nobody adds anything but zeros."""
    packed = [torch.tensor([1, 2]), torch.tensor([1, *b"{}"], dtype=torch.uint8)]
    messages = iter([*packed[:after], None])

    def add(tensor: torch.Tensor) -> None:
        message = next(messages)
        if message is not None:
            tensor.copy_(message)

    if after == 2:
        with pytest.raises(ConfigError):  # {} is no tree
            transfer.receive(add)
    else:
        with pytest.raises(WorkerLost):
            transfer.receive(add)


def test_a_text_that_is_no_json():
    messages = iter([torch.tensor([1, 1]), torch.tensor([1, ord("{")], dtype=torch.uint8)])
    with pytest.raises(ConfigError, match="cannot be read"):
        transfer.receive(lambda tensor: tensor.copy_(next(messages)))


def test_a_donor_outside_of_the_generation():
    with pytest.raises(WorkerLost):
        transfer.send({}, lambda tensor: tensor.zero_())
