"""Residuals by parameter: numbered as DDP shows them, found again in other buckets and after a restart."""

import gc
import io
import weakref

import numpy as np
import pytest
import torch
from reduction.errors import ConfigError

from worker_plugin.tensors.feedback import ErrorFeedback

TOO_LATE = "load_state_dict comes too late: call it before the first backward pass"
NO_STATE = r"this is no state_dict\(\) of a ReductionState"


def parameters(*sizes):
    return [torch.nn.Parameter(torch.zeros(size)) for size in sizes]


def fill(feedback, some, first=1.0):
    """Write first, first + 1, ... into the residuals of these parameters."""
    for number, slice_ in enumerate(feedback.slices(some)):
        slice_.residual[:] = first + number


def residuals(feedback, some):
    return [slice_.residual.tolist() for slice_ in feedback.slices(some)]


def test_pieces_lie_one_after_the_other():
    slices = ErrorFeedback().slices(parameters(3, 0, 2))
    assert [(slice_.offset, slice_.numel) for slice_ in slices] == [(0, 3), (3, 0), (3, 2)]


def test_the_first_residual_is_zero():
    (slice_,) = ErrorFeedback().slices(parameters((2, 3)))
    assert slice_.residual.dtype == np.float32
    assert slice_.residual.tolist() == [0.0] * 6


def test_a_bucket_without_parameters():
    assert ErrorFeedback().slices([]) == []


def test_parameters_keep_their_residuals():
    feedback, some = ErrorFeedback(), parameters(1, 2)
    fill(feedback, some)
    assert residuals(feedback, some) == [[1.0], [2.0, 2.0]]


def test_residuals_survive_other_buckets():
    feedback, (a, b, c) = ErrorFeedback(), parameters(2, 2, 2)
    fill(feedback, [a])
    fill(feedback, [b, c], first=2.0)
    slices = feedback.slices([c, a, b])
    assert [slice_.residual[0] for slice_ in slices] == [3.0, 1.0, 2.0]
    assert [slice_.offset for slice_ in slices] == [0, 2, 4]


def test_state_is_in_the_order_of_first_sight():
    feedback, (a, b, c) = ErrorFeedback(), parameters(1, 2, 3)
    feedback.slices([b])
    feedback.slices([c, b])
    feedback.slices([a, b, c])
    assert [residual.numel() for residual in feedback.state_dict()["residuals"]] == [2, 3, 1]


def test_equal_parameters_are_not_the_same():
    feedback, (a, b) = ErrorFeedback(), parameters(1, 1)
    fill(feedback, [a, b])
    assert residuals(feedback, [b, a]) == [[2.0], [1.0]]


# ---- the end of parameters ----


def test_parameters_are_not_kept_alive():
    feedback, some = ErrorFeedback(), parameters(4)
    feedback.slices(some)
    gone = weakref.ref(some[0])
    some.clear()
    gc.collect()
    assert gone() is None


def test_a_new_parameter_never_gets_the_residual_of_another():
    feedback, some = ErrorFeedback(), parameters(2, 2)
    fill(feedback, some)
    del some[0]
    gc.collect()
    assert residuals(feedback, [*some, *parameters(2)]) == [[2.0, 2.0], [0.0, 0.0]]


def test_another_model_begins_with_nothing_left_out():
    feedback = ErrorFeedback()
    fill(feedback, parameters(2, 3))
    gc.collect()
    assert residuals(feedback, parameters(5, 2)) == [[0.0] * 5, [0.0] * 2]


def test_a_state_says_nothing_of_parameters_that_are_gone():
    """Another process has never seen them: it would give their residuals to the first ones that it sees."""
    feedback, some = ErrorFeedback(), parameters(2, 3)
    fill(feedback, some)
    del some[0]
    gc.collect()
    assert [one.tolist() for one in feedback.state_dict()["residuals"]] == [[2.0] * 3]


# ---- checkpoints ----


def test_residuals_find_their_parameters_after_a_restart():
    feedback, (a, b, c) = ErrorFeedback(), parameters(1, 2, 3)
    fill(feedback, [b, a, c])
    file = io.BytesIO()
    torch.save(feedback.state_dict(), file)
    file.seek(0)
    again, (d, e, f) = ErrorFeedback(), parameters(1, 2, 3)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert residuals(again, [e, d, f]) == [[1.0, 1.0], [2.0], [3.0, 3.0, 3.0]]
    assert [one.tolist() for one in again.state_dict()["residuals"]] == [[1.0, 1.0], [2.0], [3.0, 3.0, 3.0]]


def test_before_the_first_collective_there_is_nothing_to_save_and_to_load():
    assert ErrorFeedback().state_dict() == {"residuals": []}
    feedback = ErrorFeedback()
    feedback.load_state_dict(ErrorFeedback().state_dict())
    assert residuals(feedback, parameters(1)) == [[0.0]]


def test_a_state_stays_as_it_was_saved():
    feedback, some = ErrorFeedback(), parameters(2)
    fill(feedback, some)
    state = feedback.state_dict()
    fill(feedback, some, first=9.0)
    assert state["residuals"][0].tolist() == [1.0, 1.0]


def test_a_state_stays_as_it_was_loaded():
    state = {"residuals": [torch.ones(2)]}
    feedback, some = ErrorFeedback(), parameters(2)
    feedback.load_state_dict(state)
    fill(feedback, some, first=9.0)
    assert state["residuals"][0].tolist() == [1.0, 1.0]


def test_parameters_beyond_those_loaded_begin_with_nothing():
    feedback = ErrorFeedback()
    feedback.load_state_dict({"residuals": [torch.ones(2)]})
    assert residuals(feedback, parameters(2, 3)) == [[1.0, 1.0], [0.0] * 3]


def test_the_last_state_loaded_counts():
    feedback = ErrorFeedback()
    feedback.load_state_dict({"residuals": [torch.ones(2), torch.ones(2)]})
    feedback.load_state_dict({"residuals": [torch.full((2,), 3.0)]})
    assert residuals(feedback, parameters(2, 2)) == [[3.0, 3.0], [0.0, 0.0]]


def test_residuals_of_another_dtype_or_shape_are_taken():
    feedback = ErrorFeedback()
    feedback.load_state_dict({"residuals": [torch.ones(2, 2, dtype=torch.float64, requires_grad=True)]})
    assert residuals(feedback, parameters((4,))) == [[1.0] * 4]


def test_residuals_of_another_model():
    feedback = ErrorFeedback()
    feedback.load_state_dict({"residuals": [torch.ones(2), torch.ones(3)]})
    with pytest.raises(
        ConfigError, match="the residual of parameter 1 has 3 elements, the parameter 4: load"
    ):
        feedback.slices(parameters(2, 4))


def test_loading_comes_too_late_after_the_first_collective():
    feedback, some = ErrorFeedback(), parameters(2)
    fill(feedback, some)
    state = feedback.state_dict()
    with pytest.raises(ConfigError, match=TOO_LATE):
        feedback.load_state_dict(state)
    some.clear()
    gc.collect()
    with pytest.raises(ConfigError, match=TOO_LATE):
        feedback.load_state_dict(state)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"residuals": None},
        {"residuals": torch.ones(2)},
        {"residuals": [[1.0]]},
        {"residuals": [torch.ones(1), None]},
    ],
)
def test_what_is_no_state(state):
    feedback = ErrorFeedback()
    with pytest.raises(ConfigError, match=NO_STATE):
        feedback.load_state_dict(state)
    assert feedback.state_dict() == {"residuals": []}
