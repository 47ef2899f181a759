"""A reducer is killed while gradients are compressed. A rank's residual must be neither lost nor sent twice."""

from __future__ import annotations

import signal

import pytest
import torch
from faults.reducers.strike import Strike
from integration.ddp.test_ddp import Perceptron, sgd
from integration.ddp.test_wire_dtypes_ddp import loss_of, new_model
from torch.nn.parallel import DistributedDataParallel

#: The step and bucket in which the reducer is killed, and the bucket's progress at that moment.
MOMENTS = [(2, 1, "before"), (3, 0, "under way"), (4, 1, "answered")]
STEPS = 7


def train(rank, reducers, job, wire, pid=0, step=-1, index=0, phase=""):
    """Train while rank 0 kills the reducer from its hook; return weights and residuals."""
    strike = Strike(pid, phase)
    now = -1

    def hook(state, bucket):
        is_moment = rank.number == 0 and (now, bucket.index()) == (step, index)
        return strike.hook(state, bucket, is_moment=is_moment)

    with rank.state(reducers, job, wire_dtype=wire, chunk_bytes=1024) as state:
        model = new_model(Perceptron)
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)
        ddp.register_comm_hook(state, hook)
        optimizer = sgd(model)
        for now in range(STEPS):
            optimizer.zero_grad()
            loss_of(ddp, rank.number, now).backward()
            optimizer.step()
        assert state.error is None
        assert strike.killed.is_set() == (rank.number == 0 and phase != "")
        residuals = state.state_dict()["residuals"]
    assert any(one.any() for one in residuals), "nothing was left out: this shows nothing"
    return [torch.cat([one.flatten() for one in some]).tolist() for some in (model.parameters(), residuals)]


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("wire", ["int8", "topk"])
def test_a_killed_reducer_changes_neither_weights_nor_residuals(ranks, reducers, serve, job, wire):
    undisturbed = ranks.run(3, train, reducers(2), f"{job}-undisturbed", wire)
    assert undisturbed[0][0] == undisturbed[1][0] == undisturbed[2][0]
    assert undisturbed[0][1] != undisturbed[1][1]
    for step, index, phase in MOMENTS:
        goes = serve()
        goes.is_over = True
        arguments = [reducers(1)[0], goes.address], f"{job}-{phase}", wire, goes.pid, step, index, phase
        assert ranks.run(3, train, *arguments) == undisturbed, phase
        assert goes.process.wait(5) == -signal.SIGKILL
