"""One job on one reducer: the event table at the top of `reducer.core.job`, as events in and actions out."""

from unittest.mock import ANY

import pytest
from reduction import limits
from reduction.errors import CollectiveMismatch, MalformedFrame, OutOfOrder
from reduction.model import (
    Abort,
    Collective,
    Configuration,
    Configure,
    DType,
    Hello,
    Join,
    Member,
    Peer,
    Peers,
    Presence,
    Push,
    ReduceOp,
    Start,
)

from reducer.core.actions import Close, Discard, Fold, Publish, Send, SlotKey
from reducer.core.events import Lost, Received
from reducer.core.jobs import Jobs

R, S = b"reducer-reducer-", b"another-reducer-"
INSTANCE = b"instance-instanc"
CREDIT = 4096
SUM = Collective(ReduceOp.SUM, DType.FLOAT32, 3, 7)
BIG = Collective(ReduceOp.SUM, DType.FLOAT32, 1024, 7)  # 4 chunks
#: Rank r's contribution to SUM.
DATA = [memoryview(bytes([rank]) * 12) for rank in range(3)]


def nonce(rank):
    return bytes([rank]) * 16


def peers(*presences, draining=False):
    """Return the report; one presence per rank, P, L or G for present, lost, gone after Goodbye."""
    meaning = {"P": Presence.PRESENT, "L": Presence.LOST, "G": Presence.LEFT}
    return Peers(
        tuple(Peer(rank, nonce(rank), f"h{rank}", meaning[seen]) for rank, seen in enumerate(presences)),
        draining,
    )


US = (Member("a:1", R),)


def configuration(epoch=1, members=US, chunk_bytes=1024, instance=INSTANCE):
    return Configuration(instance, epoch, chunk_bytes, members)


class Scene:
    """A reducer with one job; rank r is on stream r."""

    def __init__(self, world_size=2, credit=CREDIT, local_size=1):
        self.local_size = local_size
        self.jobs = Jobs(incarnation=R, memory_limit_bytes=1 << 30)
        self.world_size = world_size
        self.credit = credit
        for rank in range(world_size):
            self.join(rank)

    def join(self, rank, stream=None):
        who = "job", INSTANCE, rank, self.world_size, nonce(rank), f"h{rank}"
        join = Join(*who, 0, self.credit, local_size=self.local_size)
        return self.receive(rank if stream is None else stream, join)

    def receive(self, rank, frame, now=0.0):
        return self.jobs.handle(Received(rank, frame), now)

    def start(self, **changes):
        """Let all ranks say Hello; return the last actions."""
        for rank in range(self.world_size):
            actions = self.receive(rank, Hello(configuration(**changes), 0))
        return actions

    def push(self, rank, seq=0, *, epoch=1, chunk=0, held=0, collective=SUM, payload=None, now=0.0):
        payload = DATA[rank] if payload is None else payload
        return self.receive(rank, Push(epoch, seq, chunk, collective, held, payload), now)


def running(world_size=2, credit=CREDIT, **changes):
    scene = Scene(world_size, credit)
    scene.start(**changes)
    return scene


def refused(rank, error, *others):
    """Return what ends one rank's stream with its own error; `others` is what the rest hears of it."""
    return [Send(rank, Abort(error.code, str(error))), Close(rank, ANY), *others]


def failed(world_size, error, *discards):
    """Return what ends the job for all ranks."""
    actions = [Discard(SlotKey(1, seq, chunk)) for seq, chunk in discards]
    for rank in range(world_size):
        actions += refused(rank, error)
    return actions


def spoiled(rank, error, *discards):
    """Return what ends a job of two ranks because of what one of them sent."""
    text = str(error).replace(f"rank {rank} ", f"rank {rank} (h{rank}) ", 1)
    return failed(2, type(error)(text), *discards)


def fold(seq, *ranks, chunk=0, collective=SUM):
    return Fold(SlotKey(1, seq, chunk), collective, tuple(DATA[rank] for rank in ranks), collective.nbytes)


def publish(seq, world_size=2, *, epoch=1, chunk=0, minimum=0, collective=SUM, streams=None):
    streams = tuple(range(world_size)) if streams is None else streams
    return Publish(SlotKey(1, seq, chunk), collective, world_size, epoch, minimum, streams)


# ---- Hello ----


def test_the_first_hello_brings_the_configuration_and_it_is_relayed():
    scene = Scene(3)
    relay = Configure(configuration())
    assert scene.receive(0, Hello(configuration(), 0)) == [Send(1, relay), Send(2, relay)]


def test_another_rank_may_bring_the_configuration_and_rank_0_needs_no_relay():
    scene = Scene(3)
    assert scene.receive(1, Hello(configuration(), 0)) == [Send(2, Configure(configuration()))]


def test_a_lost_rank_gets_no_relay():
    scene = Scene(3)
    scene.jobs.handle(Lost(2), 0.0)
    assert scene.receive(0, Hello(configuration(), 0)) == [Send(1, Configure(configuration()))]


def test_the_last_hello_starts_the_epoch_from_the_smallest_held():
    scene = Scene(3)
    scene.receive(0, Hello(configuration(), 7))
    scene.receive(2, Hello(configuration(), 5))
    assert scene.receive(1, Hello(configuration(), 9)) == [Send(rank, Start(1, 5)) for rank in range(3)]


def test_start_goes_to_all_present_ranks_only_when_all_said_hello_on_their_present_stream():
    scene = Scene(2)
    scene.receive(0, Hello(configuration(), 0))
    scene.jobs.handle(Lost(0), 0.0)
    scene.join(0, stream=5)
    assert scene.receive(1, Hello(configuration(), 0)) == [], "rank 0's Hello went with its stream"
    assert scene.receive(5, Hello(configuration(), 0)) == [Send(5, Start(1, 0)), Send(1, Start(1, 0))]


def test_a_hello_of_an_older_epoch_is_ignored():
    scene = running(epoch=2)
    assert scene.receive(1, Hello(configuration(epoch=1), 0)) == []


def test_a_hello_on_a_new_stream_in_a_running_epoch_is_ignored():
    """What the rank pushed on its old stream may be lost. Rank 0 has heard of that, and makes a new epoch."""
    scene = running()
    scene.join(1, stream=5)
    assert scene.receive(5, Hello(configuration(), 0)) == []
    assert scene.jobs.by_name["job", ""].hellos == {0: 0}


def test_hello_twice_before_and_after_start():
    for said in (1, 2):
        scene = Scene(2)
        for rank in range(said):
            scene.receive(rank, Hello(configuration(), 0))
        error = OutOfOrder("rank 0 said Hello again in epoch 1")
        assert scene.receive(0, Hello(configuration(), 0)) == spoiled(0, error)


def test_two_configurations_of_one_epoch():
    scene = Scene(2)
    scene.receive(0, Hello(configuration(), 0))
    error = OutOfOrder("rank 1 has another configuration of epoch 1")
    assert scene.receive(1, Hello(configuration(chunk_bytes=2048), 0)) == spoiled(1, error)


def test_a_configuration_of_another_instance():
    scene = Scene(2)
    error = OutOfOrder("rank 1 sent a configuration of another instance of job 'job'")
    assert scene.receive(1, Hello(configuration(instance=bytes(16)), 0)) == spoiled(1, error)


def test_a_configuration_without_this_reducer_frees_the_old_epochs_accumulators():
    scene = running()
    scene.push(0)
    error = OutOfOrder("rank 0 said Hello to a reducer outside epoch 2's configuration")
    actions = scene.receive(0, Hello(configuration(2, (Member("b:1", S),)), 0))
    assert actions == spoiled(0, error, (0, 0))


def test_a_newer_epoch_drops_all_slots_and_all_outstanding_credit():
    scene = running(credit=1024)
    scene.push(0)
    actions = scene.receive(0, Hello(configuration(2), 0))
    assert actions == [Discard(SlotKey(1, 0, 0)), Send(1, Configure(configuration(2)))]
    assert scene.receive(1, Hello(configuration(2), 0)) == [Send(0, Start(2, 0)), Send(1, Start(2, 0))]
    assert scene.push(0, epoch=2) == [fold(0, 0)]
    assert scene.push(1, epoch=2) == [fold(0, 1), publish(0, epoch=2)]


def test_the_grid_must_fit_the_memory_that_was_reserved():
    # A push may be larger than the credit when nothing else is under way, so 4 MiB chunks with 4 KiB of
    # credit would take a thousand times what Join has reserved.
    scene = Scene(2, credit=4096)
    actions = scene.receive(0, Hello(configuration(chunk_bytes=limits.CHUNK_BYTES_MAX), 0))
    assert any(isinstance(action, Close) for action in actions), actions


# ---- Push ----


def test_contributions_are_folded_in_rank_order_and_published_once():
    scene = running(3)
    assert scene.push(2) == []
    assert scene.push(0) == [fold(0, 0)]
    assert scene.push(1) == [fold(0, 1, 2), publish(0, 3)]
    assert scene.jobs.by_name["job", ""].slots == {}


def test_a_result_goes_to_the_ranks_that_are_there():
    scene = running(3)
    scene.push(1)
    scene.jobs.handle(Lost(1), 0.0)
    scene.push(0)
    assert scene.push(2) == [fold(0, 2), publish(0, 3, streams=(0, 2))]


def test_a_push_of_an_older_epoch_is_ignored():
    scene = running(epoch=2)
    assert scene.push(0, epoch=1) == []


@pytest.mark.parametrize("hellos", [0, 1])
def test_a_push_before_start_is_out_of_order(hellos):
    scene = Scene(2)
    for rank in range(hellos):
        scene.receive(rank, Hello(configuration(), 0))
    error = OutOfOrder(f"rank 1 pushed in epoch 1, this reducer is in epoch {hellos}, not started")
    assert scene.push(1) == spoiled(1, error)


def test_a_push_of_a_later_epoch_is_out_of_order():
    error = OutOfOrder("rank 1 pushed in epoch 2, this reducer is in epoch 1, started")
    assert running().push(1, epoch=2) == spoiled(1, error)


def test_a_push_on_a_stream_that_came_after_start_is_out_of_order():
    scene = running()
    scene.jobs.handle(Lost(1), 0.0)
    scene.join(1)
    error = OutOfOrder("rank 1 pushed in epoch 1, this reducer is in epoch 1, started")
    assert scene.push(1) == spoiled(1, error)


def test_the_same_push_twice_is_out_of_order():
    scene = running()
    scene.push(0)
    error = OutOfOrder("rank 0 pushed the same chunk twice in one epoch")
    assert scene.push(0) == spoiled(0, error, (0, 0))


@pytest.mark.parametrize("chunk", [2, 3, 4, 1 << 31])
def test_a_chunk_of_another_reducer_or_of_none_is_malformed(chunk):
    scene = running(members=(Member("a:1", R), Member("b:1", S)))
    error = MalformedFrame(
        f"rank 1 pushed chunk {chunk} of collective 0 ({BIG}) to the reducer of chunks 0 to 1 of 4"
    )
    actions = scene.push(1, chunk=chunk, collective=BIG, payload=memoryview(bytes(1024)))
    assert actions == spoiled(1, error)


@pytest.mark.parametrize(("nbytes", "chunk"), [(0, 0), (11, 0), (13, 0), (1024, 0)])
def test_a_chunk_of_another_size_is_malformed(nbytes, chunk):
    error = MalformedFrame(
        f"rank 1 pushed {nbytes} bytes as chunk 0 of collective 0 ({SUM}), the chunk has 12"
    )
    actions = running().push(1, payload=memoryview(bytes(nbytes)))
    assert actions == spoiled(1, error)


def test_an_empty_collective_is_summed_like_any_other():
    scene = running()
    empty = Collective(ReduceOp.SUM, DType.FLOAT32, 0, 7)
    none = memoryview(b"")
    assert scene.push(0, collective=empty, payload=none) == [Fold(SlotKey(1, 0, 0), empty, (none,), 0)]
    assert scene.push(1, collective=empty, payload=none) == [
        Fold(SlotKey(1, 0, 0), empty, (none,), 0),
        publish(0, collective=empty),
    ]


def test_an_average_divides_by_all_processes_whose_sums_the_contributions_are():
    scene = Scene(local_size=4)
    scene.start()
    scene.push(0)
    assert scene.push(1)[-1].divisor == 8


def test_disagreement_fails_all_ranks_and_names_both():
    scene = running(3)
    scene.push(0)
    other = Collective(ReduceOp.AVG, DType.FLOAT32, 3, 7)
    error = CollectiveMismatch(
        f"collective 0: rank 2 issued {other}, but rank 0 issued {SUM}: rank 2 (h2), rank 0 (h0)"
    )
    assert scene.push(2, collective=other) == failed(3, error, (0, 0))
    assert scene.jobs.by_name == {}


@pytest.mark.parametrize("pushes", [((1, 0), (1, 1), (0, 1)), ((0, 1), (1, 0), (1, 1))])
def test_a_rank_that_has_skipped_a_chunk_disagrees_with_the_ranks_that_have_it(pushes):
    """Its collective has fewer chunks, so that this reducer gets none of them. Found by simulation."""
    scene = running()
    *before, last = pushes
    for rank, seq in before:
        scene.push(rank, seq)
    error = CollectiveMismatch(f"rank 0 (h0) has no chunk 0 of collective 0, which is {SUM} at rank 1 (h1)")
    assert scene.push(*last) == failed(2, error, (0, 0), (1, 0))


# ---- credit ----


def test_the_number_of_open_slots_is_bounded_by_the_credit():
    """Even of tiny collectives, each rank's own: a push counts as 1 KiB at least."""
    scene = running(credit=4096)
    tiny = Collective(ReduceOp.SUM, DType.FLOAT32, 0, 7)
    for rank in range(2):
        for seq in range(4):
            scene.push(rank, 100 * rank + seq, collective=tiny, payload=memoryview(b""))
    assert len(scene.jobs.by_name["job", ""].slots) == 2 * 4
    actions = scene.push(0, 4, collective=tiny, payload=memoryview(b""))
    error = OutOfOrder("rank 0 pushed 5120 bytes ahead of the results, its credit is 4096")
    assert actions == spoiled(0, error, *((100 * rank + seq, 0) for rank in range(2) for seq in range(4)))


def test_credit_counts_until_the_result_is_published():
    scene = running(credit=2048)
    assert scene.push(0, 0) == [fold(0, 0)]
    assert scene.push(0, 1) == [fold(1, 0)]
    assert scene.push(1, 0)[-1] == publish(0)
    assert scene.push(0, 2) == [fold(2, 0)]
    error = OutOfOrder("rank 0 pushed 3072 bytes ahead of the results, its credit is 2048")
    assert scene.push(0, 3) == spoiled(0, error, (1, 0), (2, 0))
