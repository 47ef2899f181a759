"""Why a connection fails at TLS, against servers of every kind."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from reduction.security.tls import TlsFiles
from reduction.security.tls_refusal import why_refused
from support.network.certificates import Authority

#: What an HTTP/2 server says first: SETTINGS.
HELLO = b"\0\0\0\4\0\0\0\0\0"
NO_FILES = "it wants TLS, and no certificate, private key and CA are set here (REDUCTION_TLS_*)"


def ask(
    tls: TlsFiles | None,
    server: ssl.SSLContext | None,
    speak: Callable[[asyncio.StreamWriter], None],
    timeout_s: float = 10.0,
) -> str | None:
    """Return the reason of a server on loopback that does `speak` with each connection."""

    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        speak(writer)

    async def run() -> str | None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the server's own trouble
        async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server) as listener:
            port = listener.sockets[0].getsockname()[1]
            reason = await why_refused(f"127.0.0.1:{port}", tls, timeout_s)
            for writer in writers:
                writer.transport.abort()
        return reason

    return asyncio.run(run())


def server_of(files: TlsFiles, *, demands: bool = True) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    context.load_verify_locations(files.ca)
    context.verify_mode = ssl.CERT_REQUIRED if demands else ssl.CERT_NONE
    return context


def says_hello(writer: asyncio.StreamWriter) -> None:
    writer.write(HELLO)


def hangs_up(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def is_silent(writer: asyncio.StreamWriter) -> None:
    pass


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def server(authority):
    return authority.files("127.0.0.1")


@pytest.fixture
def worker(authority):
    return authority.files()


def test_nothing_is_wrong(server, worker):
    assert ask(worker, server_of(server), says_hello) is None


def test_nothing_is_wrong_in_clear():
    assert ask(None, None, says_hello) is None


def test_a_server_that_wants_tls(server):
    assert ask(None, server_of(server), says_hello) == NO_FILES


@pytest.mark.parametrize("greeting", [HELLO, b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_server_without_tls(worker, greeting):
    reason = ask(worker, None, lambda writer: writer.write(greeting))
    assert reason is not None
    assert reason.startswith("it does not speak TLS as we do (")


def test_a_certificate_of_another_ca_is_refused_by_an_alert(tmp_path, server):
    stranger = TlsFiles(*_stranger(tmp_path), server.ca)
    reason = ask(stranger, server_of(server), says_hello)
    assert reason == f"it does not accept the certificate {stranger.cert}, which must lead to its --tls-ca"


def test_a_certificate_of_another_ca_is_refused_by_an_end(tmp_path, server):
    """As gRPC does, which sends no alert: a server that hangs up once it has looked."""
    stranger = TlsFiles(*_stranger(tmp_path), server.ca)
    reason = ask(stranger, server_of(server, demands=False), hangs_up)
    assert reason == f"it does not accept the certificate {stranger.cert}, which must lead to its --tls-ca"


def _stranger(tmp_path) -> tuple[str, str]:
    files = Authority(tmp_path, "other").files()
    return files.cert, files.key


def test_a_server_of_another_ca(tmp_path, worker):
    server = Authority(tmp_path, "other").files("127.0.0.1")
    reason = ask(worker, server_of(server, demands=False), says_hello)
    assert reason is not None
    assert reason.startswith("its certificate is not accepted here: self-signed certificate in ")


def test_a_server_of_another_name(authority, worker):
    server = authority.files("else.example")
    reason = ask(worker, server_of(server), says_hello)
    assert reason is not None
    assert reason.startswith("its certificate is not accepted here: IP address mismatch")


@pytest.mark.parametrize(
    ("days", "what"), [((-3, -2), "it expired on "), ((2, 3), "it is not valid before ")]
)
def test_a_server_whose_certificate_is_out_of_date(authority, worker, days, what):
    reason = ask(worker, server_of(authority.files("127.0.0.1", days=days)), says_hello)
    day = datetime.now(UTC) + timedelta(days=days[1] if days[1] < 0 else days[0])
    assert reason is not None
    assert reason.startswith(f"its certificate is not accepted here: {what}{day:%Y-%m-%d} ")


@pytest.mark.parametrize(("days", "what"), [((-3, -2), "expired on "), ((2, 3), "is not valid before ")])
def test_our_own_certificate_is_out_of_date(authority, server, days, what):
    ours = authority.files(days=days)
    reason = ask(ours, server_of(server), says_hello)
    day = datetime.now(UTC) + timedelta(days=days[1] if days[1] < 0 else days[0])
    assert reason is not None
    assert reason.startswith(f"our certificate {ours.cert} {what}{day:%Y-%m-%d} ")


def test_dates_that_cannot_be_read_are_not_the_reason(authority, worker, monkeypatch):
    def no_certificate(der):
        raise IndexError

    monkeypatch.setattr("reduction.security.tls_refusal.validity", no_certificate)
    reason = ask(worker, server_of(authority.files("127.0.0.1", is_expired=True)), says_hello)
    assert reason == "its certificate is not accepted here: certificate has expired"


def test_who_hangs_up_before_the_handshake_may_be_about_to_end(worker):
    def ends(writer: asyncio.StreamWriter) -> None:
        writer.write_eof()

    assert ask(worker, None, hangs_up) is None
    assert ask(worker, None, ends) is None


def test_who_does_not_answer_in_time(server, worker):
    assert ask(worker, server_of(server), is_silent, timeout_s=0.3) is None
    assert ask(None, None, is_silent, timeout_s=0.1) is None


def test_nobody_there(worker):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert asyncio.run(why_refused(f"127.0.0.1:{port}", worker)) is None
    assert asyncio.run(why_refused("no address", worker)) is None


def test_files_that_are_gone(tmp_path):
    nothing = TlsFiles(*(str(tmp_path / name) for name in ("cert", "key", "ca")))
    assert ask(nothing, None, says_hello) is None
