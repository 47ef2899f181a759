"""Each sample of an epoch goes to one worker, whichever workers join and leave."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as some
from reduction.errors import ConfigError

from worker_plugin.elastic.sampler import ElasticSampler

crowds = some.lists(some.sets(some.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=40)


@given(size=some.integers(5, 60), batch_size=some.integers(1, 7), steps=crowds)
def test_each_sample_is_used_once_and_each_worker_gets_some(size, batch_size, steps):
    samplers = {rank: ElasticSampler(size, batch_size, seed=3) for rank in range(10)}
    used = Counter()
    for ranks in steps:
        states = {json.dumps(one.state_dict(), sort_keys=True) for one in samplers.values()}
        assert len(states) == 1
        taken = {}
        for rank in range(10):
            mine = samplers[rank].take(sorted(ranks), rank if rank in ranks else min(ranks))
            taken[rank if rank in ranks else min(ranks)] = mine
        assert set(taken) == ranks
        for batch in taken.values():
            assert 1 <= len(batch) <= batch_size
            used.update(batch)
    epochs = samplers[0].epoch
    assert max(used.values()) <= epochs + 1
    # Those of the epochs that are over, less what the next one has first.
    assert min(used[index] for index in range(size)) >= epochs - 1


def test_an_epoch_is_the_whole_data_set():
    first, second = ElasticSampler(12, 3, seed=1), ElasticSampler(12, 3, seed=1)
    epoch = [*first.take((0, 1), 0), *second.take((0, 1), 1), *first.take((0, 1), 0), *second.take((0, 1), 1)]
    assert sorted(epoch) == list(range(12))
    ordered = ElasticSampler(4, 2, shuffle=False)
    assert [ordered.take((0,), 0) for _ in range(3)] == [[0, 1], [2, 3], [0, 1]]
    assert ordered.epoch == 1


def test_leftover_samples_come_first_in_the_next_epoch():
    sampler = ElasticSampler(5, 2, shuffle=False)
    assert sampler.take((0, 1), 0) == [0, 1]
    assert sampler.take((0, 1), 0) == [4, 0]  # only one was left for two workers
    assert sampler.epoch == 1


def test_a_new_worker_continues_where_the_others_are():
    old, new = ElasticSampler(20, 3, seed=5), ElasticSampler(20, 3, seed=5)
    for _ in range(9):
        old.take((0, 2), 0)
    new.load_state_dict(json.loads(json.dumps(old.state_dict())) | {"dealt": old.state_dict()["dealt"]})
    assert new.state_dict() == old.state_dict()
    assert set(new.take((0, 1, 2), 1)).isdisjoint(old.take((0, 1, 2), 0))


def test_samples_of_a_worker_that_is_lost_are_counted():
    sampler = ElasticSampler(100, 4)
    sampler.take((0, 1, 2), 0)
    sampler.take((0, 2), 0)
    assert sampler.lost == 4
    sampler.take((0, 2, 3), 0)
    assert sampler.lost == 4


def test_invalid_sizes_are_refused():
    with pytest.raises(ConfigError, match="size is 0"):
        ElasticSampler(0, 1)
    with pytest.raises(ConfigError, match="too few for 3 workers"):
        ElasticSampler(2, 1).take((0, 1, 2), 0)
