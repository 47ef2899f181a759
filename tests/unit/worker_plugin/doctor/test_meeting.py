"""Ranks that share their findings: missing ranks are named, and an error reaches every rank."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from worker_plugin.doctor.meeting import Meeting, MeetingFailed


def meetings(count):
    store = dist.HashStore()
    return [Meeting(store, rank, count, f"host-{rank}") for rank in range(count)]


def at_once(calls):
    """Return the results of calls that wait for each other, or their errors."""

    def run(call):
        try:
            return call()
        except MeetingFailed as error:
            return str(error)

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_all_ranks_get_what_each_rank_contributes():
    ranks = meetings(3)
    got = at_once([lambda rank=rank: rank.exchange({"rank": rank.rank}, 5.0, "it") for rank in ranks])
    assert got == [[{"rank": 0}, {"rank": 1}, {"rank": 2}]] * 3


def test_a_missing_rank_is_named():
    ranks = meetings(3)
    at_once([lambda rank=rank: rank.meet(f"host-{rank.rank}", 5.0) for rank in ranks])
    got = at_once([lambda rank=rank: rank.exchange(1, 0.2, "the next reducer") for rank in ranks[:2]])
    text = "rank 2 (host-2) has not reached the next reducer within 0.2 s: stopped, dead, or never started"
    assert got == [text] * 2


def test_ranks_that_never_arrived_have_no_host():
    [first, *_] = meetings(3)
    with pytest.raises(MeetingFailed, match=r"rank 1, rank 2 have not reached the start within 0\.1 s"):
        first.meet("host-0", 0.1)


def test_an_error_of_one_rank_ends_the_meeting_of_all():
    ranks = meetings(2)
    ranks[1].fail("out of memory")
    assert at_once([lambda: ranks[0].exchange(1, 5.0, "it")]) == ["rank 1 (host-1): out of memory"]


def test_leaving_does_not_wait_forever():
    ranks = meetings(2)
    ranks[0].leave(0.1)


def test_only_rank_0_stays_until_all_others_have_left():
    ranks = meetings(3)
    left = []

    def leave(rank):
        rank.leave(5.0)
        left.append(rank.rank)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(leave, ranks[0])
        leave(ranks[1])
        assert left == [1]
        leave(ranks[2])
        waiting.result(5.0)
    assert sorted(left) == [0, 1, 2]


def test_a_store_that_is_gone_raises_no_further_error():
    class Gone:
        def set(self, key, value):
            raise RuntimeError("broken pipe")

    alone = Meeting(Gone(), 1, 2, "host")
    alone.fail("a cause")
    alone.leave(0.1)
