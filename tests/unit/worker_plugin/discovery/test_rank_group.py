"""The ranks of a state: settings, process groups, and the distinction between the groups of a job."""

import pytest
import torch.distributed as dist
from reduction import limits
from reduction.errors import ConfigError

from worker_plugin.discovery.rank_group import RankGroup, find_group, ranks_text


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([5], "5"),
        ([0, 1], "0,1"),
        ([0, 1, 2, 3], "0-3"),
        ([1, 5, 9, 13], "1-13:4"),
        ([0, 2, 3, 4, 9], "0,2-4,9"),
        ([3, 1, 2], "3,1,2"),
        ([0, 1, 2, 3, 10, 20, 30, 31], "0-3,10-30:10,31"),
    ],
)
def test_ranks_are_abbreviated(ranks, text):
    assert ranks_text(ranks) == text


def test_long_lists_are_cut_and_still_differ():
    lists = [[*range(0, 400, 2), 1001 + last] for last in range(2)]
    odd = [[number * number for number in range(2000 + more)] for more in range(2)]
    texts = [ranks_text(ranks) for ranks in lists + odd]
    assert texts[:2] == ["0-398:2,1001", "0-398:2,1002"]
    assert len(set(texts)) == 4
    assert all(len(text.encode()) <= limits.GROUP_BYTES_MAX and text.isprintable() for text in texts)


@pytest.mark.parametrize(("rank", "size"), [(None, None), (0, None), (None, 2)])
def test_without_a_process_group_both_numbers_are_needed(rank, size):
    with pytest.raises(ConfigError, match="pass both, or call init_process_group first"):
        find_group(rank, size, None)


def test_without_a_process_group_the_given_numbers_are_used():
    assert find_group(1, 3, None) == RankGroup(1, 3)
    assert str(RankGroup(1, 3)) == "rank 1 of 3"
    assert RankGroup(1, 3).global_rank == 1


@pytest.mark.parametrize("rank", [-1, 3])
def test_a_rank_outside_the_world_is_refused(rank):
    with pytest.raises(ConfigError, match=f"rank is {rank}; it must be 0 to 2"):
        find_group(rank, 3, None)


@pytest.fixture
def world():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("world")
def test_the_default_group_has_no_label():
    group = find_group(None, None, None)
    assert (group.rank, group.size, group.global_ranks, group.label) == (0, 1, (0,), "")
    assert group.store is not None
    assert find_group(0, 1, None) == group
    assert str(group) == "ranks 0"


@pytest.mark.usefixtures("world")
def test_numbers_other_than_the_default_groups_are_taken_as_given():
    assert find_group(1, 2, None) == RankGroup(1, 2)
    with pytest.raises(ConfigError, match="rank is 4; it must be 0 to 0"):
        find_group(4, None, None)


@pytest.mark.usefixtures("world")
def test_numbers_that_contradict_the_process_group_are_refused():
    with pytest.raises(ConfigError, match="rank 0 of 1 in process_group, but rank=0 and world_size=2"):
        find_group(None, 2, dist.group.WORLD)


def test_a_group_that_was_destroyed_is_refused(world):
    group = dist.new_group([0])
    dist.destroy_process_group(group)
    with pytest.raises(ConfigError, match="it was destroyed"):
        find_group(None, None, group)
