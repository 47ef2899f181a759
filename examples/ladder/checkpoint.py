"""Checkpoints that any rung of the ladder can resume from: all tensors are whole and on the CPU."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, step: int) -> None:
    """Let rank 0 replace the checkpoint. All ranks must call it, since each may have a shard of the model."""
    weights, moments = get_state_dict(model, optimizer, options=WHOLE)
    if not dist.is_initialized() or dist.get_rank() == 0:
        # A process that dies here leaves the old checkpoint intact.
        saved = {"model": weights, "optimizer": moments, "epoch": epoch, "step": step}
        torch.save(saved, f"{path}.new")
        os.replace(f"{path}.new", path)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    """Return the numbers of finished epochs and steps. All ranks read the file."""
    saved = torch.load(path, weights_only=True)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=saved["model"],
        optim_state_dict=saved["optimizer"],
        options=WHOLE,
    )
    return saved["epoch"], saved["step"]
