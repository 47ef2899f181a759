"""Who may open a stream, and what the other ranks learn of it."""

from dataclasses import replace

import numpy as np
from conformance.places import CHUNK, L, P
from reduction.errors import (
    CollectiveMismatch,
    JobBusy,
    OutOfOrder,
    RankTaken,
    ReducerDraining,
    ResourceExhausted,
    StaleInstance,
    UnsupportedVersion,
)
from reduction.model import (
    PROTOCOL_VERSION,
    Abort,
    Ack,
    Configure,
    Hello,
    NamedReducers,
    Peer,
    Peers,
    Start,
    Welcome,
)


async def refusal(worker, error_class):
    """Wait for the Abort that ends the worker's stream; return its message."""
    abort = await worker.next(Abort)
    assert abort.code == error_class.code
    assert await worker.sink.closed is not None
    return abort.message


async def test_join_welcome_peers(place):
    zero, one = place.worker(0), place.worker(1)
    welcome = await zero.welcome()
    assert (welcome.incarnation, welcome.credit_bytes) == (place.incarnation, 64 * CHUNK)
    assert (await zero.expect(Peers)).draining is False
    await one.welcome()
    assert await zero.expect(Peers) == Peers((Peer(1, one.nonce, "host1", P),), False)
    assert await one.expect(Peers) == Peers((Peer(0, zero.nonce, "host0", P),), False)


async def test_the_configuration_is_relayed_and_all_hellos_trigger_a_start(place):
    zero, one = place.worker(0), place.worker(1)
    await zero.welcome()
    await one.welcome()
    zero.hello(held=0)
    relayed = await one.next(Configure)
    assert relayed.configuration == zero.configuration()
    one.hello(held=0)
    assert await zero.next(Start) == Start(1, 0)
    assert await one.next(Start) == Start(1, 0)


async def test_a_late_rank_receives_the_configuration_after_its_welcome(place):
    zero, one = place.worker(0), place.worker(1)
    await zero.welcome()
    zero.hello()
    await one.welcome(instance=b"")
    assert (await one.next(Configure)).configuration == zero.configuration()


async def test_ranks_that_were_given_different_reducers(place):
    zero, one = place.worker(0), place.worker(1)
    zero.join(named=NamedReducers("a:1, b:1", 2))
    await zero.next(Welcome)
    one.join(named=NamedReducers("a:1", 1))
    for worker in (zero, one):
        message = await refusal(worker, CollectiveMismatch)
        assert "rank 1 (host1) was given the reducers a:1, but rank 0 (host0) a:1, b:1: " in message


async def test_added_reducers_are_relayed(place):
    zero, one = place.worker(0), place.worker(1)
    await zero.welcome()
    await one.welcome()
    configuration = replace(zero.configuration(), added=("c:1", "d:1"))
    zero.send(Hello(configuration, 0))
    assert (await one.next(Configure)).configuration == configuration


async def test_an_unsupported_protocol_version(place):
    worker = place.worker()
    worker.join(protocol=PROTOCOL_VERSION + 1)
    assert await refusal(worker, UnsupportedVersion) == (
        f"rank 0 speaks protocol version {PROTOCOL_VERSION + 1}, but this reducer {PROTOCOL_VERSION}"
    )


async def test_the_first_frame_must_be_a_join(place):
    worker = place.worker()
    worker.send(Ack(0))
    assert "the first frame of a stream is a Join" in await refusal(worker, OutOfOrder)


async def test_a_second_join_on_one_stream_ends_the_job(place):
    zero, one = await place.running()
    one.join()
    for worker in (zero, one):
        assert "rank 1 (host1) sent a second Join" in await refusal(worker, OutOfOrder)


async def test_a_live_job_of_the_same_name_is_busy_and_goes_on(place):
    zero, one = await place.running()
    second = place.worker(0, life="again")
    second.join()
    assert "its rank 0 runs on host0" in await refusal(second, JobBusy)
    for worker in (zero, one):
        worker.push(np.ones(3, np.float32))
    assert (await zero.result()).tolist() == [2, 2, 2]


async def test_a_rank_that_is_taken(place):
    await place.running()
    impostor = place.worker(1, life="again")
    impostor.join(instance=b"", host="elsewhere")
    message = await refusal(impostor, RankTaken)
    assert "host1" in message
    assert "elsewhere" in message


async def test_a_name_is_free_again_once_rank_0_is_gone(place):
    zero, one = await place.running()
    zero.stream.close()
    await one.peers(L)
    again = place.worker(0, life="again")
    await again.welcome()
    assert "restarted" in await refusal(one, StaleInstance)


async def test_a_different_world_size_fails_all_ranks_and_names_both(place):
    zero, one = place.worker(0), place.worker(1, world_size=3)
    await zero.welcome()
    one.join()
    for worker in (zero, one):
        assert await refusal(worker, CollectiveMismatch) == (
            "rank 1 (host1) has world size 3, but other ranks of job 'job' have 2"
        )


async def test_memory_is_reserved_at_join_and_free_again_when_the_job_is_over(place):
    place.engine.jobs.memory.limit = 3 << 20
    small, large = place.worker(job="small"), place.worker(job="large", world_size=1)
    await small.welcome()
    large.join(credit_bytes=512 * CHUNK)
    assert (await refusal(large, ResourceExhausted)).startswith(
        "job 'large' needs 2097152 bytes (1 ranks x 2 x 524288 credit + 1048576); 1310720 of 3145728 are taken"
    )
    small.stream.close()
    await small.sink.closed
    large = place.worker(job="large", world_size=1)
    await large.welcome(credit_bytes=512 * CHUNK)


async def test_draining_is_announced_and_refuses_new_jobs(place):
    zero, one = await place.running()
    place.engine.drain()
    while not (await zero.next(Peers)).draining:
        pass
    while not (await one.next(Peers)).draining:
        pass
    late = place.worker(0, job="late")
    late.join()
    assert "takes no new job 'late'" in await refusal(late, ReducerDraining)
    for worker in (zero, one):
        worker.push(np.ones(3, np.float32))
    assert (await one.result()).tolist() == [2, 2, 2]


async def test_a_returning_rank_is_reported_lost_and_then_present(place):
    zero, one = await place.running()
    one.stream.close()
    await zero.peers(P, L)
    back = place.worker(1)
    await back.welcome()
    await zero.peers(P, P)


async def test_a_rank_may_come_back_before_its_loss_was_noticed(place):
    zero, one = await place.running()
    back = place.worker(1)
    await back.welcome()
    (news,) = (await zero.next(Peers)).peers
    assert news == Peer(1, one.nonce, "host1", P, streams=2), "by which the loss of the first one shows"
    assert await one.sink.closed is None, "the old stream ends without an error"
