"""A reducer's table of jobs and joining clients, for the tests of `reducer.core.jobs`."""

from unittest.mock import ANY

from reduction.model import (
    Abort,
    Collective,
    Configuration,
    DType,
    Hello,
    Join,
    Member,
    Peer,
    Presence,
    ReduceOp,
)

from reducer.core.actions import Close, Send
from reducer.core.events import Received
from reducer.core.jobs import Jobs

REDUCER = b"reducer-reducer-"
OLD, NEW = b"the old instance", b"the new instance"
CREDIT = 4096
SUM3 = Collective(ReduceOp.SUM, DType.FLOAT32, 3, 7)
PAYLOAD = memoryview(b"0123456789ab")


def make_jobs(memory_limit_bytes=1 << 30):
    return Jobs(incarnation=REDUCER, memory_limit_bytes=memory_limit_bytes)


def nonce(rank, life=0):
    return bytes([rank, life]) * 8


def join(rank, *, life=0, instance=OLD, **changes):
    fields = {
        "job": "job",
        "instance": instance,
        "rank": rank,
        "world_size": 2,
        "nonce": nonce(rank, life),
        "host": f"host{rank}",
        "minimum": 0,
        "credit_bytes": CREDIT,
    }
    return Join(**fields | changes)


def peer(rank, presence=Presence.PRESENT, life=0, streams=1):
    return Peer(rank, nonce(rank, life), f"host{rank}", presence, streams)


def receive(jobs, stream, frame, now=0.0):
    return jobs.handle(Received(stream, frame), now)


def refused(stream, error):
    """Return the action that ends one stream with an error of the type that belongs to the code."""
    return [Send(stream, Abort(error.code, str(error))), Close(stream, ANY)]


def running(jobs, *, job="job", instance=OLD, first_stream=10):
    """Take a job of two ranks through all steps up to the first push; return its configuration."""
    configuration = Configuration(instance, 1, 1024, (Member("a:1", REDUCER),))
    for rank in (0, 1):
        receive(jobs, first_stream + rank, join(rank, job=job, instance=instance))
    for rank in (0, 1):
        receive(jobs, first_stream + rank, Hello(configuration, 0))
    return configuration
