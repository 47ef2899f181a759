"""Settings of one group, and whether a group has a state."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from reduction.errors import ConfigError

from worker_plugin.process_group import ReductionOptions, state_of
from worker_plugin.process_group.register import make_group


def test_values_given_by_torch_cannot_be_set() -> None:
    assert ReductionOptions(wire_dtype="bf16").settings == {"wire_dtype": "bf16"}
    with pytest.raises(ConfigError, match="rank, timeout_s of a process group cannot be set"):
        ReductionOptions(rank=1, timeout_s=3)


def test_other_options_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"pass worker_plugin.process_group.ReductionOptions"):
        make_group(None, "options")


def test_a_group_of_another_backend_has_no_state() -> None:
    group = dist.ProcessGroup(dist.HashStore(), 0, 1)
    with pytest.raises(ConfigError, match="is not a process group of the backend 'reduction'"):
        state_of(group)
