"""Whose residual is whose."""

from __future__ import annotations

import pytest
import torch
from reduction.errors import ConfigError

from worker_plugin.feedback import ErrorFeedback


def parameters(*sizes: int) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(size)) for size in sizes]


def saved(feedback: ErrorFeedback) -> list[list[float]]:
    return [one.tolist() for one in feedback.state_dict()["residuals"]]


def test_a_parameter_keeps_its_residual_in_whatever_bucket():
    feedback = ErrorFeedback()
    first, second, third = parameters(2, 3, 1)
    for value, piece in enumerate(feedback.pieces([first, second]) + feedback.pieces([third])):
        piece.residual[:] = value
    again = feedback.pieces([third, first, second])
    assert [(piece.offset, piece.numel) for piece in again] == [(0, 1), (1, 2), (3, 3)]
    assert [piece.residual.tolist() for piece in again] == [[2], [0, 0], [1, 1, 1]]
    assert saved(feedback) == [[0, 0], [1, 1, 1], [2]]


def test_residuals_of_models_that_are_gone_are_nobody_elses():
    """As in cross-validation with one state: the next model may have other sizes, and starts with zeros."""
    feedback = ErrorFeedback()
    gone = parameters(2, 3)
    stays = parameters(4)
    for piece in feedback.pieces(gone) + feedback.pieces(stays):
        piece.residual[:] = 7
    del gone
    [old, new, more] = feedback.pieces([*stays, *parameters(5, 2)])
    assert old.residual.tolist() == [7] * 4
    assert new.residual.tolist() == [0] * 5
    assert more.residual.tolist() == [0] * 2
    assert new.residual is not old.residual


def test_loaded_residuals_go_to_parameters_in_their_order():
    feedback = ErrorFeedback()
    source = {"residuals": [torch.ones(2), torch.full((3,), 2.0)]}
    feedback.load_state_dict(source)
    assert saved(feedback) == [[1, 1], [2, 2, 2]]
    first, second, third = parameters(2, 3, 4)
    [piece] = feedback.pieces([first])
    piece.residual[:] = 5
    assert saved(feedback) == [[5, 5], [2, 2, 2]]
    assert [one.residual.tolist() for one in feedback.pieces([third, second][::-1])] == [[2] * 3, [0] * 4]
    assert source["residuals"][0].tolist() == [1, 1], "a copy was taken"
    with pytest.raises(ConfigError, match="too late"):
        feedback.load_state_dict(source)


def test_residuals_of_another_model():
    feedback = ErrorFeedback()
    feedback.load_state_dict({"residuals": [torch.ones(2), torch.ones(3)]})
    first, second = parameters(2, 4)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"parameter 1 has 3 elements, the parameter 4"):
            feedback.pieces([first, second])
    for wrong in ({}, {"residuals": 5}, {"residuals": [1.0]}):
        with pytest.raises(ConfigError, match="no state_dict"):
            ErrorFeedback().load_state_dict(wrong)
