"""The answer of the Status call, as bytes and back."""

from __future__ import annotations

from reduction import model
from reduction.limits import STATUS_JOBS_MAX
from reduction.v1 import reduction_pb2 as pb
from reduction.wire.fields import parse, peer_from_pb, peer_to_pb, require


def status_to_wire(status: model.ReducerStatus) -> bytes:
    """Encode the answer of the Status call."""
    jobs = [
        pb.JobStatus(
            job=job.job,
            world_size=job.world_size,
            peers=map(peer_to_pb, job.peers),
            epoch=job.epoch,
            started=job.started,
            minimum=job.minimum,
            open_slots=job.open_slots,
            reserved_bytes=job.reserved_bytes,
            received_bytes=job.received_bytes,
            sent_bytes=job.sent_bytes,
            chunk_bytes=job.chunk_bytes,
            credit_bytes=job.credit_bytes,
            under_way_bytes=job.under_way_bytes,
            last=[pb.LastRank(rank=one.rank, chunks=one.chunks, waited_s=one.waited_s) for one in job.last],
            waits=pb.Waits(
                p50_s=job.waits.p50_s, p90_s=job.waits.p90_s, p99_s=job.waits.p99_s, max_s=job.waits.max_s
            ),
            group=job.group,
        )
        for job in status.jobs
    ]
    return pb.StatusResponse(
        version=status.version,
        incarnation=status.incarnation,
        uptime_seconds=status.uptime_seconds,
        draining=status.draining,
        memory_reserved_bytes=status.memory_reserved_bytes,
        memory_limit_bytes=status.memory_limit_bytes,
        jobs=jobs,
        siblings=status.siblings,
    ).SerializeToString()


def status_from_wire(data: bytes) -> model.ReducerStatus:
    """Decode the answer of the Status call.

    Raises:
        MalformedFrame: not a StatusResponse, or a field outside its limits.
    """
    status = parse(pb.StatusResponse, data)
    require("number of StatusResponse.jobs", len(status.jobs), 0, STATUS_JOBS_MAX)
    jobs = (
        model.JobStatus(
            job=job.job,
            world_size=job.world_size,
            peers=tuple(map(peer_from_pb, job.peers)),
            epoch=job.epoch,
            started=job.started,
            minimum=job.minimum,
            open_slots=job.open_slots,
            reserved_bytes=job.reserved_bytes,
            received_bytes=job.received_bytes,
            sent_bytes=job.sent_bytes,
            chunk_bytes=job.chunk_bytes,
            credit_bytes=job.credit_bytes,
            under_way_bytes=job.under_way_bytes,
            last=tuple(model.LastRank(one.rank, one.chunks, one.waited_s) for one in job.last),
            waits=model.WaitTimes(job.waits.p50_s, job.waits.p90_s, job.waits.p99_s, job.waits.max_s),
            group=job.group,
        )
        for job in status.jobs
    )
    return model.ReducerStatus(
        version=status.version,
        incarnation=status.incarnation,
        uptime_seconds=status.uptime_seconds,
        draining=status.draining,
        memory_reserved_bytes=status.memory_reserved_bytes,
        memory_limit_bytes=status.memory_limit_bytes,
        jobs=tuple(jobs),
        siblings=tuple(status.siblings),
    )
