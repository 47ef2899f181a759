"""Behaviour specific to a data port with TLS: nothing is sent in clear, and only the call's peer is let in."""

import asyncio
import ssl

import numpy as np
import pytest
from conformance.places import DataConnection, TlsPlace, authority
from reduction.errors import ReducerUnavailable
from reduction.security.tls import TlsFiles
from reduction.transports import tcp
from support.network.certificates import Authority

from reducer.transports.tcp_server import DataPort


async def works(workers):
    for worker in workers:
        worker.push(np.float32([1, 2]))
    for worker in workers:
        assert (await worker.result()).tolist() == [len(workers), 2 * len(workers)]


async def test_streams_move_and_report_tls(tls_place):
    workers = await tls_place.running()
    await works(workers)
    assert {worker.stream.plane for worker in workers} == {"tcp with TLS"}


def certificate_of(files: TlsFiles) -> bytes:
    with open(files.cert, encoding="ascii") as file:
        return ssl.PEM_cert_to_DER_cert(file.read())


async def answer(place, key, context):
    """Send a key on a connection with this TLS context; return the bytes received before the end."""
    try:
        connection = await DataConnection.dial("127.0.0.1", place.data_port.port, context)
        await connection.write(tcp.PREAMBLE + key)
        data = await connection.rest()
    except (ssl.SSLError, ConnectionError):
        return b""
    connection.close()
    return data


async def test_a_key_opens_nothing_for_another_certificate(tls_place, caplog):
    ours, other = (authority().files(name) for name in ("one.example", "two.example"))
    attached = asyncio.Event()

    def attach(channel):
        attached.set()
        channel.close()

    key = tls_place.data_port.offer(attach, certificate_of(ours))
    assert await answer(tls_place, key, other.client_context()) == b""
    assert "its certificate is not that of the call that was offered the key" in caplog.messages[-1]
    # The offer still stands for the peer to which it was made.
    connection = await DataConnection.open("127.0.0.1", tls_place.data_port.port, key, ours.client_context())
    await attached.wait()
    connection.close()


@pytest.mark.parametrize("case", ["in clear", "no certificate", "another CA"])
async def test_peers_without_a_certificate_of_the_ca_get_no_answer(tls_place, tmp_path, caplog, case):
    other = Authority(tmp_path, "other").files()
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.load_verify_locations(authority().ca)
    context = {
        "in clear": None,
        "no certificate": bare,
        "another CA": TlsFiles(other.cert, other.key, authority().ca).client_context(),
    }[case]
    key = tls_place.data_port.offer(lambda channel: pytest.fail("let in"), b"")
    assert tcp.PREAMBLE not in await answer(tls_place, key, context)
    await tls_place.eventually(lambda: "closed a data connection" in caplog.text)
    assert "SSL" in caplog.messages[-1]


class ClearPort(TlsPlace):
    """A place that offers a port that does not speak TLS."""

    async def start(self):
        await super().start()
        self.clear = DataPort()
        self.clear.start("127.0.0.1", 0)
        self.data_port.port = self.clear.port

    async def stop(self):
        self.clear.stop()
        await super().stop()


@pytest.fixture
def clear_port():
    return ClearPort()


async def test_a_worker_with_tls_sends_nothing_in_the_clear(clear_port, caplog):
    worker = clear_port.worker()
    await worker.welcome()
    error = await worker.sink.closed
    assert type(error) is ReducerUnavailable
    assert f"a data port, {clear_port.clear.port}, that cannot be used: " in str(error)
    assert "transport is 'tcp'" in str(error)
    assert "it does not begin as a data connection" in caplog.text


async def test_auto_stays_on_grpc_if_the_port_has_no_tls(clear_port):
    clear_port.is_required = False
    workers = await clear_port.running()
    await works(workers)
    assert {worker.stream.plane for worker in workers} == {""}
