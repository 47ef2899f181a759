"""One job on one reducer: the event table at the top of `reducer.core.job`, as events in and actions out."""

import pytest
from reduction import limits
from reduction.errors import CollectiveMismatch, MalformedFrame, OutOfOrder
from reduction.model import Collective, Configure, DType, Member, ReduceOp, Start
from support.scenes.jobs_scene import CREDIT
from unit.reducer.core.scene import (
    DATA,
    SUM,
    US,
    Scene,
    configuration,
    discards,
    ends,
    fold,
    publish,
    running,
    to_all,
)

OTHER = Member("b:1", b"another-reducer-")
BIG = Collective(ReduceOp.SUM, DType.FLOAT32, 1024, 7)  # 4 chunks
TINY = {"collective": Collective(ReduceOp.SUM, DType.FLOAT32, 0, 7), "payload": memoryview(b"")}


# ---- Hello ----


@pytest.mark.parametrize(("lost", "bringer", "told"), [((), 0, (1, 2)), ((), 1, (2,)), ((2,), 0, (1,))])
def test_the_first_hello_brings_the_configuration_to_all_present_ranks_but_rank_0(lost, bringer, told):
    scene = Scene(3)
    for rank in lost:
        scene.lose(rank)
    assert scene.hello(bringer) == to_all(Configure(configuration()), *told)


def test_the_epoch_starts_from_the_smallest_held_once_all_have_sent_hello_on_their_current_streams():
    scene = Scene(3)
    scene.hello(0, held=7)
    scene.hello(2, held=5)
    scene.lose(0)
    scene.join(0, stream=9)
    assert scene.hello(1, held=9) == [], "rank 0's Hello went with its stream"
    assert scene.hello(9, held=7) == to_all(Start(1, 5), 9, 1, 2)


def test_frames_of_an_older_epoch_are_ignored():
    scene = running(epoch=2)
    assert scene.hello(1, epoch=1) == scene.push(0, epoch=1) == []


@pytest.mark.parametrize("is_noticed", [False, True])
def test_a_rank_that_returns_in_a_running_epoch_counts_only_in_the_next_one(is_noticed):
    """Pushes on its old stream may be lost. Rank 0 is notified of that and starts a new epoch."""
    scene = running()
    if is_noticed:
        scene.lose(1)
    scene.join(1, stream=5)
    assert scene.hello(5) == []
    actions = scene.push(5, payload=DATA[1])
    assert (
        ends(actions, [0, 5], OutOfOrder, "rank 1 (h1)", "in epoch 1, but this reducer is in epoch 1") == []
    )


def test_a_newer_epoch_drops_all_slots_and_all_outstanding_credit():
    scene = running(credit=1024)
    scene.push(0)
    assert scene.hello(0, epoch=2) == [*discards((0, 0)), *to_all(Configure(configuration(2)), 1)]
    assert scene.hello(1, epoch=2) == to_all(Start(2, 0), 0, 1)
    assert scene.push(0, epoch=2) == [fold(0, 0)]
    assert scene.push(1, epoch=2) == [fold(0, 1), publish(0, epoch=2)]


# ---- frames of one rank that end a job of two ranks ----


def forming():
    return Scene()


def configured():
    scene = Scene()
    scene.hello(0)
    return scene


def shared():
    return running(members=(*US, OTHER))


def summing():
    scene = running()
    scene.push(0)
    return scene


def hello(rank, **changes):
    return lambda scene: scene.hello(rank, **changes)


def push(rank, **changes):
    return lambda scene: scene.push(rank, **changes)


def sized(nbytes):
    return push(1, payload=memoryview(bytes(nbytes)))


def of_big(chunk):
    return push(1, chunk=chunk, collective=BIG, payload=memoryview(bytes(1024)))


FAULTS = [
    (configured, 0, hello(0), OutOfOrder, ["again in epoch 1"]),
    (summing, 0, hello(0), OutOfOrder, ["again in epoch 1"]),
    (configured, 1, hello(1, chunk_bytes=2048), OutOfOrder, ["a different configuration of epoch 1"]),
    (forming, 1, hello(1, instance=bytes(16)), OutOfOrder, ["another instance of job 'job'"]),
    (summing, 0, hello(0, epoch=2, members=(OTHER,)), OutOfOrder, ["outside epoch 2"]),
    # A push may exceed the credit when nothing else is in flight, so 4 MiB chunks with 4 KiB of credit would take
    # a thousand times the memory that Join has reserved.
    (forming, 0, hello(0, chunk_bytes=limits.CHUNK_BYTES_MAX), OutOfOrder, [limits.CHUNK_BYTES_MAX, CREDIT]),
    (forming, 1, push(1), OutOfOrder, ["in epoch 1,", "in epoch 0, not started"]),
    (configured, 1, push(1), OutOfOrder, ["in epoch 1,", "in epoch 1, not started"]),
    (summing, 1, push(1, epoch=2), OutOfOrder, ["in epoch 2,", "in epoch 1, started"]),
    (summing, 0, push(0), OutOfOrder, ["same chunk twice"]),
    *[
        (running, 1, sized(nbytes), MalformedFrame, [f" {nbytes} bytes", "has 12"])
        for nbytes in (0, 13, 1024)
    ],
    *[
        (shared, 1, of_big(chunk), MalformedFrame, [f"chunk {chunk} of", "chunks 0 to 1 of 4"])
        for chunk in (2, 3, 4, 1 << 31)
    ],
]


@pytest.mark.parametrize(("make", "rank", "act", "error", "values"), FAULTS)
def test_a_fault_of_one_rank_ends_the_job_for_all_and_frees_its_accumulators(make, rank, act, error, values):
    scene = make()
    freed = discards(*scene.job.slots)
    assert ends(act(scene), [0, 1], error, f"rank {rank} (h{rank}) ", *values) == freed
    assert scene.jobs.by_name == {}


# ---- Push ----


def test_contributions_are_folded_in_rank_order_and_the_result_goes_to_the_ranks_present():
    scene = running(3)
    assert scene.push(1) == []
    scene.lose(1)
    assert scene.push(0) == [fold(0, 0, 1)]
    assert scene.push(2) == [fold(0, 2), publish(0, 3, streams=(0, 2))]
    assert scene.job.slots == {}


def test_an_average_divides_by_all_processes_behind_the_contributions():
    scene = running(local_size=4)
    scene.push(0)
    assert scene.push(1)[-1].divisor == 8


def test_disagreement_fails_all_ranks_and_names_both():
    scene = running(3)
    scene.push(0)
    other = Collective(ReduceOp.AVG, DType.FLOAT32, 3, 7)
    values = "collective 0", f"rank 2 issued {other}", f"rank 0 issued {SUM}", "rank 2 (h2)", "rank 0 (h0)"
    assert ends(scene.push(2, collective=other), [0, 1, 2], CollectiveMismatch, *values) == discards((0, 0))
    assert scene.jobs.by_name == {}


@pytest.mark.parametrize("pushes", [((1, 0), (1, 1), (0, 1)), ((0, 1), (1, 0), (1, 1))])
def test_a_rank_that_has_skipped_a_chunk_disagrees_with_the_ranks_that_have_it(pushes):
    """The rank's collective has fewer chunks, so this reducer gets none of them. Found by simulation."""
    scene = running()
    for rank, seq in pushes:
        actions = scene.push(rank, seq)
    values = "rank 0 (h0) has no chunk 0 of collective 0", f"{SUM} at rank 1 (h1)"
    assert ends(actions, [0, 1], CollectiveMismatch, *values) == discards((0, 0), (1, 0))


# ---- credit ----


def test_the_number_of_open_slots_is_bounded_by_the_credit():
    """This holds even for tiny collectives that each rank pushes alone: a push counts as at least 1 KiB."""
    scene = running(credit=4096)
    for rank in range(2):
        for seq in range(4):
            scene.push(rank, 100 * rank + seq, **TINY)
    slots = list(scene.job.slots)
    assert len(slots) == 2 * 4
    assert ends(scene.push(0, 4, **TINY), [0, 1], OutOfOrder, "rank 0 (h0)", 5120, 4096) == discards(*slots)


def test_credit_counts_until_the_result_is_published():
    scene = running(credit=2048)
    assert scene.push(0, 0) == [fold(0, 0)]
    assert scene.push(0, 1) == [fold(1, 0)]
    assert scene.push(1, 0)[-1] == publish(0)
    assert scene.push(0, 2) == [fold(2, 0)]
    assert ends(scene.push(0, 3), [0, 1], OutOfOrder, 3072, 2048) == discards((1, 0), (2, 0))
