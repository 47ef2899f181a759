"""Calls that `ReductionState` rejects before it has connected to anyone."""

import pytest
import torch
from reduction.errors import ConfigError

from worker_plugin import ReductionState


@pytest.mark.parametrize("scale", [0, -1.0, float("inf"), float("nan"), 2.0**65, 2.0**-65, "1", None])
def test_invalid_loss_scales_are_refused(scale):
    with pytest.raises(
        ConfigError, match=r"the loss scale is .*, but must be 5\.42101e-20 to 1\.84467e\+19: pass"
    ):
        ReductionState(wire_dtype="int8").set_loss_scale(scale)


@pytest.mark.parametrize("scale", [1, 65536.0, 2.0**64, 2.0**-64])
def test_valid_loss_scales(scale):
    ReductionState().set_loss_scale(scale)


def test_before_the_first_backward_pass_there_is_nothing_to_discard():
    ReductionState(wire_dtype="int8").discard_step()


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 3), torch.nn.ReLU()])
def test_steps_of_another_model_cannot_be_discarded(model):
    with pytest.raises(
        ConfigError, match=f"averages no gradients of the {type(model).__name__}: pass a module"
    ):
        ReductionState(wire_dtype="int8").discard_step(model)


@pytest.mark.parametrize(
    "ask",
    [
        lambda state: state.all_reduce(torch.ones(3)),
        lambda state: state.connect(),
        lambda state: state.should_stop(),
        lambda state: state.trace("folder").__enter__(),
    ],
)
def test_an_elastic_job_must_begin_with_sync(ask):
    """A newcomer would wait for collectives that no one else issues, and nothing would distinguish models."""
    state = ReductionState(
        ["127.0.0.1:1"], elastic=True, job="test", run="first", rank=0, world_size=2, join_timeout_s=1
    )
    with pytest.raises(ConfigError, match=r"call state.sync\(model, optimizer\) before its first collective"):
        ask(state)
    assert state.error is None
    assert "not connected" in repr(state)
