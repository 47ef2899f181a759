"""The workload of test_shaped_training.py, run by every rank: training steps of a small transformer.

Real numbers, an optimizer, and a new batch each step: what is summed changes as it does in a training. Every
rank knows all batches, and computes what the others' gradients are after the step, outside the timed region.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.paired import Sample, timed
from benchmarks.ranks import TRANSPORTS, Rank
from worker_plugin import reduction_hook

_VOCABULARY = 1000
_WIDTH = 384
_LAYERS = 3
_HEADS = 6
#: One short sequence per rank, since computing must be little beside 24 MB of gradients on slow links.
_TOKENS = 4
_LEARNING_RATE = 1e-3
#: Of float32, relative: one rounding is half of it.
_EPSILON = 2.0**-23


class Transformer(nn.Module):
    """Predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, _WIDTH)
        layers = [
            nn.TransformerEncoderLayer(_WIDTH, _HEADS, 4 * _WIDTH, dropout=0.0, batch_first=True)
            for _ in range(_LAYERS)
        ]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(_WIDTH, _VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of each token's successor."""
        logits: torch.Tensor = self.head(self.layers(self.embedding(tokens)))
        return logits


class Training:
    """Copies of one model under DDP that train side by side: each transport, DDP's own, no communication."""

    def __init__(self, rank: Rank) -> None:
        torch.manual_seed(0)
        self._rank = rank
        self._key = 0
        self._last = ""
        #: Without DDP: computes what each rank's gradients must have been.
        self._reference = Transformer()
        self._models = {
            name: DistributedDataParallel(copy.deepcopy(self._reference))
            for name in (*rank.states, "ring", "noop")
        }
        for name, state in rank.states.items():
            self._models[name].register_comm_hook(state, reduction_hook)
        self._models["noop"].register_comm_hook(None, noop_hook)
        self._optimizers = {
            name: torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
            for name, model in self._models.items()
        }
        #: Each model's weights before its next step.
        self._before = {
            name: copy.deepcopy(model.module.state_dict()) for name, model in self._models.items()
        }

    def prepare(self) -> None:
        """Go on to the next batch."""
        self._key += 1

    def run(self, contender: str, start_at: float) -> Sample:
        """Do one training step."""
        self._last = contender
        model, optimizer = self._models[contender], self._optimizers[contender]
        batch = self._batch(self._rank.rank)

        def step() -> None:
            optimizer.zero_grad()
            _loss(model, batch).backward()
            optimizer.step()

        return timed([step], start_at)

    def verify(self) -> None:
        """Compare every gradient as a whole, and keep the new weights.

        Ours must have the bits of the fold in rank order. A ring adds in another order, and may differ by the
        roundings of both.
        """
        name, model = self._last, self._models[self._last].module
        self._reference.load_state_dict(self._before[name])
        ranks = [self._rank.rank] if name == "noop" else range(self._rank.world_size)
        gradients = [self._gradients(rank) for rank in ranks]
        named = model.named_parameters()
        for (parameter, value), parts in zip(named, zip(*gradients, strict=True), strict=True):
            if value.grad is None or not _is_right(value.grad, parts, exact=name in (*TRANSPORTS, "noop")):
                raise AssertionError(f"rank {self._rank.rank}, {name}: the gradient of {parameter} is wrong")
        with torch.no_grad():
            for key, value in model.state_dict().items():
                self._before[name][key].copy_(value)

    def _batch(self, rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self._key * self._rank.world_size + rank)
        return torch.randint(_VOCABULARY, (1, _TOKENS + 1), generator=generator)

    def _gradients(self, rank: int) -> list[torch.Tensor]:
        loss = _loss(self._reference, self._batch(rank))
        return list(torch.autograd.grad(loss, list(self._reference.parameters())))


def gradient_bytes() -> int:
    """Return the bytes of all gradients of the model."""
    with torch.device("meta"):
        return sum(_sizes(Transformer()))


def _sizes(model: nn.Module) -> Iterator[int]:
    return (parameter.numel() * parameter.element_size() for parameter in model.parameters())


def _loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def _is_right(gradient: torch.Tensor, parts: tuple[torch.Tensor, ...], *, exact: bool) -> bool:
    expected = parts[0].clone()
    for part in parts[1:]:
        expected += part
    expected /= len(parts)
    if exact:
        return torch.equal(gradient, expected)
    # n - 1 additions and a division on either side, each off by half an epsilon of at most this.
    largest = sum(part.abs() for part in parts) / len(parts)
    return bool(((gradient - expected).abs() <= len(parts) * _EPSILON * largest).all())
