"""Why a connection to a reducer fails at TLS: gRPC reports "Socket closed" whatever the reason.

A worker that could not connect does the handshake once more without gRPC. With TLS 1.3 a client has
finished its handshake before the server checks its certificate. So a refusal shows as an end of the
connection where an HTTP/2 server would send its first bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time

from reduction.security.expiry import validity
from reduction.security.tls import TlsFiles

#: Seconds that the handshake and the first byte of the answer may take.
ANSWER_S = 2.0


async def why_refused(address: str, tls: TlsFiles | None, timeout_s: float = ANSWER_S) -> str | None:
    """Return what is wrong with TLS between us and HOST:PORT; None if TLS works, or that cannot be found out."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _handshake(address, tls)
    except (OSError, ValueError):
        # The reducer is away or slow (TimeoutError), the address is not a HOST:PORT, or a file has
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
        return f"it does not speak TLS as we do ({error.reason})"
    try:
        if tls is None:
            return "it wants TLS, and no certificate, private key and CA are set here (REDUCTION_TLS_*)"
        with contextlib.suppress(ConnectionError, ssl.SSLError):  # a reset, or an alert
            if await reader.read(1):
                return None
        return f"it does not accept the certificate {tls.cert}, which must lead to its --tls-ca"
    finally:
        writer.transport.abort()


async def _connect(
    address: str, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    context.set_alpn_protocols(["h2"])
    return await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)


async def _dates_trouble(address: str) -> str:
    """Return what is wrong with the dates of the peer's certificate, with the date, which OpenSSL does not tell.

    Empty if nothing is, or they cannot be read.
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
    """Return a context that accepts any certificate: it only finds out whether the peer speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
