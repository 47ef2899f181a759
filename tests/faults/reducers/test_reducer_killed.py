"""A reducer is killed at a chosen moment of a training step. Only time may be lost."""

from __future__ import annotations

import signal

import pytest
import torch
from faults.reducers.strike import Strike
from support.network.faulty_relay import Fault
from support.planes import OVER_A_NETWORK
from support.training.checked import Trainer

#: The training's step and bucket in which the reducer is killed, and the bucket's progress at that moment.
MOMENTS = [(3, 1, "before"), (4, 0, "under way"), (5, 1, "answered")]
STEPS = 8


def train_with_a_kill(rank, reducers, job, pid, step, index, phase):
    """Train while rank 0's hook kills the reducer; the trainer checks every gradient of every step to the last bit."""
    strike = Strike(pid, phase)

    def hook(state, bucket):
        is_moment = rank.number == 0 and (trainer.steps, bucket.index()) == (step, index)
        return strike.hook(state, bucket, is_moment=is_moment)

    with rank.state(reducers, job, chunk_bytes=4096) as state:
        trainer = Trainer(rank, state, hook)
        for _ in range(STEPS):
            trainer.step()
        assert state.error is None
    assert strike.killed.is_set() == (rank.number == 0)
    return [parameter.detach().sum().item() for parameter in trainer.model.parameters()]


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize(("step", "index", "phase"), MOMENTS)
def test_a_reducer_killed_at_a_chosen_moment(ranks, reducers, serve, job, step, index, phase):
    goes = serve()
    goes.is_over = True
    arguments = [reducers(1)[0], goes.address], job, goes.pid, step, index, phase
    answers = ranks.run(3, train_with_a_kill, *arguments)
    assert answers[0] == answers[1] == answers[2]
    assert goes.process.wait(5) == -signal.SIGKILL


# ---- the trap ----


def hold_one_result(rank, addresses, job):
    """Sum while one reducer's answers to rank 1 are held back; rank 0 has the whole result and continues."""
    # Enough credit for everything, because rank 1 must be able to push all of it without a result.
    with rank.state(addresses[rank.number], job, chunk_bytes=4096, credit_bytes=256 << 10) as state:
        for step in range(4):
            rank.round(state, 10_000, step)
        rank.tell("settled")
        rank.hear()
        tensors = [rank.values(rank.number, (10_000,), step=step) for step in range(4, 7)]
        futures = [state.all_reduce(tensor) for tensor in tensors]
        if rank.number == 0:
            for future in futures:
                rank.wait(future)
            rank.tell("answered")
        rank.tell([future.done() for future in futures] if rank.hear() == "done?" else None)
        for step, future in zip(range(4, 7), futures, strict=True):
            assert torch.equal(rank.wait(future), rank.expected((10_000,), step=step)), f"step {step}"
        for step in range(7, 10):
            rank.round(state, 10_000, step)
        assert state.error is None


def let_only_rank_0_be_answered(call, way):
    """Bring `hold_one_result` to where rank 0 has all its results and rank 1, behind the detour, has none."""
    assert [call.hear(0), call.hear(1)] == ["settled", "settled"]
    way.set(down=Fault(holds=True))
    for rank in range(2):
        call.tell(rank, "go")
    assert call.hear(0) == "answered"
    for rank in range(2):
        call.tell(rank, "done?")
    assert call.hear(0) == [True, True, True]
    assert call.hear(1) == [False, False, False]


@pytest.mark.usefixtures("plane")
@OVER_A_NETWORK
def test_a_reducer_that_dies_after_answering_rank_0_and_before_answering_rank_1(
    ranks, reducers, faulty_reducer, detour, job
):
    """Rank 0 must still have its contribution, although it received the result long ago."""
    stays, goes = reducers(1)[0], faulty_reducer()
    way = detour(goes)
    call = ranks.begin(2, hold_one_result, ([stays, goes[0].address], [stays, way.address]), job, group=False)
    let_only_rank_0_be_answered(call, way)
    goes[0].kill()
    way.cut()  # what it held is lost
    call.answers()


@pytest.mark.usefixtures("plane")
@OVER_A_NETWORK
def test_the_only_reducer_dies_after_answering_rank_0_and_comes_back(
    ranks, faulty_reducer, serve, detour, job
):
    """Only rank 0 still has rank 1's results, so the sums must be repeated from the contributions."""
    goes = faulty_reducer()
    way = detour(goes)
    call = ranks.begin(2, hold_one_result, ([goes[0].address], [way.address]), job, group=False)
    let_only_rank_0_be_answered(call, way)
    goes[0].kill()
    way.reset()
    serve("--data-port", str(goes[1]), bind=goes[0].address)
    call.answers()
