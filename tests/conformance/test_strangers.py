"""Unauthorised peers cost nothing: they are refused before their first frame is read, and leave nothing behind."""

import asyncio
import gc
import weakref

import grpc
import pytest
from conformance.places import GrpcPlace
from grpc_health.v1 import health_pb2, health_pb2_grpc
from reduction import limits, wire
from reduction.model import Collective, DType, Goodbye, Push, ReduceOp, Welcome
from reduction.security.tokens import TokenTable, to_metadata

from reducer.transports.grpc_server import Limits
from reducer.transports.outbox import Outbox

TOKENS = TokenTable({"job": "t0ken" * 8, "other": "an0ther" * 6})
#: The largest permitted frame, but not a Join.
LARGE = wire.worker_frame_to_wire(
    Push(
        1,
        0,
        0,
        Collective(ReduceOp.SUM, DType.FLOAT32, limits.CHUNK_BYTES_MAX // 4, 7),
        0,
        memoryview(bytes(limits.CHUNK_BYTES_MAX)),
    )
)


@pytest.fixture
def guarded():
    place = GrpcPlace()
    place.tokens = TOKENS
    return place


@pytest.fixture
def impatient():
    place = GrpcPlace()
    place.limits = Limits(strangers=1, join_s=0.05, hurry_s=0.05)
    return place


async def end_of(call):
    """Read a call until it ends with an error, and return the error."""
    while True:
        try:
            assert await call.read() is not grpc.aio.EOF
        except grpc.aio.AioRpcError as error:
            return error


@pytest.mark.parametrize("shown", [None, "wr0ng" * 8])
async def test_without_a_token_a_call_ends_before_anything_is_sent_on_it(guarded, shown):
    error = await end_of(guarded.call(to_metadata(shown)))
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    what = f" shows {'a wrong' if shown else 'no'} token: its token_file (REDUCTION_TOKEN_FILE) and "
    what += "this reducer's --token-file"
    assert what in error.details()
    assert guarded.engine.errors == {"Unauthenticated": 1}
    assert guarded.server._turns.free == guarded.limits.strangers


@pytest.mark.parametrize("method", ["Status", "Drain"])
async def test_other_calls_are_also_refused_before_anything_is_sent(guarded, method):
    call = guarded.channel().stream_stream(f"/reduction.v1.Reduction/{method}")()
    assert (await end_of(call)).code() is grpc.StatusCode.UNAUTHENTICATED
    assert guarded.drains == 0


async def test_a_token_of_another_job_is_detected_at_the_join(guarded):
    call = guarded.call(to_metadata("an0ther" * 6))
    worker = guarded.worker(0, world_size=1)
    join = []
    worker.stream.send = join.append
    worker.join()
    await call.write(wire.worker_frame_to_wire(join[0]))
    error = await end_of(call)
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "rank 0 (host0, ipv4:127.0.0.1:" in error.details()
    assert "shows a wrong token for job 'job'" in error.details()
    assert not guarded.engine.jobs.by_name


async def test_a_job_accepts_its_own_token(guarded):
    call = guarded.call(to_metadata("t0ken" * 8))
    worker = guarded.worker(0, world_size=1)
    join = []
    worker.stream.send = join.append
    worker.join()
    await call.write(wire.worker_frame_to_wire(join[0]))
    assert isinstance(wire.reducer_frame_from_wire(await call.read()), Welcome)
    call.cancel()


# ---- what a refused call leaves behind ----


async def malformed(place):
    """Send bytes that are not a frame."""
    call = place.call()
    await call.write(b"\xff" * 100_000)
    assert (await end_of(call)).code() is grpc.StatusCode.INVALID_ARGUMENT


async def no_join(place):
    """Send a frame that is not a Join."""
    call = place.call()
    await call.write(wire.worker_frame_to_wire(Goodbye(0, 0)))
    assert (await end_of(call)).code() is grpc.StatusCode.FAILED_PRECONDITION


async def too_long(place):
    """Send a frame as long as the longest permitted Push."""
    call = place.call()
    await call.write(LARGE)
    error = await end_of(call)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    limit = limits.WORKER_CONTROL_BYTES_MAX
    assert error.details() == f"length of a first message is {len(LARGE)}; allowed: 0 to {limit}"


async def damaged(place):
    """Join, then send bytes that are not a frame."""
    worker = place.worker(0, world_size=1)
    await worker.welcome()
    call = worker.stream._call
    await call.write(b"\xff" * 1000)
    await worker.sink.closed


async def silent(place):
    """Send nothing until the turn is over."""
    await end_of(place.call())


async def gone(place):
    """Disconnect one call while the reducer waits for its Join, and another that waits for its turn."""
    calls = [place.call(), place.call()]
    while place.server._turns._waiting == 0:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for call in calls:
        call.cancel()


async def long_question(place):
    """Ask for the health of a service with a name of 4 MiB."""
    request = health_pb2.HealthCheckRequest(service="x" * limits.CHUNK_BYTES_MAX)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await health_pb2_grpc.HealthStub(place.channel()).Check(request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().endswith(f"allowed: 0 to {limits.SERVICE_REQUEST_BYTES_MAX}")


@pytest.mark.parametrize("what", [malformed, no_join, too_long, damaged, silent, gone, long_question])
async def test_a_refused_call_leaves_nothing_for_the_garbage_collector(impatient, what, monkeypatch):
    outboxes = []
    made = Outbox.__init__

    def note(self, *arguments, **settings):
        outboxes.append(weakref.ref(self))
        made(self, *arguments, **settings)

    monkeypatch.setattr(Outbox, "__init__", note)
    gc.collect()
    gc.freeze()  # objects left by an earlier test may become garbage at any moment, and are not meant here
    gc.disable()
    try:
        await what(impatient)
        for channel in impatient.channels:
            await channel.close()
        while impatient.server._turns.free == 0 or any(box() for box in outboxes):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        ours = [thing for thing in gc.garbage if is_of_reducer(thing)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()
    assert not ours


def is_of_reducer(thing):
    """Return whether `thing` is an object of the reducer or a frame of its code."""
    code = getattr(getattr(thing, "f_code", None), "co_filename", "")
    return type(thing).__module__.startswith("reducer.") or "/reducer/" in code
