"""The all-reduce workload, run by every rank: collectives one after another, all checked.

Inputs are small integers in float32, so any order of addition gives the exact sum. They differ by
rank, iteration and element, so a contribution that is counted twice, left out, late or misplaced
changes the sum. With a wire dtype that loses precision, the sum must have the bits that this
process computes on its own from all ranks' inputs.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist

from benchmarks.lab.ranks import WIRES, Rank
from benchmarks.loads.codecs import reduced
from benchmarks.method.paired import Sample, timed
from worker_plugin import ReductionState

#: Period of the input pattern. It is prime, so that no two chunks have the same content.
_PERIOD = 1021
#: Elements by which the pattern of a rank is shifted relative to the previous rank's pattern.
_SHIFT = 251
#: Number of iterations after which the inputs repeat. It keeps all sums of up to 64 ranks below
#: 2**24, where float32 is exact.
_KEYS = 4096


class AllReduce:
    """`iterations` tensors of `numel` float32 elements each, reduced back to back."""

    def __init__(self, rank: Rank, numel: int, iterations: int) -> None:
        self._rank = rank
        self._pattern = (torch.arange(numel, device=rank.device) % _PERIOD).float()
        self._tensors = [torch.empty_like(self._pattern) for _ in range(iterations)]
        self._expected = torch.empty_like(self._pattern)
        self._key = 0
        self._contender = ""

    def prepare(self) -> None:
        """Write new inputs."""
        self._key = (self._key + len(self._tensors)) % _KEYS
        for index, tensor in enumerate(self._tensors):
            self._fill(tensor, self._rank.rank, index)
        self._rank.synchronize()

    def _fill(self, tensor: torch.Tensor, rank: int, index: int) -> None:
        # The shift puts the largest elements of each rank at different positions.
        torch.mul(self._pattern.roll(_SHIFT * rank), rank + 1, out=tensor)
        tensor.add_((self._key + index) * (rank + 3))

    def run(self, contender: str, start_at: float) -> Sample:
        """Reduce all tensors, one after another."""
        self._contender = contender
        reduce = self._ring if contender == "ring" else partial(self._ours, self._rank.states[contender])
        return timed([partial(reduce, tensor) for tensor in self._tensors], start_at)

    def verify(self) -> None:
        """Compare every whole tensor with the sum over all ranks' inputs."""
        for index, tensor in enumerate(self._tensors):
            self._expect(index)
            if not torch.equal(tensor, self._expected):
                wrong = (tensor != self._expected).nonzero().flatten()
                first = int(wrong[0])
                raise AssertionError(
                    f"rank {self._rank.rank}, iteration {index}: {len(wrong)} of {len(tensor)} elements are "
                    f"wrong, the first is [{first}] = {tensor[first]}, expected {self._expected[first]}"
                )

    def _expect(self, index: int) -> None:
        ranks = range(self._rank.world_size)
        if self._contender in WIRES:
            inputs = [torch.empty_like(self._pattern) for _ in ranks]
            for rank, tensor in zip(ranks, inputs, strict=True):
                self._fill(tensor, rank, index)
            self._expected = reduced(inputs, self._contender)
            return
        self._expected.zero_()
        one = torch.empty_like(self._pattern)
        for rank in ranks:
            self._fill(one, rank, index)
            self._expected += one

    def _ours(self, state: ReductionState, tensor: torch.Tensor) -> None:
        state.all_reduce(tensor).wait()
        self._rank.synchronize()

    def _ring(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)
        self._rank.synchronize()
