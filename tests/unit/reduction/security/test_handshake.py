"""The reason for a failed TLS connection, against servers of every kind."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from reduction.security.tls import TlsFiles
from reduction.security.tls_refusal import why_refused
from support.network.certificates import Authority

#: The first bytes from an HTTP/2 server: SETTINGS.
HELLO = b"\0\0\0\4\0\0\0\0\0"
NO_FILES = "it requires TLS, but no certificate, private key and CA are set here (REDUCTION_TLS_*)"


def ask(
    tls: TlsFiles | None,
    server: ssl.SSLContext | None,
    speak: Callable[[asyncio.StreamWriter], None],
    timeout_s: float = 10.0,
) -> str | None:
    """Return the reason for a loopback server that runs `speak` on each connection."""

    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        speak(writer)

    async def run() -> str | None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the server's own failure
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


def test_matching_tls_gives_no_reason(server, worker):
    assert ask(worker, server_of(server), says_hello) is None
    assert ask(None, None, says_hello) is None


def test_a_server_that_wants_tls(server):
    assert ask(None, server_of(server), says_hello) == NO_FILES


@pytest.mark.parametrize("greeting", [HELLO, b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_server_without_tls(worker, greeting):
    reason = ask(worker, None, lambda writer: writer.write(greeting)) or ""
    assert reason.startswith("it does not speak TLS the way we do (")


@pytest.mark.parametrize(
    ("demands", "speak"),
    [
        (True, says_hello),  # it sends an alert
        (False, hangs_up),  # like gRPC, which sends no alert but disconnects once it has looked
    ],
)
def test_a_certificate_of_another_ca_is_refused(tmp_path, server, demands, speak):
    stranger = replace(Authority(tmp_path, "other").files(), ca=server.ca)
    reason = ask(stranger, server_of(server, demands=demands), speak)
    assert reason == f"it does not accept the certificate {stranger.cert}, which must chain to its --tls-ca"


@pytest.mark.parametrize(
    ("ca", "name", "text"),
    [
        ("other", "127.0.0.1", "self-signed certificate in "),
        ("ca", "else.example", "IP address mismatch"),
    ],
)
def test_a_server_of_another_ca_or_name(tmp_path, authority, worker, ca, name, text):
    server = (authority if ca == "ca" else Authority(tmp_path, ca)).files(name)
    reason = ask(worker, server_of(server, demands=False), says_hello) or ""
    assert reason.startswith(f"its certificate is not accepted here: {text}")


@pytest.mark.parametrize(("days", "what"), [((-3, -2), "expired on "), ((2, 3), "is not valid before ")])
def test_a_certificate_that_is_out_of_date(authority, server, worker, days, what):
    old = authority.files("127.0.0.1", days=days)
    day = datetime.now(UTC) + timedelta(days=days[1] if days[1] < 0 else days[0])
    theirs, ours = (
        ask(worker, server_of(old), says_hello) or "",
        ask(old, server_of(server), says_hello) or "",
    )
    assert theirs.startswith(f"its certificate is not accepted here: it {what}{day:%Y-%m-%d} ")
    assert ours.startswith(f"our certificate {old.cert} {what}{day:%Y-%m-%d} ")


def test_unreadable_dates_are_not_given_as_the_reason(authority, worker, monkeypatch):
    def no_certificate(der):
        raise IndexError

    monkeypatch.setattr("reduction.security.tls_refusal.validity", no_certificate)
    reason = ask(worker, server_of(authority.files("127.0.0.1", is_expired=True)), says_hello)
    assert reason == "its certificate is not accepted here: certificate has expired"


def test_hanging_up_before_the_handshake_gives_no_reason(worker):
    def ends(writer: asyncio.StreamWriter) -> None:
        writer.write_eof()

    assert ask(worker, None, hangs_up) is None
    assert ask(worker, None, ends) is None


def test_a_silent_server_gives_no_reason(server, worker):
    assert ask(worker, server_of(server), is_silent, timeout_s=0.3) is None
    assert ask(None, None, is_silent, timeout_s=0.1) is None


def test_an_unreachable_server(worker):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert asyncio.run(why_refused(f"127.0.0.1:{port}", worker)) is None
    assert asyncio.run(why_refused("no address", worker)) is None


def test_missing_files_give_no_reason(tmp_path):
    nothing = TlsFiles(*(str(tmp_path / name) for name in ("cert", "key", "ca")))
    assert ask(nothing, None, says_hello) is None
