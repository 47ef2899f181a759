"""The workload of convergence.py, run by every rank: small models, and ways to average their gradients.

The batch of a step depends only on its number and the rank, so all trainings see the same batches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import cache, partial, wraps
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.demo.digits import TRAINING_IMAGES, cnn
from benchmarks.lab.ranks import Rank
from benchmarks.loads.models import Batch, Recipe
from worker_plugin import ReductionState, reduction_hook
from worker_plugin.process_group import ReductionOptions, add_error_feedback, state_of

#: Rank of PowerSGD's approximation (Vogels et al., 2019), and the first compressed step, which
#: torch requires to be at least 2.
POWER_RANK, POWER_START = 2, 10
#: torch's `min_compression_rate`: PowerSGD leaves a matrix uncompressed unless this many times
#: fewer elements remain.
POWER_RATE = 2


#: Characters of an example.
CONTEXT = 64
#: Learning rate and momentum of the outer optimizer (DiLoCo: Douillard et al., arXiv 2311.08105, section 3).
OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9
#: A bucket size in MB, larger than the gradients of any of the models.
ONE_BUCKET_MB = 64


class CharTransformer(nn.Module):
    """Two layers that predict the next character."""

    def __init__(self, characters: int, context: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.position = nn.Parameter(0.02 * torch.randn(context, width))
        layers = [
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        ]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters)
        mask = nn.Transformer.generate_square_subsequent_mask(context)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Return the logits of each character's successor."""
        hidden = self.embedding(characters) + self.position
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.head(self.norm(hidden))
        return logits


@cache
def text() -> tuple[torch.Tensor, int]:
    """Return the ASCII text of all topics as numbers, and the number of different characters."""
    content = "".join(topics[name] for name in sorted(topics)).encode("ascii", "ignore")
    known, numbers = torch.tensor(list(content), dtype=torch.uint8).unique(return_inverse=True)
    return numbers, len(known)


def _digits() -> Recipe:
    """Return the demo's CNN on scikit-learn's digits.

    Labels are smoothed by 0.1 (Szegedy et al., "Rethinking the Inception Architecture", 2015).
    Otherwise the loss would go to 0, and 1 % of it would be meaningless. The lowest possible loss
    is the entropy of such a label, 0.50 nats.
    """
    digits = load_digits()
    images = torch.tensor(digits.images[:TRAINING_IMAGES], dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target[:TRAINING_IMAGES])

    def batch(count: int, generator: torch.Generator) -> Batch:
        chosen = torch.randint(len(labels), (count,), generator=generator)
        return images[chosen], labels[chosen]

    return Recipe(build=cnn, batch=batch, examples=22, learning_rate=0.05, smoothing=0.1)


def _text(width: int, examples: int) -> Recipe:
    """Return a transformer on the text that Python's `help()` shows, which is fixed for a given Python version."""
    characters, different = text()

    def batch(count: int, generator: torch.Generator) -> Batch:
        starts = torch.randint(len(characters) - CONTEXT, (count,), generator=generator)
        rows = characters[starts[:, None] + torch.arange(CONTEXT + 1)]
        return rows[:, :-1], rows[:, 1:]

    build = partial(CharTransformer, different, CONTEXT, width)
    return Recipe(build=build, batch=batch, examples=examples, learning_rate=0.1)


#: Functions that return a recipe, by name. "wide" has four times the gradients from half as many sequences, so that
#: links become the bottleneck.
LEARNERS: dict[str, Callable[[], Recipe]] = {
    "digits": _digits,
    "transformer": partial(_text, 64, 8),
    "wide": partial(_text, 128, 4),
}


class Way(NamedTuple):
    """How gradients are averaged: by reducers in a wire dtype, or by one of torch's hooks over Gloo."""

    name: str
    #: Wire dtype, where "fp32" means that it is not set; None for torch's own ways.
    wire: str | None
    #: Steps that each rank trains on its own between two averages of the weights' changes; 0: gradients are
    #: averaged in every step.
    alone: int = 0
    #: Ranks per node among which FSDP2 shards the model; the nodes' copies are averaged. 0: DDP.
    shard: int = 0
    #: Whether sharded gradients get error feedback. DDP's gradients always do.
    has_feedback: bool = True


@wraps(bf16_compress_hook, assigned=(), updated=())  # DDP also looks at the annotations
def _bf16_over_gloo(state: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Call torch's hook under another name, since DDP rejects the original name without NCCL."""
    return bf16_compress_hook(dist.group.WORLD, bucket)  # type: ignore[arg-type]


#: torch's hooks that need no state of their own.
HOOKS: dict[str, Any] = {"bf16_hook": _bf16_over_gloo, "fp16_hook": fp16_compress_hook}


class Outer:
    """The outer optimizer of a model that each rank trains on its own, as in examples/local_sgd.py."""

    def __init__(self, model: nn.Module, state: ReductionState | None) -> None:
        self._state = state
        self._parameters = list(model.parameters())
        self._shared = [parameter.detach().clone() for parameter in self._parameters]
        self._optimizer = torch.optim.SGD(self._shared, OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True)

    @torch.no_grad()
    def step(self) -> None:
        """Give all ranks the same weights: the shared ones, updated with the mean of the ranks' changes."""
        changes = [before - now for before, now in zip(self._shared, self._parameters, strict=True)]
        flat = torch.cat([change.flatten() for change in changes])
        if self._state is not None:
            self._state.all_reduce(flat, dist.ReduceOp.AVG).wait()
        else:
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
        for weight, part in zip(
            self._shared, flat.split([change.numel() for change in changes]), strict=True
        ):
            weight.grad = part.view_as(weight)
        self._optimizer.step()
        for parameter, weight in zip(self._parameters, self._shared, strict=True):
            parameter.copy_(weight)


class Trainee:
    """One training, which starts from the same weights as all others."""

    def __init__(self, learner: Recipe, way: Way, state: ReductionState | None) -> None:
        torch.manual_seed(0)
        self.state = state
        self.steps = 0
        model = learner.build()
        self.alone = way.alone
        self.outer = Outer(model, state) if way.alone else None
        self.model = model if way.alone else self.averaged(model, way)
        self.optimizer = torch.optim.SGD(model.parameters(), learner.learning_rate, momentum=0.9)

    def averaged(self, model: nn.Module, way: Way) -> nn.Module:
        """Return a model whose gradients are averaged in every step."""
        # PowerSGD gets a single bucket. With several, torch's hook sums their factors in the order
        # in which they become ready, which differs between ranks (over Gloo, torch 2.13: "Received
        # data size doesn't match expected size").
        ddp = DistributedDataParallel(model, bucket_cap_mb=ONE_BUCKET_MB if way.name == "powersgd" else None)
        if self.state is not None:
            ddp.register_comm_hook(self.state, reduction_hook)
        elif way.name == "powersgd":
            power: Any = partial(PowerSGDState, None, matrix_approximation_rank=POWER_RANK)
            ddp.register_comm_hook(
                power(start_powerSGD_iter=POWER_START, min_compression_rate=POWER_RATE), powerSGD_hook
            )
        elif way.name != "none":
            ddp.register_comm_hook(None, HOOKS[way.name])
        return ddp


class Sharded(Trainee):
    """One training with HSDP, over the backend "reduction" across nodes."""

    def __init__(self, learner: Recipe, way: Way, options: ReductionOptions) -> None:
        self._mesh = init_device_mesh(
            "cpu",
            (dist.get_world_size() // way.shard, way.shard),
            mesh_dim_names=("replicate", "shard"),
            backend_override={"replicate": ("reduction", options)},
        )
        super().__init__(learner, way, state_of(self._mesh.get_group("replicate")))

    def averaged(self, model: nn.Module, way: Way) -> nn.Module:
        """See `Trainee.averaged`."""
        for child in model.children():
            for layer in child if isinstance(child, nn.ModuleList) else [child]:
                if any(True for _ in layer.parameters()):
                    fully_shard(layer, mesh=self._mesh)
        fully_shard(model, mesh=self._mesh)
        if way.has_feedback:
            add_error_feedback(model, self._mesh)
        return model


class Training:
    """The workload: trainings one after another or side by side, see `benchmarks.lab.ranks`."""

    def __init__(self, rank: Rank, learner: str) -> None:
        self._rank = rank
        self._learner = LEARNERS[learner]()
        self._trainees: dict[str, Trainee] = {}

    def begin(self, way: Way, reducers: Sequence[str], job: str) -> None:
        """Start a training from the beginning."""
        wire = None if way.wire == "fp32" else way.wire
        if way.shard:
            options = ReductionOptions(reducers=reducers, job=job, wire_dtype=wire)
            self._trainees[way.name] = Sharded(self._learner, way, options)
            return
        state = None if way.wire is None else ReductionState(reducers, job=job, wire_dtype=wire)
        self._trainees[way.name] = Trainee(self._learner, way, state)

    def run(self, name: str, count: int) -> tuple[list[float], list[float]]:
        """Train `count` more steps, and return their losses (mean over all ranks) and seconds (on this rank)."""
        losses, seconds, trainee = [], [], self._trainees[name]
        for _ in range(count):
            begin = time.perf_counter()
            trainee.optimizer.zero_grad()
            batch = self._learner.batch_of(trainee.steps, self._rank.rank, self._rank.world_size)
            loss = self._learner.loss(trainee.model, batch)
            loss.backward()
            trainee.optimizer.step()
            if trainee.outer is not None and (trainee.steps + 1) % trainee.alone == 0:
                trainee.outer.step()
            seconds.append(time.perf_counter() - begin)
            losses.append(loss.detach())
            trainee.steps += 1
        means = torch.stack(losses).double()
        dist.all_reduce(means)
        return (means / self._rank.world_size).tolist(), seconds

    def end(self, name: str) -> None:
        """Leave the job."""
        state = self._trainees.pop(name).state
        if state is not None:
            state.close()


def torch_bytes(name: str, shapes: Sequence[Sequence[int]], step: int, world_size: int) -> float:
    """Return the bytes that one rank sends and receives in a step of one of torch's ways.

    A rank of a ring sends 2 (n - 1) / n times the tensor and receives as much (Patarasuk and Yuan,
    "Bandwidth optimal all-reduce algorithms", 2009). An element has 4 bytes, or 2 with the 16-bit
    hooks. For each gradient of rows x columns that shrinks enough, PowerSGD sums two factors with
    (rows + columns) x rank elements in float32. It sums the other gradients uncompressed, and all
    of them before step POWER_START (torch's powerSGD_hook.py).
    """
    if name in HOOKS:
        nbytes = 2 * sum(math.prod(shape) for shape in shapes)
    elif name == "powersgd" and step >= POWER_START:
        nbytes = 4 * sum(_power_elements(shape) for shape in shapes)
    else:
        nbytes = 4 * sum(math.prod(shape) for shape in shapes)
    return 2 * 2 * (world_size - 1) / world_size * nbytes


def _power_elements(shape: Sequence[int]) -> int:
    numel = math.prod(shape)
    rows = shape[0]
    columns = numel // rows
    factors = (rows + columns) * min(rows, columns, POWER_RANK)
    return factors if len(shape) > 1 and factors * POWER_RATE < numel else numel
