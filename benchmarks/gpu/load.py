"""The workload of gpu/training.py for every rank: one model under DDP for each contender.

All contenders see the same batches. DDP's own control traffic uses Gloo unless the contender is NCCL, so
that nothing else needs NCCL.
"""

from __future__ import annotations

import copy
import hashlib
import math
from contextlib import ExitStack, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.gpu.trace import STEP
from benchmarks.lab.ranks import Rank
from benchmarks.loads.models import RECIPES, TINY, Batch
from benchmarks.method.paired import Sample, timed
from worker_plugin import reduction_hook

OURS, GLOO, NCCL, NOOP = "ours", "gloo", "nccl", "noop"
_LEARNING_RATE = 1e-3


class GpuTraining:
    """Copies of one model that train side by side from the same weights."""

    def __init__(
        self,
        rank: Rank,
        model: str,
        tiny: bool,
        contenders: list[str],
        bucket_mb: float,
    ) -> None:
        torch.manual_seed(0)  # on the CPU, so that all ranks start with the same weights
        self._rank = rank
        self._recipe = (TINY if tiny else RECIPES)[model]
        self._start = self._recipe.build()
        gloo = dist.new_group(backend="gloo")
        self._models = {
            name: DistributedDataParallel(
                copy.deepcopy(self._start).to(rank.device),
                device_ids=[rank.device.index] if rank.device.type == "cuda" else None,
                init_sync=False,
                process_group=None if name == NCCL else gloo,
                bucket_cap_mb=bucket_mb,
                gradient_as_bucket_view=True,
            )
            for name in contenders
        }
        if OURS in contenders:
            self._models[OURS].register_comm_hook(rank.states["tcp"], reduction_hook)
        if NOOP in contenders:
            self._models[NOOP].register_comm_hook(None, noop_hook)
        # Momentum would need memory and hide errors of the sums.
        self._optimizers = {
            name: torch.optim.SGD(one.parameters(), lr=_LEARNING_RATE) for name, one in self._models.items()
        }
        self._steps = dict.fromkeys(contenders, 0)
        self._loss = torch.zeros(())

    def prepare(self) -> None:
        """Do nothing, since `run` creates the batch of its step."""

    def run(self, contender: str, start_at: float) -> Sample:
        """Do one training step with a batch that is already on the GPU."""
        batch = self._batch(contender)
        return timed([lambda: self._step(contender, batch)], start_at)

    def verify(self) -> None:
        """Check that the last loss is finite. Weights are compared at the end."""
        if not math.isfinite(float(self._loss)):
            raise AssertionError(f"rank {self._rank.rank}: the loss is {float(self._loss)}")

    def profile(self, contender: str, count: int, folder: str) -> None:
        """Do `count` more steps, and write a trace of the GPU, on rank 0 also of the CPU. Ours also writes its own."""
        on_gpu, is_first = self._rank.device.type == "cuda", self._rank.rank == 0
        wanted = ([ProfilerActivity.CUDA] if on_gpu else []) + ([ProfilerActivity.CPU] if is_first else [])
        with ExitStack() as stack:
            if contender == OURS:
                stack.enter_context(self._rank.states["tcp"].trace(folder))
            profiler = stack.enter_context(profile(activities=wanted) if wanted else nullcontext())
            for _ in range(count):
                batch = self._batch(contender)
                with record_function(STEP):
                    self._step(contender, batch)
        if profiler is not None:
            profiler.export_chrome_trace(str(Path(folder, f"profile-{self._rank.rank}.json")))

    def digest(self, contender: str) -> str:
        """Return a hash of all weights."""
        weights = hashlib.sha256()
        for parameter in self._models[contender].parameters():
            if not bool(parameter.isfinite().all()):
                raise AssertionError(f"rank {self._rank.rank}, {contender}: a weight is not finite")
            weights.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return weights.hexdigest()

    @torch.no_grad()
    def apart(self, contender: str, other: str) -> float:
        """Return the distance between the weights of two contenders / the distance from the start to the other's."""
        distance = way = 0.0
        pairs = zip(self._models[contender].parameters(), self._models[other].parameters(), strict=True)
        for (mine, theirs), begin in zip(pairs, self._start.parameters(), strict=True):
            distance += float((mine - theirs).double().square().sum())
            way += float((theirs - begin.to(theirs.device)).double().square().sum())
        return math.sqrt(distance / way)

    def _batch(self, contender: str) -> Batch:
        step = self._steps[contender]
        self._steps[contender] += 1
        inputs, targets = self._recipe.batch_of(step, self._rank.rank, self._rank.world_size)
        placed = inputs.to(self._rank.device), targets.to(self._rank.device)
        self._rank.synchronize()
        return placed

    def _step(self, contender: str, batch: Batch) -> None:
        device = self._rank.device.type
        optimizer = self._optimizers[contender]
        optimizer.zero_grad()
        # Such models are usually trained with 16 bits on the tensor cores, and gradients and sums in
        # float32.
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = self._recipe.loss(self._models[contender], batch)
        loss.backward()
        optimizer.step()
        self._rank.synchronize()
        self._loss = loss.detach()
