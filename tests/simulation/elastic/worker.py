"""A worker of an elastic job: the real communicator with a small training loop, on simulated threads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from random import Random

import numpy as np
import torch
from reduction.errors import ReductionError
from reduction.model import DType, ReduceOp
from simulation.elastic.threads import Program, sleep
from simulation.network import Network

from worker_plugin.communicator import Request
from worker_plugin.config import PluginConfig
from worker_plugin.elastic.membership.lineage import Generation, Worker
from worker_plugin.elastic.newcomers.training import Training, describe
from worker_plugin.elastic.steps import Steps
from worker_plugin.elastic.worker import Elastic
from worker_plugin.tensors.encoding import ParameterSlice

#: Reduced in each step in addition to the gradients.
_EXTRA = ((DType.BFLOAT16, torch.bfloat16, ReduceOp.SUM, 700), (DType.INT64, torch.int64, ReduceOp.MAX, 3))


class SimWorker(Program):
    """One life of a worker's process.

    Args:
        network: its network.
        host: its name.
        config: of the communicator.
        steps: number of steps of the whole training.
        leaves_after: number of steps in which it takes part.
        think_s: mean computing time of a step, in seconds.
        record: receives what happens, for the checker.
        on_end: called when the process has ended on its own, with whether that was an error.
        variant: its model; one that differs from the other workers' is an error of the script.
    """

    def __init__(
        self,
        network: Network,
        host: str,
        config: PluginConfig,
        *,
        steps: int,
        leaves_after: int,
        think_s: float,
        record: Callable[..., None],
        on_end: Callable[[SimWorker, bool], None],
        variant: int = 0,
    ) -> None:
        super().__init__(network, host)
        self.config, self.rank = config, config.rank
        self._steps, self._leaves_after, self._think_s = steps, leaves_after, think_s
        self._tell, self._on_end = record, on_end
        self.variant = variant
        self.name = ""
        self.step = -1
        self.start(self._run)

    def record(self, what: str, **fields: object) -> None:
        """Record an event of this worker."""
        if self.is_alive:
            self._tell(what, job=self.config.job, worker=self.name, **fields)

    def on_joined(self, generation: Generation) -> None:
        """Record a generation that this worker joins."""
        members = [_name(worker) for worker in generation.workers]
        newcomers = [_name(worker) for worker in generation.newcomers]
        self.record(
            "joined", number=generation.number, id=generation.id, members=members, newcomers=newcomers
        )

    def _run(self) -> None:
        # Each process starts with different values, so that a process that kept its own would be noticed.
        first = f"{self.host} at {self.network.clock.now}"
        model = _Model(self.variant, first)
        worker = Elastic(self.config, describe(model))
        self.name = _name(worker.own)
        self.record("began")
        error: ReductionError | None = None
        try:
            self._train(worker, model, first)
        except ReductionError as failure:
            error = failure
            self.record("failed", error=type(error).__name__, text=str(error))
        else:
            self.record("over", step=self.step)
        worker.close()  # as every process does at its end
        clock = self.network.clock
        clock.at(clock.now, lambda: self._end(error is not None))

    def _end(self, is_error: bool) -> None:
        if self.is_alive:
            self.kill()
            self._on_end(self, is_error)

    def _train(self, worker: Elastic, model: torch.nn.Module, first: str) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        told: list[tuple[list[int], list[int]]] = []
        steps = Steps(
            worker,
            self.config.min_workers,
            self.config.join_timeout_s,
            [lambda before, after: told.append((list(before), list(after)))],
        )
        extra = {"step": 0, "note": first}
        done = 0
        while True:
            extra = steps.sync(Training(model, optimizer, extra))
            self.step = extra["step"]
            self.record(
                "state",
                step=self.step,
                digest=_digest(model, optimizer, extra),
                ranks=list(steps.ranks),
                told=list(told),
            )
            told.clear()
            if self.step >= self._steps or done >= self._leaves_after:
                return
            sleep(self.network.random.expovariate(1 / self._think_s))
            for parameter, gradient in zip(model.parameters(), self._reduce(worker, model), strict=True):
                parameter.grad = gradient.view_as(parameter)
            optimizer.step()
            model.count += 1
            extra = {"step": self.step + 1, "note": extra["note"]}
            done += 1

    def _reduce(self, worker: Elastic, model: torch.nn.Module) -> list[torch.Tensor]:
        """Reduce the tensors of this step; return the gradients."""
        shapes = [
            (DType.FLOAT32, torch.float32, ReduceOp.AVG, parameter.numel())
            for parameter in model.parameters()
        ]
        futures = []
        for part, (dtype, kind, op, numel) in enumerate((*shapes, *_EXTRA)):
            tensor = _contribution(f"{self.name}/{self.step}/{part}", numel, kind)
            self.record(
                "issued",
                step=self.step,
                part=part,
                op=op.name,
                dtype=dtype.name,
                contribution=_bytes(tensor),
            )
            futures.append(worker.submit(Request(tensor, dtype, op, 7, [ParameterSlice(0, numel)])))
        results = []
        for part, future in enumerate(futures):
            results.append(future.wait())
            self.record("result", step=self.step, part=part, result=_bytes(results[-1]))
        return results[: len(shapes)]


class _Model(torch.nn.Module):
    def __init__(self, variant: int, first: str) -> None:
        super().__init__()
        width = 10 + variant
        self.weight = torch.nn.Parameter(_contribution(first, 40 * width, torch.float32).view(40, width))
        self.bias = torch.nn.Parameter(torch.zeros(7))
        self.register_buffer("count", torch.zeros(3, dtype=torch.int64))


def _name(worker: Worker) -> str:
    return f"{worker.rank}/{worker.nonce[:8]}"


def _contribution(seed: str, numel: int, kind: torch.dtype) -> torch.Tensor:
    random = np.random.default_rng(list(seed.encode()))
    if kind is torch.int64:
        return torch.from_numpy(random.integers(-(1 << 62), 1 << 62, numel))
    return torch.from_numpy(random.standard_normal(numel) * 10).to(kind)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


def _digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer, extra: object) -> str:
    found = hashlib.sha256(repr(extra).encode())
    for tensor in model.state_dict().values():
        found.update(_bytes(tensor))
    for parameter in model.parameters():
        momentum = optimizer.state.get(parameter, {}).get("momentum_buffer")
        found.update(b"-" if momentum is None else _bytes(momentum))
    return found.hexdigest()[:16]


def random_config(random: Random, **fields: object) -> PluginConfig:
    """Return settings, some of which are drawn at random."""
    chunk = random.choice([None, 1024, 4096])
    return PluginConfig(
        chunk_bytes=chunk,
        credit_bytes=random.choice([None, 8192]),
        checksums=random.random() < 0.3,
        run="night",
        elastic=True,
        timeout_s=120.0,
        join_timeout_s=30.0,
        report_s=0.0,
        **fields,
    )
