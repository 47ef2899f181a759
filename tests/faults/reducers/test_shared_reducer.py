"""The reducer shared by a process's groups is killed. It is restarted, and no group loses a sum."""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist

from worker_plugin.process_group import state_of


def groups_outlive_it(rank):
    groups = [dist.new_group(backend="reduction") for _ in range(4)]
    pids, addresses = set(), set()
    for step in range(30):
        if step == 5 and rank.number == 0:
            (pid,) = pids
            os.kill(pid, signal.SIGKILL)
        tensors = [rank.values(rank.number, (70_001,), step=step + number) for number in range(4)]
        works = [
            dist.all_reduce(tensor, group=group, async_op=True)
            for tensor, group in zip(tensors, groups, strict=True)
        ]
        for number, (tensor, work) in enumerate(zip(tensors, works, strict=True)):
            work.wait()
            assert torch.equal(tensor, rank.expected((70_001,), step=step + number))
        if rank.number == 0:
            for group in groups:
                own = state_of(group)._communicator._meeting_points[0].embedded
                pids.add(own._process.pid)
                addresses.add(own.address)
    for group in groups:
        dist.destroy_process_group(group)
    return len(pids), len(addresses)


def test_all_groups_continue_after_their_reducer_is_killed(ranks):
    assert ranks.run(2, groups_outlive_it) == [(2, 1), (0, 0)]
