"""Horovod's API over the reducers. `python -m tests.horovod_suite` runs Horovod's own tests."""

from __future__ import annotations

import pytest
import torch
from reduction.timeline.record import from_json
from support.processes.torchrun import Torchrun
from torch import nn

import worker_plugin.integrations.horovod as hvd

# ---- in the ranks ----


def begin(rank, reducers, **variables):
    """Initialise Horovod on the rank's process group until the end of the call."""
    for name, value in {"REDUCTION_REDUCERS": ",".join(reducers), **variables}.items():
        rank.cleanup.enter_context(pytest.MonkeyPatch.context()).setenv(name, value)
    hvd.init()
    rank.cleanup.callback(hvd.shutdown)
    assert (hvd.rank(), hvd.size()) == (rank.number, rank.world_size)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Linear(4, 2))


def loss_of(model, rank):
    generator = torch.Generator().manual_seed(rank)
    return model(torch.randn(8, 6, generator=generator)).pow(2).mean()


def trains(rank, reducers, directory, fusion, passes, predivide):
    """Train three steps, whose gradients have the bits of the fold in rank order."""
    begin(rank, reducers, REDUCTION_TRACE=directory, HOROVOD_FUSION_THRESHOLD=fusion)
    model = network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1),
        model.named_parameters(),
        backward_passes_per_step=passes,
        gradient_predivide_factor=predivide,
    )
    for _ in range(3):
        expected = rank.mean_gradients(model, loss_of)
        optimizer.zero_grad()
        for _ in range(passes):
            (loss_of(model, rank.number) / passes).backward()
        optimizer.synchronize()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        assert all(map(torch.equal, gradients, expected))
        with optimizer.skip_synchronize():
            optimizer.step()


def some_gradients_are_missing(rank, reducers):
    """Use one half of the model on rank 0 and the other on the others; the order of ready gradients also differs."""
    begin(rank, reducers, HOROVOD_FUSION_THRESHOLD="1")
    halves = nn.ModuleList([network(), network()])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(halves.parameters(), 0.1), halves.named_parameters())
    loss_of(halves[min(rank.number, 1)], rank.number).backward()
    optimizer.step()
    mine = [parameter.grad for parameter in halves.parameters()]
    everybodys = hvd.allgather_object(mine)
    for theirs in everybodys:
        assert all(map(torch.equal, mine, theirs))
    assert all(gradient.abs().sum() > 0 for gradient in mine)


def any_order(rank, reducers):
    """Issue collectives in a different order on each rank."""
    begin(rank, reducers)
    names = [f"tensor {number}" for number in range(6)]
    turned = names[rank.number :] + names[: rank.number]
    handles = {
        name: hvd.allreduce_async(torch.full((3,), float(names.index(name))), name=name) for name in turned
    }
    for number, name in enumerate(names):
        assert hvd.synchronize(handles[name]).tolist() == [float(number)] * 3
        assert hvd.poll(handles[name])


def disagrees(rank, reducers):
    """Return the error of a collective about which the ranks disagree, and check that the next one is unaffected."""
    begin(rank, reducers)
    error = rank.error_of(lambda: hvd.allreduce(torch.ones(3 + rank.number), name="grads"))
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [float(rank.world_size)] * 2
    return f"{type(error).__name__}: {error}"


def uneven(rank, reducers):
    """Train two more steps on each rank than on the previous one; return the last rank to join, and the weights."""
    begin(rank, reducers)
    model = network()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
    for _ in range(1 + 2 * rank.number):
        optimizer.zero_grad()
        loss_of(model, rank.number).backward()
        optimizer.step()
    last = hvd.join()
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    return last, [parameter.detach() for parameter in model.parameters()]


def one_has_joined(rank, reducers):
    """Return the error of a collective in which a rank that has joined cannot take part."""
    begin(rank, reducers)
    error = rank.error_of(lambda: hvd.allgather_object(1)) if rank.number else None
    hvd.join()
    return str(error)


def any_memory(rank, reducers):
    """In-place collectives write to tensors of any strides and notify autograd; others work in inference mode."""
    begin(rank, reducers)
    for collective, factor in ((hvd.allreduce_, 2), (lambda tensor, **_: hvd.broadcast_(tensor, 0), 1)):
        for tensor in (torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(2, 3).t()):
            expected, weight = tensor * factor, torch.ones((), requires_grad=True)
            loss = (weight * tensor).sum()
            assert collective(tensor, op=hvd.Sum) is tensor
            assert torch.equal(tensor, expected)
            assert "modified by an inplace operation" in str(rank.error_of(loss.backward))
    with torch.inference_mode():
        scaled = hvd.allreduce(torch.ones(2), op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0)
        assert scaled.tolist() == [12.0, 12.0]
        assert hvd.broadcast(torch.ones(2), 0).tolist() == [1.0, 1.0]


def other_models(rank, reducers):
    """Give rank 1 another model; return the errors of two steps, the second after resetting the failed one."""
    begin(rank, reducers)
    model = nn.Linear(3, 2 + rank.number)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
    errors = []
    for _ in range(2):
        optimizer.load_state_dict(optimizer.state_dict())  # ends the step that failed
        model(torch.ones(1, 3)).sum().backward()
        errors.append(type(rank.error_of(optimizer.step)).__name__)
    return errors


def optimizer_state(rank, reducers):
    begin(rank, reducers)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.1 * (rank.number + 1))
    if rank.number == 0:
        loss_of(model, 0).backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    state = optimizer.state_dict()
    return state["param_groups"][0]["lr"], [entry["exp_avg"] for entry in state["state"].values()]


# ---- tests ----


@pytest.mark.parametrize(
    ("fusion", "passes", "predivide", "buckets"),
    [("1", 1, 1.0, 6), ("110", 1, 1.0, 3), ("", 1, 1.0, 1), ("", 2, 1.0, 1), ("", 1, 2.0, 1)],
)
def test_gradients_are_the_fold_in_rank_order_through_the_reducers(
    ranks, reducers, tmp_path, fusion, passes, predivide, buckets
):
    ranks.run(3, trains, reducers(2), str(tmp_path), fusion, passes, predivide)
    records = [from_json(path.read_text(), path.name) for path in tmp_path.glob("*-rank*.json")]
    assert [len(record.spans) for record in records] == [3 * buckets] * 3
    assert all(span.lanes for record in records for span in record.spans)


@pytest.mark.parametrize("call", [some_gradients_are_missing, any_order])
def test_ranks_need_not_do_the_same_in_the_same_order(ranks, reducers, call):
    ranks.run(3, call, reducers(1))


def test_disagreement_is_reported_and_nothing_else_is_lost(ranks, reducers):
    assert (
        ranks.run(2, disagrees, reducers(1))
        == [
            "HorovodInternalError: allreduce.grads: ranks disagree about it: rank 0 has kind allreduce, dtype float32, "
            "shape [3], op average, device cpu, scales [1.0, 1.0], rank 1 has kind allreduce, dtype float32, "
            "shape [4], "
            "op average, device cpu, scales [1.0, 1.0]"
        ]
        * 2
    )


def test_ranks_may_run_out_of_data_at_different_times(ranks, reducers):
    answers = ranks.run(3, uneven, reducers(1))
    assert [last for last, _ in answers] == [2, 2, 2]
    for _, weights in answers[:-1]:
        assert all(map(torch.equal, weights, answers[-1][1]))


def test_joined_ranks_are_named_where_they_cannot_take_part(ranks, reducers):
    text = "ranks [0] have joined, and can only take part in allreduce and barrier"
    assert ranks.run(2, one_has_joined, reducers(1)) == ["None", text]


def test_any_memory_will_do(ranks, reducers):
    ranks.run(2, any_memory, reducers(1))


def test_different_models_are_an_error_on_all_ranks(ranks, reducers):
    assert ranks.run(2, other_models, reducers(1)) == [["HorovodInternalError"] * 2] * 2


def test_an_optimizers_state_and_settings_are_those_of_the_root(ranks, reducers):
    first, second = ranks.run(2, optimizer_state, reducers(1))
    assert first[0] == second[0] == 0.1
    assert first[1]
    assert all(map(torch.equal, first[1], second[1]))


def test_names_must_be_complete_and_unique():
    hvd_names = [("a", nn.Parameter(torch.ones(1))), ("a", nn.Parameter(torch.ones(1)))]
    optimizer = torch.optim.SGD([parameter for _, parameter in hvd_names], 0.1)
    with pytest.raises(ValueError, match="Found duplicates: a"):
        hvd.DistributedOptimizer(optimizer, hvd_names)
    with pytest.raises(ValueError, match="1 of the 2 parameters were not named"):
        hvd.DistributedOptimizer(optimizer, hvd_names[:1])
    with pytest.raises(ValueError, match="backward_passes_per_step must be > 0"):
        hvd.DistributedOptimizer(optimizer, backward_passes_per_step=0)


def test_nothing_works_before_init():
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.rank()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.allreduce(torch.ones(1))


PENDING_AT_THE_END = """
import time, torch
import worker_plugin.integrations.horovod as hvd
hvd.init()
assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [2.0] * 3
if hvd.rank() == 0:
    hvd.allreduce_async(torch.ones(3))
    time.sleep(0.3)  # so its thread is in a round
else:
    time.sleep(1.5)
"""


def test_a_process_ends_cleanly_with_a_pending_collective_that_others_never_issue(tmp_path, reducers):
    script = tmp_path / "script.py"
    script.write_text(PENDING_AT_THE_END)
    launcher = Torchrun(tmp_path, 2, str(script), REDUCTION_REDUCERS=reducers(1)[0])
    assert launcher.wait() == 0, launcher.log.read_text()
