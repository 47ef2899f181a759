"""Residuals by parameter: numbered in the order DDP shows them, found again in other buckets and after a restart."""

import gc
import io
import weakref

import pytest
import torch
from reduction.errors import ClosedError, ConfigError

from worker_plugin.tensors.feedback import ErrorFeedback
from worker_plugin.tensors.futures import fail, make_future

INF, NAN = float("inf"), float("nan")
TOO_LATE = "load_state_dict comes too late: call it before the first backward pass"
NO_STATE = r"this is not a state_dict\(\) of a ReductionState"


def parameters(*sizes):
    return [torch.nn.Parameter(torch.zeros(size)) for size in sizes]


#: The module of all parameters, unless a test has more.
MODULE = torch.nn.Module()


def slices_of(feedback, some, index=0, module=MODULE):
    """Show these parameters in a bucket; index 0 begins a step."""
    return feedback.slices(feedback.step_of(module, index), some)


def fill(feedback, some, first=1.0, index=0, module=MODULE):
    """Leave out first, first + 1, ... of these parameters."""
    for number, slice_ in enumerate(slices_of(feedback, some, index, module)):
        slice_.residual.pending[:] = first + number


def residuals(feedback, some, module=MODULE):
    """Return the kept residuals; acts like a step that leaves out the same again."""
    kept = []
    for slice_ in slices_of(feedback, some, module=module):
        slice_.residual.pending[:] = slice_.residual.kept
        kept.append(slice_.residual.kept.tolist())
    return kept


def saved(feedback):
    return [one.tolist() for one in feedback.state_dict()["residuals"]]


def test_pieces_are_contiguous_and_begin_with_zero_residuals():
    slices = slices_of(ErrorFeedback(), parameters(3, 0, (2, 3)))
    assert [(slice_.offset, slice_.numel) for slice_ in slices] == [(0, 3), (3, 0), (3, 6)]
    residual = slices[2].residual
    assert residual.kept.dtype == residual.pending.dtype == torch.float32
    assert residual.kept.tolist() == [0.0] * 6
    assert slices_of(ErrorFeedback(), []) == []


def test_residuals_survive_other_buckets():
    feedback, (a, b, c) = ErrorFeedback(), parameters(2, 2, 1)
    fill(feedback, [b])
    fill(feedback, [c, a], first=2.0)
    slices = slices_of(feedback, [c, a, b])
    assert [slice_.residual.kept[0] for slice_ in slices] == [2.0, 3.0, 1.0]
    assert [slice_.offset for slice_ in slices] == [0, 1, 3]
    assert [len(one) for one in saved(feedback)] == [2, 1, 2], "in the order of first sight"


# ---- the end of parameters ----


def test_parameters_are_not_kept_alive():
    feedback, some = ErrorFeedback(), parameters(4)
    slices_of(feedback, some)
    gone = weakref.ref(some[0])
    some.clear()
    gc.collect()
    assert gone() is None


def test_a_new_parameter_never_gets_the_residual_of_another():
    """This holds in one process, and in another that loads the state and assigns it to the first parameters it sees."""
    feedback, some = ErrorFeedback(), parameters(2, 3)
    fill(feedback, some)
    del some[0]
    gc.collect()
    assert saved(feedback) == [[2.0] * 3]
    assert residuals(feedback, [*some, *parameters(2)]) == [[2.0] * 3, [0.0, 0.0]]
    some.clear()
    gc.collect()
    assert residuals(feedback, parameters(5, 2)) == [[0.0] * 5, [0.0] * 2]


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


def test_before_the_first_collective_there_is_nothing_to_save_or_load():
    assert ErrorFeedback().state_dict() == {"residuals": [], "has_loss_scale": True}
    feedback = ErrorFeedback()
    feedback.load_state_dict(ErrorFeedback().state_dict())
    assert residuals(feedback, parameters(1)) == [[0.0]]


def test_saved_and_loaded_states_do_not_change_later():
    feedback, some = ErrorFeedback(), parameters(2)
    loaded = {"residuals": [torch.ones(2)]}
    feedback.load_state_dict(loaded)
    fill(feedback, some)
    state = feedback.state_dict()
    fill(feedback, some, first=9.0)
    assert state["residuals"][0].tolist() == loaded["residuals"][0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("loaded", "sizes", "expected"),
    [
        ([[torch.ones(2)]], (2, 3), [[1.0, 1.0], [0.0] * 3]),
        # The last one counts.
        ([[torch.ones(2), torch.ones(2)], [torch.full((2,), 3.0)]], (2, 2), [[3.0, 3.0], [0.0, 0.0]]),
        # Another dtype or shape is accepted.
        ([[torch.ones(2, 2, dtype=torch.float64, requires_grad=True)]], ((4,),), [[1.0] * 4]),
    ],
)
def test_loaded_residuals_go_to_the_first_parameters(loaded, sizes, expected):
    feedback = ErrorFeedback()
    for one in loaded:
        feedback.load_state_dict({"residuals": one})
    assert residuals(feedback, parameters(*sizes)) == expected


def test_residuals_of_another_model_are_refused():
    feedback = ErrorFeedback()
    feedback.load_state_dict({"residuals": [torch.ones(2), torch.ones(3)]})
    with pytest.raises(ConfigError, match="parameter 1 has 3 elements, the parameter 4"):
        slices_of(feedback, parameters(2, 4))


def test_loading_after_the_first_collective_is_refused():
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
def test_invalid_states_are_refused(state):
    feedback = ErrorFeedback()
    with pytest.raises(ConfigError, match=NO_STATE):
        feedback.load_state_dict(state)
    assert feedback.state_dict()["residuals"] == []


# ---- steps ----


def watched(feedback, tensor, index):
    """Return the future of a bucket's collective, and what the hook returns."""
    future = make_future(tensor)
    return future, feedback.step_of(MODULE, index).watch(future, tensor)


def test_discarded_steps_leave_no_trace():
    """They only leave the numbers of the parameters that they showed first."""
    feedback, (a, b) = ErrorFeedback(), parameters(1, 2)
    feedback.discard([])
    feedback.discard([torch.nn.Module()])
    fill(feedback, [b, a])
    feedback.discard([])
    assert saved(feedback) == [[0.0, 0.0], [0.0]]
    fill(feedback, [b, a])
    assert saved(feedback) == [[1.0, 1.0], [2.0]]
    for _ in range(3):
        fill(feedback, [a], 7.0, index=0)
        fill(feedback, [b], 8.0, index=1)
        feedback.discard([])
        feedback.discard([])
        assert saved(feedback) == [[1.0, 1.0], [2.0]]
    assert residuals(feedback, [a, b]) == [[2.0], [1.0, 1.0]]


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("special", [INF, -INF, NAN])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_result_that_is_not_finite_discards_the_step(bad, special, dtype):
    feedback, (a, b) = ErrorFeedback(), parameters(1, 1)
    fill(feedback, [a], 7.0, index=0)
    fill(feedback, [b], 8.0, index=1)
    results = [torch.ones(600, dtype=dtype), torch.ones(600, dtype=dtype)]
    results[bad][300] = special
    for index, result in enumerate(results, 2):
        future, returned = watched(feedback, result, index)
        future.set_result(result)
        assert returned.value() is result
    assert saved(feedback) == [[0.0], [0.0]]
    assert residuals(feedback, [a, b]) == [[0.0], [0.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_result_whose_sum_overflows_counts_as_finite(dtype):
    feedback, some = ErrorFeedback(), parameters(1)
    fill(feedback, some, 7.0)
    for result in (torch.full((300,), torch.finfo(dtype).max, dtype=dtype), torch.empty(0, dtype=dtype)):
        future, _ = watched(feedback, result, index=1)
        future.set_result(result)
    assert residuals(feedback, some) == [[7.0]]


def test_the_error_of_the_collective_is_passed_on():
    feedback, some = ErrorFeedback(), parameters(1)
    fill(feedback, some)
    future, returned = watched(feedback, torch.ones(1), index=1)
    fail(future, ClosedError("closed"))
    with pytest.raises(ClosedError, match="closed"):
        returned.value()


def test_a_step_before_the_results_of_the_last_one_is_refused():
    feedback, some = ErrorFeedback(), parameters(1)
    fill(feedback, some)
    future, _ = watched(feedback, torch.ones(1), index=1)
    with pytest.raises(ConfigError, match="must return a future that is done after reduction_hook's"):
        slices_of(feedback, some)
    future.set_result(torch.ones(1))
    assert residuals(feedback, some) == [[1.0]]


def test_modules_have_steps_of_their_own():
    feedback, (a, b), (one, other) = (
        ErrorFeedback(),
        parameters(1, 1),
        (torch.nn.Module(), torch.nn.Module()),
    )
    fill(feedback, [a], 1.0, module=one)
    fill(feedback, [b], 2.0, module=other)
    feedback.discard([other])
    assert saved(feedback) == [[1.0], [0.0]]
    assert residuals(feedback, [a], one) == [[1.0]]
    assert residuals(feedback, [b], other) == [[0.0]]
    with pytest.raises(ConfigError, match=r"2 modules .* state.discard_step\(ddp_model\)"):
        feedback.discard([])
    feedback.discard([torch.nn.Module()])  # has not had a step yet
    assert saved(feedback) == [[1.0], [0.0]]


def test_buckets_of_modules_that_take_turns_find_their_steps():
    feedback, (a, b, c, d) = ErrorFeedback(), parameters(1, 1, 1, 1)
    modules = torch.nn.Module(), torch.nn.Module()
    fill(feedback, [a], 1.0, index=0, module=modules[0])
    fill(feedback, [c], 3.0, index=0, module=modules[1])
    fill(feedback, [b], 2.0, index=1, module=modules[0])
    fill(feedback, [d], 4.0, index=1, module=modules[1])
    feedback.discard(modules[:1])
    assert saved(feedback) == [[0.0], [3.0], [0.0], [4.0]]


def test_a_parameter_that_appears_in_another_module_is_settled():
    feedback, (a, shared) = ErrorFeedback(), parameters(1, 1)
    modules = torch.nn.Module(), torch.nn.Module()
    fill(feedback, [a, shared], 1.0, module=modules[0])
    fill(feedback, [shared], 7.0, module=modules[1])
    feedback.discard(modules[1:])
    assert saved(feedback) == [[1.0], [2.0]]
    feedback.discard([])  # the first one's step is over
    assert residuals(feedback, [a, shared], modules[0]) == [[1.0], [2.0]]


def test_a_step_with_rebuilt_buckets_is_discarded():
    feedback, (a, b, c) = ErrorFeedback(), parameters(1, 1, 1)
    fill(feedback, [a, b, c], 1.0)
    fill(feedback, [c], 7.0, index=0)
    fill(feedback, [b, a], 8.0, index=1)
    feedback.discard([])
    assert residuals(feedback, [a, b, c]) == [[1.0], [2.0], [3.0]]


def test_a_step_has_the_loss_scale_with_which_it_began():
    feedback, (a, b) = ErrorFeedback(), parameters(1, 1)
    feedback.set_loss_scale(4.0)
    scales = [slices_of(feedback, [a], 0)[0].residual.loss_scale]
    feedback.set_loss_scale(8.0)
    scales += [slices_of(feedback, [b], 1)[0].residual.loss_scale]
    scales += [slice_.residual.loss_scale for slice_ in slices_of(feedback, [a, b], 0)]
    feedback.discard([])
    feedback.set_loss_scale(2.0)
    scales += [slice_.residual.loss_scale for slice_ in slices_of(feedback, [a, b], 0)]
    assert scales == [4.0, 4.0, 8.0, 8.0, 2.0, 2.0]


def test_a_loss_scale_must_be_set_before_the_first_step():
    """Residuals would be multiplied by the scale, although they may already include it."""
    unscaled, some = ErrorFeedback(), parameters(1)
    fill(unscaled, some)
    for state in (unscaled.state_dict(), {"residuals": [torch.ones(1)]}):
        again = ErrorFeedback()
        again.load_state_dict(state)
        for late in (unscaled, again):
            with pytest.raises(ConfigError, match="set_loss_scale comes too late"):
                late.set_loss_scale(2.0)
        assert residuals(again, parameters(1)) == [[1.0]]
    scaled, other = ErrorFeedback(), parameters(1)
    scaled.set_loss_scale(2.0)
    fill(scaled, other)
    scaled.set_loss_scale(4.0)
    for state, expected in ((scaled.state_dict(), 1.0), (ErrorFeedback().state_dict(), 0.0)):
        again = ErrorFeedback()
        again.load_state_dict(state)
        again.set_loss_scale(8.0)
        assert residuals(again, parameters(1)) == [[expected]]
