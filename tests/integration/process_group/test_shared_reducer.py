"""Jobs for which a process starts its own reducers share them, and the last job ends them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from worker_plugin import ReductionState
from worker_plugin.discovery import rendezvous
from worker_plugin.process_group import ReductionOptions

GROUPS = 15


def own_reducers() -> list[int]:
    """Return the reducer processes that this process has started."""
    found = []
    for children in Path("/proc/self/task").glob("*/children"):  # each thread has its own
        with contextlib.suppress(OSError):  # the thread has ended
            for child in children.read_text().split():
                with contextlib.suppress(OSError):
                    if b"reducer/__main__.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                        found.append(int(child))
    return found


def check(rank: Any, groups: list[dist.ProcessGroup], step: int) -> None:
    """Sum in all groups at the same time."""
    tensors = [rank.values(rank.number, (1000,), step=step + number) for number in range(len(groups))]
    works = [
        dist.all_reduce(tensor, group=group, async_op=True)
        for tensor, group in zip(tensors, groups, strict=True)
    ]
    for number, (tensor, work) in enumerate(zip(tensors, works, strict=True)):
        work.wait()
        assert torch.equal(tensor, rank.expected((1000,), step=step + number))


def groups_come_and_go(rank: Any, options: dict[str, Any]) -> list[int]:
    """Return this process's number of reducers with all groups, with half of them, with one more, and with none."""

    def new() -> dist.ProcessGroup:
        return dist.new_group(backend="reduction", pg_options=ReductionOptions(**options))

    groups = [new() for _ in range(GROUPS)]
    check(rank, groups, 0)
    pids, counts = own_reducers(), [len(own_reducers())]
    for group in groups[: GROUPS // 2]:  # includes the group for which the reducer was started
        dist.destroy_process_group(group)
    groups = groups[GROUPS // 2 :]
    check(rank, groups, 1)
    counts.append(len(own_reducers()))
    groups.append(new())
    check(rank, groups, 2)
    assert own_reducers() == pids
    counts.append(len(own_reducers()))
    for group in groups:
        dist.destroy_process_group(group)
    return [*counts, len(own_reducers())]


def test_groups_share_the_private_reducer(ranks: Any) -> None:
    assert ranks.run(2, groups_come_and_go, {}) == [[1, 1, 1, 0], [0, 0, 0, 0]]


def on_hosts_of_their_own(rank: Any) -> list[int]:
    before = rendezvous.loopback_id
    rendezvous.loopback_id = lambda: f"host {rank.number}"
    rank.cleanup.callback(setattr, rendezvous, "loopback_id", before)
    return groups_come_and_go(rank, {"colocated_host": "127.0.0.1"})


def test_groups_share_the_reducers_of_the_ranks_hosts(ranks: Any) -> None:
    assert ranks.run(2, on_hosts_of_their_own) == [[1, 1, 1, 0]] * 2


def of_one_name(rank: Any, job: str) -> list[int]:
    """Two jobs with the same name and ranks need different reducers, since one reducer would treat them as one job."""
    with ReductionState(job=job) as one, ReductionState(job=job) as other:
        for step, state in enumerate((one, other, one, other)):
            rank.round(state, step=step)
        both = len(own_reducers())
        one.close()
        rank.round(other, step=4)
        return [both, len(own_reducers())]


def test_two_jobs_of_one_name_have_a_reducer_each(ranks: Any, job: str) -> None:
    assert ranks.run(2, of_one_name, job) == [[2, 1], [0, 0]]


def of_nodes(rank: Any) -> list[int]:
    with ReductionState(local_group=2) as one:
        tensors = [torch.full((5,), float(rank.number)) for _ in range(2)]
        rank.wait(one.all_reduce(tensors[0]))
        with ReductionState(local_group=2) as other:
            rank.wait(other.all_reduce(tensors[1]))
            counts = [len(own_reducers())]
        counts.append(len(own_reducers()))
    assert [tensor.tolist() for tensor in tensors] == [[6.0] * 5] * 2
    return [*counts, len(own_reducers())]


def test_hierarchical_mode_releases_its_shared_reducers(ranks: Any) -> None:
    assert ranks.run(4, of_nodes) == [[1, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
