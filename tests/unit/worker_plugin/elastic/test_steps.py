"""Workers between two steps: all must leave a checkpoint with the same ranks, whichever worker dies in it."""

import numpy as np
import pytest
import torch
from reduction.errors import ConfigError, WorkersMissing

from worker_plugin.elastic import trees
from worker_plugin.elastic.membership.lineage import Generation, Worker
from worker_plugin.elastic.newcomers.training import Training
from worker_plugin.elastic.steps import Steps

WORKERS = tuple(Worker(rank, f"a{rank}") for rank in range(3))


class Job:
    """The sums of checkpoints as all workers receive them: live workers contribute, and results are final.

    Args:
        dies_before: the first collective to which worker 0 no longer contributes; the survivors form their next
        generation when they have its result.
    """

    def __init__(self, dies_before: int) -> None:
        self.dies_before = dies_before
        #: Contributions of the first worker at that time, by the collective's number.
        self.told: dict[int, torch.Tensor] = {}

    def generation(self, seq: int) -> Generation:
        return Generation(1, "x", WORKERS) if seq <= self.dies_before else Generation(2, "y", WORKERS[1:])


class Communicator:
    """One worker's communicator. Lower ranks have run before, so their contributions are known."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.own, self.seq = job, WORKERS[rank], 0
        self.received = self.error = None
        self.newcomers = []
        self.refuse = None

    @property
    def generation(self) -> Generation:
        return self.job.generation(self.seq)

    def take_part(self, training):
        pass

    def begin_add(self, tensor):
        raise AssertionError("the job has begun")

    def donate(self, offer, training):
        raise AssertionError("nobody comes")

    def checkpoint(self, tensor):
        if self.generation.workers[0] == self.own:
            if self.own.rank or self.seq < self.job.dies_before:
                self.job.told[self.seq] = tensor.clone()
            elif self.seq == self.job.dies_before:
                raise InterruptedError("killed")
        tensor.copy_(self.job.told.get(self.seq, torch.zeros_like(tensor)))
        self.seq += 1


def steps_of(job: Job, rank: int, changes: list, min_workers: int = 1) -> Steps:
    steps = Steps(Communicator(job, rank), min_workers, 0.0, [lambda *ranks: changes.append(ranks)])
    steps._has_state = True
    steps.ranks = (0, 1, 2)
    steps._layout, _ = trees.pack(training(0.0).buffers())
    return steps


def training(value: float) -> Training:
    model = torch.nn.BatchNorm1d(2)
    model.running_mean.fill_(value)
    return Training(model, None, {})


@pytest.mark.parametrize("dies_before", [0, 1, 2, 3, 9])
def test_all_agree_on_the_ranks_whenever_the_first_worker_dies(dies_before):
    """The third checkpoint has two collectives, because it announces the ranks if they have changed."""
    job, seen = Job(dies_before), []
    for rank in range(3):
        changes, ranks, means = [], [], []
        steps = steps_of(job, rank, changes)
        mine = training(float(rank))
        try:
            for _ in range(4):
                steps.sync(mine)
                ranks.append(steps.ranks)
                means.append(mine.model.running_mean.tolist())
                mine.model.running_mean += 1 + rank  # each has seen other samples
        except InterruptedError:
            assert rank == 0
            continue
        if rank:
            seen.append((ranks, means, changes))
    assert seen[0] == seen[1]
    ranks, _, changes = seen[0]
    if dies_before < 4:
        assert changes == [((0, 1, 2), (1, 2))]
        assert ranks == [(0, 1, 2)] * dies_before + [(1, 2)] * (4 - dies_before)
    else:
        assert changes == []


def test_a_successor_announces_ranks_that_were_only_promised():
    """Worker 0 promises to announce the ranks, and dies before it does. Its successor announces them."""
    job = Job(1)
    first = steps_of(job, 0, [])
    first.ranks = ()
    with pytest.raises(InterruptedError):
        first.sync(training(0.0))
    assert int(job.told[0][1]) == 3
    for rank in (1, 2):
        changes = []
        steps = steps_of(job, rank, changes)
        steps.sync(training(1.0))
        assert steps.ranks == (1, 2)
        assert changes == [((0, 1, 2), (1, 2))]


def test_too_few_workers_are_an_error_on_all():
    job = Job(0)
    for rank in (1, 2):
        with pytest.raises(WorkersMissing, match="2 workers are left, min_workers is 3"):
            steps_of(job, rank, [], min_workers=3).sync(training(0.0))


class Caches(torch.nn.Module):
    """Buffers outside state_dict, each with its own shape and value."""

    def __init__(self, **buffers: tuple[int, float]) -> None:
        super().__init__()
        for name, (size, value) in buffers.items():
            self.grow(name, size, value)

    def grow(self, name: str, size: int, value: float) -> None:
        self.register_buffer(name, torch.full((size,), value), persistent=False)

    def values(self) -> dict[str, list[float]]:
        return {name: buffer.tolist() for name, buffer in self.named_buffers()}


@pytest.mark.parametrize("dies_before", [1, 3, 5, 99])
def test_buffers_are_those_of_the_first_worker_with_their_shapes(dies_before):
    """This holds even if two buffers have the same sizes in bytes, but the other way round."""
    job, seen = Job(dies_before), []
    models = [Caches(a=(2, 0.0), b=(4, 0.5)), Caches(a=(4, 1.0), b=(2, 1.5)), Caches(a=(1, 2.0), c=(3, 2.5))]
    for rank, model in enumerate(models):
        steps, values = steps_of(job, rank, []), []
        steps._layout, _ = trees.pack({})
        mine = Training(model, None, {})
        try:
            for step in range(4):
                steps.sync(mine)
                values.append(model.values())
                model.grow("a", 3 + step + rank, 10.0 + rank)
        except InterruptedError:
            continue
        values = [{name: each[name] for name in each if name != "c"} for each in values]
        seen.append(values)
    assert len(seen) == (3 if dies_before == 99 else 2)
    assert all(values == seen[0] for values in seen)
    if dies_before > 1:
        assert seen[0][0] == {"a": [0.0] * 2, "b": [0.5] * 4}
    assert models[2].c.tolist() == [2.5] * 3  # the others have none


@pytest.mark.parametrize("value", [np.float32(0.25), torch.Size((1,)), [object()]])
@pytest.mark.parametrize("rank", [0, 1])
def test_an_extra_that_cannot_be_sent_is_an_error_before_anybody_waits_for_it(rank, value):
    job = Job(99)
    steps = steps_of(job, rank, [])
    good = training(0.0)
    with pytest.raises(ConfigError, match=r"extra\.best"):
        steps.sync(Training(good.model, None, {"best": value}))
    assert steps._communicator.seq == 0
    assert job.told == {}
