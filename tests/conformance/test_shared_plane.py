"""Behaviour specific to shared memory: a lying peer, results that are still being read, and falling back."""

import array
import asyncio
import errno
import gc
import logging
import os
import socket
from types import SimpleNamespace

import numpy as np
import pytest
from conformance.places import L, P
from reduction import layout, wire
from reduction.model import Abort, Collective, DType, Moved, Push, ReduceOp, Start
from reduction.process.place import local_socket
from reduction.transports import tcp
from reduction.transports.shared import peer
from reduction.transports.shared.sharing import _PLACE, PLACE_BYTES

from reducer.core.fair_shares import Account
from reducer.transports import tcp_server

#: Elements of a collective whose first chunk has 1 MiB.
NUMEL = 1 << 21


async def works(workers, seq=0):
    for worker in workers:
        worker.push(np.float32([1, 2]), seq)
    for worker in workers:
        assert (await worker.result(seq)).tolist() == [len(workers), 2 * len(workers)]


def is_local(worker):
    connection = worker.stream._connection
    return connection is not None and connection._socket.family == socket.AF_UNIX


async def test_payloads_are_not_sent(shared_place):
    workers = await shared_place.running(credit=64 << 20, chunk_bytes=1 << 20)
    assert all(map(is_local, workers))
    before = shared_place.engine.pool.memory
    for worker in workers:
        worker.push(np.ones(1 << 18, np.float32), numel=NUMEL)
    for worker in workers:
        assert (await worker.result()).tolist() == [2.0] * (1 << 18)
    assert before.is_wanted
    regions = [worker.stream._sharing._peer._regions for worker in workers]
    assert all(len(known) == 1 for known in regions), "each has seen the reducer's region"


async def test_a_region_no_longer_in_use_is_forgotten_by_the_peer(shared_place):
    workers = await shared_place.running(credit=64 << 20, chunk_bytes=1 << 20)
    for seq in range(3):
        await shared_place.eventually(lambda: True)
        for worker in workers:
            worker.push(np.ones(1 << 18, np.float32), seq, numel=NUMEL)
        for worker in workers:
            await worker.result(seq)
        gc.collect()
    sessions = [found for found in gc.get_objects() if type(found) is tcp_server.DataSession]
    known = [len(session._sharing._peer._regions) for session in sessions if session._sharing is not None]
    assert max(known) <= 3, "the counter's region, the present one, perhaps the one before"


class Liar:
    """A rank that has moved to the UNIX socket and sends whatever a test asks for."""

    def __init__(self, place):
        self.place = place

    async def moved(self):
        """Join as rank 1, move, and send Hello."""
        place = self.place
        self.call = place.call()
        self.worker = place.worker(1, is_deaf=True)
        self.worker.stream.close()
        joined = []
        self.worker.stream = type("Stream", (), {"send": joined.append, "wait_closed": _nothing})()
        self.worker.join()
        await self.call.write(wire.worker_frame_to_wire(joined.pop()))
        welcome = wire.reducer_frame_from_wire(await self.call.read())
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.socket, local_socket(welcome.incarnation))
        await loop.sock_sendall(self.socket, tcp.PREAMBLE + welcome.data_key)
        assert await loop.sock_recv(self.socket, len(tcp.PREAMBLE)) == tcp.PREAMBLE
        await loop.sock_sendall(self.socket, tcp.PREAMBLE)
        await self.call.write(wire.worker_frame_to_wire(Moved()))
        self.worker.hello()
        data = wire.worker_frame_to_wire(joined.pop())
        self.send(tcp.control_header(data) + data)
        return self

    def send(self, data, *descriptors):
        rights = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        )
        self.socket.sendmsg([data], rights)

    def close(self):
        self.socket.close()
        self.call.cancel()


async def _nothing(*_):
    return None


def push_at(number, offset, nbytes=8):
    collective = Collective(ReduceOp.SUM, DType.FLOAT32, 2, layout.fingerprint([2]))
    push = Push(1, 0, 0, collective, 0, memoryview(bytes(8)))
    return tcp.push_header(push, PLACE_BYTES) + _PLACE.pack(number, nbytes, offset)


def region(number):
    return tcp.region_header(tcp.SHOW, number)


def unsealed():
    descriptor = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 4096)
    return descriptor


LIES = {
    "no region": lambda liar: liar.send(push_at(1, 0)),
    "no descriptor": lambda liar: liar.send(region(1)),
    "a region that can shrink": lambda liar: liar.send(region(1), unsealed()),
    "a pipe": lambda liar: liar.send(region(1), os.pipe()[0]),
    "many descriptors": lambda liar: liar.send(region(1), *(unsealed() for _ in range(20))),
    "a place that is too long": lambda liar: liar.send(tcp.counter_header(4096)),
    "a counter of 4096 bytes": lambda liar: liar.send(
        tcp.counter_header(PLACE_BYTES) + _PLACE.pack(1, 4096, 0)
    ),
    "a payload that is too long": lambda liar: liar.send(push_at(1, 0, (4 << 20) + 1)),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_ends_only_its_own_job(shared_place, lie):
    honest = await shared_place.running(job="other")
    reader = shared_place.worker(0)
    await reader.welcome()
    liar = await Liar(shared_place).moved()
    reader.hello()
    await reader.next(Start)
    LIES[lie](liar)
    abort = await reader.next(Abort)
    assert "rank 1" in abort.message
    await works(honest)
    liar.close()


async def test_on_tcp_nothing_is_shared(tcp_place):
    worker = tcp_place.worker(0, world_size=1)
    await worker.welcome()
    worker.hello()
    await worker.next(Start)
    worker.stream._connection.send(push_at(1, 0), b"")
    assert "which this side does not accept" in (await worker.next(Abort)).message


async def test_memory_that_is_being_read_is_not_used_again(shared_place):
    """Close a stream whose rank may still be copying a result."""
    pool = shared_place.engine.pool
    workers = await shared_place.running(credit=64 << 20, chunk_bytes=1 << 20)
    stopped = workers[1].stream
    stopped._connection._loop.remove_reader(stopped._connection._fd)
    for worker in workers:
        worker.push(np.ones(1 << 18, np.float32), numel=NUMEL)
    await workers[0].result()
    workers[1].stream.close()
    await workers[0].peers(P, L)
    gc.collect()
    kept = pool.kept_bytes
    assert kept < 1 << 20, f"{kept} bytes would be written to while rank 1 reads them"


async def test_a_host_without_the_socket_uses_tcp_and_logs_it_once(shared_place, caplog):
    caplog.set_level(logging.INFO)
    listener = shared_place.data_port._listeners.pop()
    asyncio.get_running_loop().remove_reader(listener.fileno())
    listener.close()
    workers = await shared_place.running()
    assert not any(map(is_local, workers))
    assert all(worker.stream.descriptor >= 0 for worker in workers)
    await works(workers)
    said = [text for text in caplog.messages if "no memory is shared with it" in text]
    assert len(said) == len(workers), said


async def test_where_regions_are_forbidden_payloads_are_sent(shared_place, monkeypatch, caplog):
    caplog.set_level(logging.INFO)

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    workers = await shared_place.running()
    assert all(map(is_local, workers))
    await works(workers)
    assert any("Operation not permitted" in text for text in caplog.messages)


@pytest.mark.parametrize("unshared_s", [1000.0, 0.0])
async def test_a_job_whose_region_cannot_be_mapped_uses_tcp_for_a_while(
    shared_place, monkeypatch, unshared_s
):

    def refuse(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(tcp_server, "UNSHARED_S", unshared_s)
    with monkeypatch.context() as patch:
        patch.setattr(peer, "mmap", SimpleNamespace(mmap=refuse, MAP_SHARED=1, PROT_READ=1))
        cut = shared_place.worker()
        await cut.welcome()
        assert await cut.sink.closed is not None
    with socket.socket(socket.AF_UNIX) as thief, pytest.raises(OSError, match="Address already in use"):
        thief.bind(local_socket(shared_place.engine.jobs.incarnation))  # workers would send it their keys
    await shared_place.eventually(lambda: bool(unshared_s) == bool(shared_place.data_port._unshared))
    for job, is_shared in (("job", not unshared_s), ("other", True)):
        workers = await shared_place.running(job=job)
        assert [is_local(worker) for worker in workers] == [is_shared] * 2
        await works(workers)


async def test_memory_with_holes_is_not_read_and_its_job_continues_over_tcp(shared_place, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda descriptor, _, nbytes: os.ftruncate(descriptor, nbytes))
        cut = shared_place.worker()
        await cut.welcome()
        assert await cut.sink.closed is not None
    assert shared_place.data_port._unshared == {"job"}
    assert shared_place.engine.mapped.memory.taken == 0
    workers = await shared_place.running()
    assert not any(map(is_local, workers))
    await works(workers)


async def test_a_job_that_has_mapped_its_share_uses_tcp_while_others_share_memory(shared_place):
    mapped = shared_place.engine.mapped
    mapped.memory.limit = 64 << 20
    mapped.charge(Account("job"), 48 << 20)
    cut = shared_place.worker()
    await cut.welcome()
    assert await cut.sink.closed is not None
    for job, is_shared in (("job", False), ("other", True)):
        workers = await shared_place.running(job=job)
        assert [is_local(worker) for worker in workers] == [is_shared] * 2
        await works(workers)


async def test_a_worker_that_cannot_map_a_region_uses_tcp_the_next_time(shared_place, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    workers = await shared_place.running(credit=64 << 20, chunk_bytes=1 << 20)
    stream = workers[0].stream
    stream._connection.close(tcp.CannotShare("no descriptor is left"))
    assert stream._endpoint.memory is None
    assert "no memory is shared with it: no descriptor is left" in caplog.text
    assert "no descriptor is left" in str(await workers[0].sink.closed)
