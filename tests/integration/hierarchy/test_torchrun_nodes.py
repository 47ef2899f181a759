"""`local_group` in a user's script under torchrun, which sets LOCAL_RANK and LOCAL_WORLD_SIZE for each rank.

A node consists of the ranks of one torchrun. Two torchruns count as two nodes even here on one host, since only ranks
of the same node must share a host. The bits of the weights reveal the order of addition. For links between hosts see
benchmarks/shaped/hierarchy.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.expected.hierarchical import of_nodes
from support.processes.torchrun import Torchrun
from support.training import train_script
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

RANKS = 4
EPOCHS = 1


def weights(size: int) -> dict[str, torch.Tensor]:
    """Return the expected final weights if the script's ranks form nodes of `size`; 1 is flat mode."""
    data, model = train_script.build()
    optimizer, parameters = train_script.sgd(model), list(model.parameters())
    samplers = [DistributedSampler(data, num_replicas=RANKS, rank=rank, seed=1) for rank in range(RANKS)]
    for epoch in range(EPOCHS):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        loaders = (DataLoader(data, batch_size=train_script.BATCH, sampler=sampler) for sampler in samplers)
        for batches in zip(*loaders, strict=True):
            losses = [nn.functional.cross_entropy(model(features), labels) for features, labels in batches]
            gradients = [torch.autograd.grad(loss, parameters) for loss in losses]
            for parameter, parts in zip(parameters, zip(*gradients, strict=True), strict=True):
                parameter.grad = of_nodes(parts, size, "AVG")
            optimizer.step()
    return model.state_dict()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute with one thread, as each rank does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def torchruns(tmp_path: Path, free_port) -> Iterator:
    started: list[Torchrun] = []

    def start(nodes: int, **more: str) -> list[Torchrun]:
        meeting = ("--nnodes", f"{nodes}", "--master-addr", "127.0.0.1", "--master-port", f"{free_port()}")
        for node in range(nodes):
            folder = tmp_path / f"node-{node}"
            folder.mkdir()
            arguments = train_script.__file__, str(tmp_path), f"{EPOCHS}"
            place = *meeting, "--node-rank", f"{node}"
            started.append(Torchrun(folder, RANKS // nodes, *arguments, place=place, **more))
        return started

    yield start
    for run in started:
        run.kill()


@pytest.mark.timeout(300)  # as in test_processes.py
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("nodes", "local_group", "size"),
    [
        pytest.param(2, "auto", 2, id="two torchruns"),
        pytest.param(1, "auto", 1, id="one torchrun, so nothing to gain", marks=pytest.mark.full),
        pytest.param(1, "2", 2, id="one torchrun, told", marks=pytest.mark.full),
    ],
)
def test_the_weights_match_the_node_size(torchruns, reducers, tmp_path, nodes, local_group, size):
    more = {"REDUCTION_REDUCERS": ",".join(reducers(2)), "REDUCTION_LOCAL_GROUP": local_group}
    for run in torchruns(nodes, **more):
        assert run.wait() == 0, run.log.read_text()[-5000:]
        # The agents of torchrun meet before they end, in a store that the fastest of them may already have closed.
        lines = run.log.read_text().splitlines()
        text = "\n".join(line for line in lines if "/torch/distributed/elastic/agent/" not in line)
        assert "Traceback" not in text, text[-5000:]
    expected, other = weights(size), weights(3 - size)
    assert any(not torch.equal(expected[name], other[name]) for name in expected), "the bits tell nothing"
    for rank in range(RANKS):
        _, found = torch.load(tmp_path / f"rank-{rank}.pt")
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor), f"rank {rank}: {name} is not that of nodes of {size}"
