"""Messages between a rank and its I/O process survive their trip through JSON unchanged."""

from __future__ import annotations

import dataclasses
import json

import pytest
from reduction.client.access import OPEN
from reduction.errors import CollectiveTimeout, ConfigError, WorkerFailed
from reduction.limits import MEMBERS_MAX
from reduction.model import Collective, DType, NamedReducers, Place, ReduceOp

from worker_plugin.core.events import Broke, Close, Connect, Leave, NoFallback, Tick
from worker_plugin.core.flow.credit import GRPC
from worker_plugin.core.identity import Identity
from worker_plugin.driver import Start
from worker_plugin.io_process import messages
from worker_plugin.io_process.channel import MESSAGE_BYTES_MAX
from worker_plugin.timeline.recorder import Progress
from worker_plugin.timeline.totals import Totals
from worker_plugin.transports.security import private_access

IDENTITY = Identity(
    job="night-run",
    group="rows",
    instance=bytes(range(16)),
    nonce=bytes(range(16, 32)),
    host="host, global rank 3",
    rank=1,
    world_size=4,
    chunk_bytes=None,
    credit_bytes=1 << 20,
    target=GRPC,
    timeout_s=600.0,
    stall_warn_s=5.0,
    join_timeout_s=60.0,
    close_timeout_s=5.0,
    wire_dtype=DType.TOPK,
    place=Place(bytes(16), 25_000),
    uses_data_ports=True,
)


def through(value):
    return json.loads(json.dumps(value))


def test_everything_that_a_driver_needs_arrives():
    private = {"10.0.0.6:50051": private_access("secret")}
    sources = {"dns:h:1": ("h:1",), "file:/x": ("10.0.0.5:50051",)}
    named = NamedReducers("10.0.0.5:50051, h:1", 2)
    identity = dataclasses.replace(IDENTITY, named=named, run="today")
    start = Start(identity, ("10.0.0.5:50051", "h:1"), sources, "auto", OPEN, private)
    again = messages.start_from_json(through(messages.start_to_json(start)))
    assert again == start
    assert again.private["10.0.0.6:50051"].metadata == private["10.0.0.6:50051"].metadata


def test_the_start_of_the_largest_job_fits():
    addresses = tuple(
        f"reducer-{number}.a-namespace.svc.cluster.local:50051" for number in range(MEMBERS_MAX)
    )
    start = Start(IDENTITY, addresses, {}, "auto", OPEN, {})
    assert len(json.dumps(["begin", messages.start_to_json(start)])) < MESSAGE_BYTES_MAX


def test_missing_certificates_are_an_error_that_names_their_path(tmp_path):
    item = [[str(tmp_path / name) for name in ("cert", "key", "ca")], []]
    with pytest.raises(ConfigError, match="key"):
        messages.access_from_json(item)


@pytest.mark.parametrize("event", [Connect(), Close(), Leave(7)])
def test_events_arrive(event):
    assert messages.event_from_json(through(messages.event_to_json(event))) == event


@pytest.mark.parametrize("kind", [Broke, NoFallback])
def test_errors_keep_their_type_and_text(kind):
    event = messages.event_from_json(through(messages.event_to_json(kind(CollectiveTimeout("seq 3")))))
    assert type(event) is kind
    assert type(event.error) is CollectiveTimeout
    assert str(event.error) == "seq 3"
    long = messages.error_from_json(messages.error_to_json(WorkerFailed("x" * MESSAGE_BYTES_MAX)))
    assert str(long) == "x" * messages.TEXT_MAX


def test_unsupported_events_raise():
    with pytest.raises(TypeError, match="Tick"):
        messages.event_to_json(Tick())
    with pytest.raises(ValueError, match="Tick"):
        messages.event_from_json(["Tick"])


def test_a_collective_arrives():
    collective = Collective(ReduceOp.AVG, DType.BFLOAT16, 1 << 40, (1 << 64) - 1)
    again = messages.collective_from_json(through(messages.collective_to_json(collective)))
    assert again == collective
    assert (type(again.op), type(again.dtype)) == (ReduceOp, DType)


def test_progress_arrives():
    collective = Collective(ReduceOp.SUM, DType.FLOAT32, 100, 0)
    there, here = Progress(3, collective, Totals(bytes_pushed=7, epochs=2)), Progress(3, collective, Totals())
    there.taken, there.whole = 1.0, 5.0
    there.on_push(0, 100)
    there.on_push(2, 300)
    there.whole = None
    there.on_result(2)
    there.whole = 5.0
    messages.fill(here, through(messages.progress_to_json(there)))
    here.issued, here.done = there.issued, there.done
    addresses = {0: "a:1", 2: "b:2"}
    assert here.span(addresses) == there.span(addresses)
    assert here.unpushed == 0
    assert (here.totals.bytes_pushed, here.totals.epochs) == (7, 2)
