"""`DistributedOptimizer`: all-reduces gradients while the backward pass computes the others.

Ranks may get their gradients in different orders, and lack some altogether, but all ranks must issue the same sums in
the same order. So gradients are assigned to buckets, ordered from the last parameter to the first. A bucket is issued
once it is complete and all earlier ones have been issued. `synchronize` issues the rest; a gradient that this rank
does not have counts as zero. Buckets go straight to the reducers, through the optimizer's own state. Only one short
message per step goes through the negotiation, for ranks that have joined.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from reduction.errors import ReductionError

from worker_plugin.integrations.horovod.handles import (
    Average,
    Compression,
    Compressor,
    Operation,
    Sum,
    Tensor,
)
from worker_plugin.integrations.horovod.negotiation import HorovodInternalError
from worker_plugin.integrations.horovod.world import ProcessSet, global_process_set
from worker_plugin.state import ReductionState
from worker_plugin.tensors.futures import Future, failed

#: Bytes of a bucket, unless HOROVOD_FUSION_THRESHOLD sets another size. Horovod fuses whatever happens to be ready, so
#: its own default of 128 MiB is an upper bound. Here a bucket waits until it is full.
FUSION_BYTES = 32 << 20


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: Operation = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return an optimizer of the same class, whose `step` first combines the gradients of all ranks.

    Args:
        optimizer: the optimizer that performs the steps.
        named_parameters: of all its parameters, with names that all ranks share; None: by their order.
        compression: of the gradients; `Compression.none` or `Compression.fp16`.
        backward_passes_per_step: number of backward passes that add up before gradients are combined.
        op: Average or Sum.
        gradient_predivide_factor: gradients are divided by it before they are added, and the mean is multiplied by it.
        num_groups: ignored, like `groups`; present because Horovod has it.
        groups: ignored, because gradients are always grouped into buckets of HOROVOD_FUSION_THRESHOLD bytes.
        sparse_as_dense: whether sparse gradients may become dense.
        process_set: the ranks that combine their gradients; the others step alone.

    Raises:
        ValueError: names are missing or duplicated, or a number is out of range.
    """
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if op not in (Average, Sum):
        raise ValueError(f"op is {op}; gradients can be combined by Average or Sum")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    made: Any = type(type(optimizer).__name__, (_Distributed, type(optimizer)), {})
    instance = made.__new__(made)
    vars(instance).update(
        vars(optimizer),
        process_set=process_set,
        backward_passes_per_step=backward_passes_per_step,
        _names=_named(optimizer, named_parameters),
        _compression=compression,
        _op=op,
        _predivide=gradient_predivide_factor,
        _sparse_as_dense=sparse_as_dense,
    )
    if process_set.included() and process_set.size() > 1:
        instance._begin()
    return instance


def _named(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    """Return the names of an optimizer's parameters, in the order of its groups."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if named_parameters is None:
        return {parameter: f"noname.{number}" for number, parameter in enumerate(parameters)}
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(twice)}"
        )
    known = {parameter: name for name, parameter in pairs}
    missing = [parameter for parameter in parameters if parameter not in known]
    if missing:
        raise ValueError(
            f"named_parameters was specified, but {len(missing)} of the {len(parameters)} parameters were not named"
        )
    return {parameter: known[parameter] for parameter in parameters}


class _Distributed(torch.optim.Optimizer):
    """First base class of the optimizers that DistributedOptimizer creates; the second is the user's class."""

    process_set: ProcessSet
    backward_passes_per_step: int
    _names: dict[Tensor, str]
    _compression: Compressor
    _op: Operation
    _predivide: float
    _sparse_as_dense: bool
    _synchronized = False
    _should_synchronize = True
    #: None where there is nothing to combine.
    _reduction_state: ReductionState | None = None
    #: Whether a gradient of this step has been computed.
    _has_begun = False

    def _begin(self) -> None:
        """Combine gradients from now on. All ranks create their optimizers in the same order."""
        self._number = self.process_set.add_optimizer(self)
        self._reduction_state = self.process_set.new_state(f"optimizer-{self._number}")
        self._steps = 0
        for parameter in (one for one in self._names if one.requires_grad):
            parameter.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
        self._reset()

    def _reset(self) -> None:
        """Begin a step: assign the parameters being trained to buckets."""
        limit = int(os.environ.get("HOROVOD_FUSION_THRESHOLD") or FUSION_BYTES)
        self._buckets: list[list[Tensor]] = []
        last, nbytes = None, 0
        for parameter in reversed(self._names):
            if not parameter.requires_grad:
                continue
            kind = parameter.dtype, parameter.device
            if kind != last or nbytes + parameter.nbytes > limit:
                self._buckets.append([])
                nbytes = 0
            self._buckets[-1].append(parameter)
            last, nbytes = kind, nbytes + parameter.nbytes
        #: Number of further gradients for each parameter before its bucket can be issued.
        self._left = dict.fromkeys(itertools.chain(*self._buckets), self.backward_passes_per_step)
        #: Futures of the issued buckets, which are always the first ones.
        self._futures: list[Future] = []
        self._has_begun = False

    def _on_gradient(self, parameter: Tensor) -> None:
        """Issue complete buckets, during a backward pass."""
        if not self._has_begun:
            self._reset()  # other parameters may be trained in this step than in the last one
            self._has_begun = True
        if parameter not in self._left:
            return
        if self._left[parameter] == 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
                "backward_passes_per_step to accumulate gradients locally."
            )
        self._left[parameter] -= 1
        for bucket in self._buckets[len(self._futures) :]:
            # The bucket's last parameter is usually the last to get its gradient.
            if any(self._left[one] for one in reversed(bucket)):
                break
            self._issue(bucket)

    def _issue(self, bucket: list[Tensor]) -> None:
        parts = []
        for parameter in bucket:
            gradient = parameter.grad
            if gradient is None:
                parameter.grad = gradient = torch.zeros_like(parameter)
            elif gradient.is_sparse:
                if not self._sparse_as_dense:
                    raise HorovodInternalError(
                        f"the gradient of {self._names[parameter]} is sparse: use sparse_as_dense=True"
                    )
                gradient = gradient.to_dense()
            parts.append(gradient.detach().reshape(-1))
        try:
            future = self._all_reduce(torch.cat(parts))
        except ReductionError as error:
            future = failed(error)  # `synchronize` raises it
        self._futures.append(future)

    def _all_reduce(self, flat: Tensor) -> Future:
        assert self._reduction_state is not None
        if self._predivide != 1.0:
            flat /= self._predivide
        return self._reduction_state.all_reduce(self._compression.compress(flat)[0], self._op.value)

    def stand_in(self) -> None:
        """Take part in the others' step with zeros, after this rank has joined."""
        self._reset()
        for bucket in self._buckets:
            self._all_reduce(torch.cat([torch.zeros_like(one).reshape(-1) for one in bucket]))
        self._steps += 1

    def synchronize(self) -> None:
        """Wait until all gradients are combined.

        Raises:
            HorovodInternalError: a rank or the reducers are gone, or the ranks' models differ.
        """
        if self._reduction_state is None:
            self._synchronized = True
            return
        name = f"{self._number}@{self._steps}"
        self.process_set.negotiation.issue("optimizer", name, number=self._number)
        self._steps += 1
        if not self._has_begun:
            self._reset()
        try:
            for bucket in self._buckets[len(self._futures) :]:
                self._issue(bucket)
            for bucket, future in zip(self._buckets, self._futures, strict=True):
                self._take(bucket, future.wait())
        except ReductionError as error:
            raise HorovodInternalError(str(error)) from error
        self._reset()
        self._synchronized = True

    def _take(self, bucket: list[Tensor], combined: Tensor) -> None:
        flat = self._compression.decompress(combined, bucket[0].dtype)
        if self._predivide != 1.0:
            flat = flat * self._predivide
        parts = torch.split(flat, [parameter.numel() for parameter in bucket])
        for parameter, part in zip(bucket, parts, strict=True):
            gradient = parameter.grad
            assert gradient is not None
            if gradient.is_sparse:
                parameter.grad = part.view_as(parameter).to_sparse(gradient.sparse_dim())
            else:
                gradient.detach().copy_(part.view_as(gradient))

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Keep `step` from calling `synchronize`, because the user has done so."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward passes after which gradients are combined. Call this between steps."""
        self.backward_passes_per_step = passes
        self._reset()

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        """Combine the gradients, unless `synchronize` has already done so, and step."""
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). This can cause training slowdown. You may want to consider using "
                    "optimizer.skip_synchronize() context if you use optimizer.synchronize() in your code.",
                    stacklevel=2,
                )
            self.synchronize()
        self._synchronized = False
        return super().step(closure)

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        """Clear the gradients.

        Raises:
            AssertionError: some are in flight.
        """
        if self._has_begun:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        super().zero_grad(*arguments, **named)

    def load_state_dict(self, *arguments: Any, **named: Any) -> None:
        """Continue from a checkpoint. Call this between steps."""
        super().load_state_dict(*arguments, **named)
        self._reset()
