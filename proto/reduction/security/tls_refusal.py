"""Why a connection to a reducer fails at TLS: gRPC reports "Socket closed" whatever the reason.

Whoever could not connect does the handshake once more by itself. With TLS 1.3 a client is done before its certificate
has been looked at, so a refusal shows as an end where an HTTP/2 server would speak first.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from reduction.security.tls import TlsFiles

#: How long it may take, in seconds.
ANSWER_S = 2.0


async def why_refused(address: str, tls: TlsFiles | None, timeout_s: float = ANSWER_S) -> str | None:
    """Return what is wrong with TLS between us and HOST:PORT; None if it is not that, or cannot be told."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _handshake(address, tls)
    except (OSError, ValueError):
        # Nobody is there, or slow (TimeoutError); no HOST:PORT, or files that changed
        # (ConfigError).
        return None


async def _handshake(address: str, tls: TlsFiles | None) -> str | None:
    host, _, port = address.rpartition(":")
    context = _blind_context() if tls is None else tls.client_context()
    context.set_alpn_protocols(["h2"])
    try:
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not accepted here: {error.verify_message}"
    except ssl.SSLError as error:
        if tls is None or isinstance(error, ssl.SSLEOFError):  # who hangs up may be about to end
            return None
        return f"it does not speak TLS as we do ({error.reason})"
    try:
        if tls is None:
            return "it wants TLS, and no certificate, private key and CA are set here"
        with contextlib.suppress(ConnectionError, ssl.SSLError):  # a reset, or an alert
            if await reader.read(1):
                return None
        return f"it does not accept the certificate {tls.cert}, which must lead to its --tls-ca"
    finally:
        writer.transport.abort()


def _blind_context() -> ssl.SSLContext:
    """Return a context that accepts anything: only whether TLS is spoken is asked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
