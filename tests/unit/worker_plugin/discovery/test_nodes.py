"""The ranks of a node: the plan that rank 0 makes, and its distribution to all ranks."""

import json
import threading
from dataclasses import asdict, replace

import pytest
import torch.distributed as dist
from reduction.errors import ConfigError, WorkersMissing

from worker_plugin.config import PluginConfig
from worker_plugin.discovery.nodes import Locality, NodePlan, namespace_id, own_locality, plan_nodes
from worker_plugin.discovery.rendezvous import StoreRendezvous


def localities(*nodes, setting="auto"):
    """Return the localities of ranks on nodes of these sizes, in order; 0 stands for one rank without a launcher."""
    ranks = []
    for number, size in enumerate(nodes):
        for local_rank in range(size or 1):
            launched = (local_rank, size) if size else (None, None)
            pid = 100 + len(ranks)
            ranks.append(Locality(setting, *launched, f"namespace{number}", f"h{number}", pid, "00"))
    return ranks


def test_even_nodes_of_a_launcher_are_used():
    assert plan_nodes(localities(2, 2)) == NodePlan(2)
    assert plan_nodes(localities(4, 4, 4)) == NodePlan(4)


def moved(ranks, rank, **changes):
    return [replace(locality, **changes) if i == rank else locality for i, locality in enumerate(ranks)]


@pytest.mark.parametrize(
    ("ranks", "reason", "is_unexpected"),
    [
        (localities(0, 0, 0), "no launcher sets LOCAL_RANK and LOCAL_WORLD_SIZE", False),
        (localities(2, 0, 0), "rank 2 has no LOCAL_RANK and LOCAL_WORLD_SIZE", True),
        (localities(1, 1), "rank 0 is alone on its node", False),
        (localities(1, 2), "rank 0 is alone on its node", True),
        (localities(4), "all ranks are on one node", False),
        (localities(2, 3), "rank 0's node has 2 ranks, but that of rank 2 has 3", True),
        (moved(localities(2, 2), 2, local_rank=1), "rank 2 has LOCAL_RANK 1 of 2 instead of 0", True),
        (localities(2, 2, 2)[:5], "5 ranks are not a multiple of 2", True),
        (
            moved(localities(2, 2), 3, namespace_id="far", host="f"),
            "ranks 2 (h1) and 3 (f) are on different hosts",
            True,
        ),
    ],
)
def test_auto_is_flat_where_nodes_are_unsuitable(ranks, reason, is_unexpected):
    plan = plan_nodes(ranks)
    assert (plan.size, plan.is_unexpected) == (1, is_unexpected)
    assert plan.reason.startswith(reason)


def test_an_explicit_number_overrides_the_launcher():
    assert plan_nodes(localities(4, setting=2)) == NodePlan(2)
    assert plan_nodes(localities(0, setting=1)) == NodePlan(1)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        (localities(3, setting=2), "local_group is 2, but the world size 3 is not a multiple of it"),
        (localities(1, 1, setting=2), "local_group is 2, but ranks 0 (h0) and 1 (h1) are on different hosts"),
        (moved(localities(2, 2), 3, local_group=2), "local_group is 'auto' on rank 0 and 2 on rank 3"),
    ],
)
def test_impossible_groups_are_an_error(ranks, text):
    with pytest.raises(ConfigError) as caught:
        plan_nodes(ranks)
    assert str(caught.value).startswith(text)


def test_the_locality_of_this_process():
    locality = own_locality("auto", "aa", {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"})
    assert (locality.local_rank, locality.local_size, locality.namespace_id, locality.address) == (
        1,
        4,
        namespace_id(),
        "aa",
    )
    assert own_locality(2, "aa", {"LOCAL_RANK": "1"}).local_size is None
    assert own_locality(2, "aa", {"LOCAL_RANK": "-1", "LOCAL_WORLD_SIZE": "x"}).local_rank is None


def agree(ranks, timeout_s=20.0, store=None, absent=()):
    """Let all ranks agree, each on a thread; return the outcome of each. None has no local_group."""
    store = store or dist.HashStore()  # test_rendezvous explains why it is not a TCPStore
    config = PluginConfig(timeout_s=timeout_s, reducers=("127.0.0.1:1",))
    answers = [None] * len(ranks)

    def run(rank):
        # Each process has its own store object.
        rendezvous = StoreRendezvous(config, dist.PrefixStore("", store), len(ranks))
        try:
            if ranks[rank] is None:
                answers[rank] = rendezvous.agree(config, rank, len(ranks))
            else:
                answers[rank] = rendezvous.agree_on_nodes(config, rank, len(ranks), ranks[rank])
        except Exception as error:
            answers[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(ranks)) if rank not in absent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_all_ranks_get_the_same_plan_and_know_their_node():
    ranks = localities(2, 2, 2)
    answers = agree(ranks)
    for rank, nodes in enumerate(answers):
        node = nodes.node
        assert nodes.plan == NodePlan(2)
        assert nodes.meeting_point.job == answers[0].meeting_point.job
        assert nodes.meeting_point.addresses == ("127.0.0.1:1",)
        assert (node.index, node.local_rank, node.count, node.size) == (rank // 2, rank % 2, 3, 2)
        assert list(node.members) == ranks[rank // 2 * 2 : rank // 2 * 2 + 2]
        assert node.name(1) == f"rank {rank // 2 * 2 + 1} (h{rank // 2})"


def plans(answers):
    return [(nodes.plan, nodes.node) for nodes in answers]


def test_all_ranks_learn_that_there_are_no_nodes():
    assert plans(agree(localities(3))) == [(NodePlan(1, "all ranks are on one node"), None)] * 3


def test_all_ranks_get_the_error():
    answers = agree(localities(3, setting=2))
    assert [type(answer) for answer in answers] == [ConfigError] * 3
    assert len({str(answer) for answer in answers}) == 1


@pytest.mark.parametrize(
    ("which", "text"),
    [
        (0, "local_group is None on rank 0 and 2 on rank 1"),
        (3, "local_group is 2 on rank 0 and None on rank 3"),
    ],
)
def test_a_rank_without_a_local_group_is_named(which, text):
    ranks = localities(2, 2, setting=2)
    answers = agree([None if rank == which else locality for rank, locality in enumerate(ranks)])
    assert [type(answer) for answer in answers] == [ConfigError] * 4
    assert {str(answer) for answer in answers} == {f"{text}: it must be the same on all ranks"}


def test_a_missing_rank_is_named():
    ranks = localities(2, setting=2)
    first, _ = agree(ranks, 0.5, absent=[1])
    assert type(first) is WorkersMissing
    assert "rank 1 did not join within 0.5 s" in str(first)


def test_a_life_ignores_the_messages_of_the_previous_one():
    store = dist.HashStore()
    agree(localities(2, 2), store=store)
    ranks = localities(1, 1, 1, 1, setting=1)
    assert plans(agree(ranks, store=store)) == [(NodePlan(1), None)] * 4


def test_a_locality_survives_json():
    locality = localities(2)[1]
    assert Locality(**json.loads(json.dumps(asdict(locality)))) == locality
