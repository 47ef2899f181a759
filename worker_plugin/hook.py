"""The DDP communication hook, and `attach`, which registers it."""
# No `from __future__ import annotations`: DDP compares the hook's annotations with real types.

from typing import Unpack, cast

import torch
from reduction.errors import ConfigError
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from worker_plugin.config import AllSettings
from worker_plugin.state import ReductionState
from worker_plugin.tensors.futures import failed, raise_in_waiter


def reduction_hook(
    state: ReductionState, bucket: GradBucket, *more: torch.Tensor
) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket over all ranks through the reducers; for `ddp_model.register_comm_hook`.

    Runs on the backward thread with DDP's mutex held: it queues the bucket and returns immediately. It never raises
    for a bucket, which would leave the DDP object unusable. Errors arrive through the future, as RuntimeError with
    the error's name and text, and typed as `state.error`. Any failure in it on one rank fails the state on all
    ranks, so that no rank continues alone.

    Callers of a communication hook, and their arguments (torch 2.13):

    - DDP's C++ reducer, with a GradBucket: averaged. So are the buckets of a DDP object created by `replicate()`,
      the zeros of ranks that have no more inputs (`DDP.join`), and buckets from hooks that wrap this one
      (`fp16_compress_wrapper`, optimizers that overlap). The average is over all ranks, regardless of
      `divide_by_initial_world_size`.
    - DDP's Python reducer (`torch._dynamo.config.optimize_ddp = "python_reducer"`, which is for compiled
      autograd), with a gradient and its parameter; and FSDP1, with one flat gradient or two. Neither uses the
      hook's return value, and both would continue with gradients that were never averaged: immediate ConfigError.
    """
    if not isinstance(state, ReductionState):
        raise ConfigError(
            f"the state of reduction_hook is a {type(state).__name__}: pass a ReductionState, as in "
            f"ddp_model.register_comm_hook(ReductionState(...), reduction_hook), or call attach(ddp_model, ...)"
        )
    if more or not isinstance(bucket, GradBucket):
        refused = ConfigError(_what_to_do_instead(bucket))
        state.fail(refused)
        raise refused
    try:
        future = state.reduce_bucket(bucket)
    except Exception as error:  # of any kind: otherwise DDP would be left in the middle of its backward pass
        future = failed(state.fail(error))
    return raise_in_waiter(future)


def attach(
    ddp_model: DistributedDataParallel, state: ReductionState | None = None, **settings: Unpack[AllSettings]
) -> ReductionState:
    """Have a DDP module average its gradients through the reducers; return the state that does so.

    Args:
        ddp_model: gets `reduction_hook`, so it must have no other hook. If it already has it, as with REDUCTION_AUTO,
            its state is returned.
        state: a state that may also be used by other modules; None creates one for the module's own process group.
        **settings: of the state that is created, as for `ReductionState`.

    Raises:
        ConfigError: the state is for other ranks than the module's, or an argument is wrong.
        RuntimeError: from torch; the module already has a hook.
    """
    if not isinstance(ddp_model, DistributedDataParallel):
        raise ConfigError(
            f"a {type(ddp_model).__name__} averages no gradients: pass the DistributedDataParallel module, "
            f"before torch.compile wraps it"
        )
    if getattr(ddp_model, "_use_python_reducer", False):
        raise ConfigError(_what_to_do_instead(()))
    if (attached := attached_state(ddp_model)) is not None:
        if settings or state not in (None, attached):
            raise ConfigError(
                "this module averages through the reducers already: attach it once, with all settings. If "
                "REDUCTION_AUTO has attached it, set REDUCTION_* variables instead, or use `reducer run --no-auto`"
            )
        return attached
    if "process_group" in settings:
        raise ConfigError("attach() uses the module's own process group: leave out process_group")
    if state is None:
        state = ReductionState(process_group=ddp_model.process_group, **settings)
    elif settings:
        raise ConfigError(f"the state has its settings already: leave out {', '.join(sorted(settings))}")
    state.check_module(ddp_model)
    ddp_model.register_comm_hook(state, reduction_hook)
    return state


def attached_state(ddp_model: DistributedDataParallel) -> ReductionState | None:
    """Return the state that averages a module's gradients, or None if none does."""
    found = (state for hook, state in ddp_model._comm_hooks if hook is reduction_hook)
    return cast("ReductionState | None", next(found, None))


def _what_to_do_instead(bucket: object) -> str:
    if isinstance(bucket, tuple):
        return (
            "DDP's Python reducer ignores the return value of a communication hook, so gradients would "
            "stay as they are: before the DDP module is made, set torch._dynamo.config.optimize_ddp to "
            "'ddp_optimizer', which is its default"
        )
    return (
        f"the hook averages the buckets of DistributedDataParallel, and was called with a "
        f"{type(bucket).__name__}: FSDP ignores the return value of a communication hook, so gradients "
        f"would stay as they are"
    )
