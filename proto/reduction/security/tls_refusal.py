"""Find out why TLS to a reducer fails, because gRPC always reports "Socket closed".

A worker that could not connect repeats the handshake without gRPC. With TLS 1.3 a client finishes its
handshake before the server checks its certificate. So after a refusal the connection ends where an
HTTP/2 server would send its first bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time

from reduction.security.certificate_dates import validity
from reduction.security.tls import TlsFiles

#: Timeout for the handshake and the first byte of the answer, in seconds.
ANSWER_S = 2.0


async def why_refused(address: str, tls: TlsFiles | None, timeout_s: float = ANSWER_S) -> str | None:
    """Return why TLS to HOST:PORT fails; None if it works, or if the reason cannot be found."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _handshake(address, tls)
    except (OSError, ValueError):
        # The reducer is down or slow (TimeoutError), the address is not HOST:PORT, or a file has
        # changed (ConfigError).
        return None


async def _handshake(address: str, tls: TlsFiles | None) -> str | None:
    if tls is not None and (trouble := tls.trouble()):
        return trouble
    context = _blind_context() if tls is None else tls.client_context()
    try:
        reader, writer = await _connect(address, context)
    except ssl.SSLCertVerificationError as error:
        why = await _dates_trouble(address) or error.verify_message
        return f"its certificate is not accepted here: {why}"
    except ssl.SSLError as error:
        if tls is None or isinstance(error, ssl.SSLEOFError):  # the peer may be about to end
            return None
        return f"it does not speak TLS the way we do ({error.reason})"
    try:
        if tls is None:
            return "it requires TLS, but no certificate, private key and CA are set here (REDUCTION_TLS_*)"
        with contextlib.suppress(ConnectionError, ssl.SSLError):  # a reset, or an alert
            if await reader.read(1):
                return None
        return f"it does not accept the certificate {tls.cert}, which must chain to its --tls-ca"
    finally:
        writer.transport.abort()


async def _connect(
    address: str, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    context.set_alpn_protocols(["h2"])
    return await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)


async def _dates_trouble(address: str) -> str:
    """Return why the peer's certificate is not valid now, with the date, which OpenSSL does not report.

    Empty if it is valid, or its dates cannot be read.
    """
    try:
        async with asyncio.timeout(ANSWER_S / 2):
            _, writer = await _connect(address, _blind_context())
            try:
                der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            finally:
                writer.transport.abort()
        trouble = validity(der).trouble(time.time())
    except (OSError, ValueError, IndexError):
        return ""
    return trouble and f"it {trouble}"


def _blind_context() -> ssl.SSLContext:
    """Return a context that accepts any certificate, and so only tests whether the peer speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
