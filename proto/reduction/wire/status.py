"""Encode and decode the answer of the Status call."""

from __future__ import annotations

from typing import cast

from reduction import model
from reduction.limits import ENDED_JOBS_MAX, EVENT_CHARS_MAX, EVENT_JOB_BYTES_MAX, EVENTS_MAX, STATUS_JOBS_MAX
from reduction.text import printable
from reduction.v1 import reduction_pb2 as pb
from reduction.wire.fields import (
    enum_member,
    parse,
    peer_from_pb,
    peer_to_pb,
    require,
    waiting_from_pb,
    waiting_to_pb,
)


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
            planes=pb.Planes(grpc=job.planes.grpc, tcp=job.planes.tcp, shared=job.planes.shared),
            waiting=None if job.waiting is None else waiting_to_pb(job.waiting),
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
        cpu_seconds=status.cpu_seconds,
        resident_bytes=status.resident_bytes,
        events=map(_event_to_pb, status.events),
        ended=map(_ended_to_pb, status.ended),
    ).SerializeToString()


def status_from_wire(data: bytes) -> model.ReducerStatus:
    """Decode the answer of the Status call.

    Raises:
        MalformedFrame: not a StatusResponse, or a field outside its limits.
    """
    status = parse(pb.StatusResponse, data)
    require("number of StatusResponse.jobs", len(status.jobs), 0, STATUS_JOBS_MAX)
    require("number of StatusResponse.events", len(status.events), 0, EVENTS_MAX)
    require("number of StatusResponse.ended", len(status.ended), 0, ENDED_JOBS_MAX)
    jobs = (
        model.JobStatus(
            job=printable(job.job),
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
            group=printable(job.group),
            planes=model.Planes(job.planes.grpc, job.planes.tcp, job.planes.shared),
            waiting=waiting_from_pb(job.waiting) if job.HasField("waiting") else None,
        )
        for job in status.jobs
    )
    return model.ReducerStatus(
        version=printable(status.version),
        incarnation=status.incarnation,
        uptime_seconds=status.uptime_seconds,
        draining=status.draining,
        memory_reserved_bytes=status.memory_reserved_bytes,
        memory_limit_bytes=status.memory_limit_bytes,
        jobs=tuple(jobs),
        siblings=tuple(status.siblings),
        cpu_seconds=status.cpu_seconds,
        resident_bytes=status.resident_bytes,
        events=tuple(map(_event_from_pb, status.events)),
        ended=tuple(map(_ended_from_pb, status.ended)),
    )


def _event_to_pb(event: model.Event) -> pb.Event:
    return pb.Event(
        number=event.number,
        at_s=event.at_s,
        kind=cast(pb.EventKind, event.kind),
        job=event.job,
        text=event.text,
    )


def _event_from_pb(event: pb.Event) -> model.Event:
    require("length of Event.job", len(event.job.encode()), 0, EVENT_JOB_BYTES_MAX)
    require("length of Event.text", len(event.text), 0, EVENT_CHARS_MAX)
    kind = enum_member("Event.kind", model.EventKind, event.kind)
    return model.Event(event.number, event.at_s, kind, printable(event.job), printable(event.text))


def _ended_to_pb(ended: model.EndedJob) -> pb.EndedJob:
    return pb.EndedJob(
        job=ended.job,
        group=ended.group,
        world_size=ended.world_size,
        id=ended.id,
        outcome=cast(pb.Outcome, ended.outcome),
        collectives=ended.collectives,
        received_bytes=ended.received_bytes,
        sent_bytes=ended.sent_bytes,
        seconds=ended.seconds,
        ago_s=ended.ago_s,
        waited_for=ended.waited_for,
        waited_s=ended.waited_s,
    )


def _ended_from_pb(ended: pb.EndedJob) -> model.EndedJob:
    return model.EndedJob(
        job=printable(ended.job),
        group=printable(ended.group),
        world_size=ended.world_size,
        id=ended.id,
        outcome=enum_member("EndedJob.outcome", model.Outcome, ended.outcome),
        collectives=ended.collectives,
        received_bytes=ended.received_bytes,
        sent_bytes=ended.sent_bytes,
        seconds=ended.seconds,
        ago_s=ended.ago_s,
        waited_for=ended.waited_for,
        waited_s=ended.waited_s,
    )
