"""Whether our own certificate can still be used: a TLS handshake with ourselves, in memory.

A peer that refuses a certificate only ends the connection, and does not say that it has expired.
"""

from __future__ import annotations

import ssl

from reduction.security.tls import TlsFiles

#: Messages of a handshake go to and fro so often at most.
_TURNS = 10


def own_certificate_trouble(files: TlsFiles) -> str:
    """Return what OpenSSL has against our certificate; empty if nothing, or if it is of another CA than ours.

    Raises:
        ConfigError: a file cannot be used.
    """
    client_context = files.client_context()
    client_context.check_hostname = False
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(files.cert, files.key)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(down, up)
    server = server_context.wrap_bio(up, down, server_side=True)
    for _ in range(_TURNS):
        try:
            client.do_handshake()
            return ""
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as error:
            return (
                error.verify_message
                if "expired" in error.verify_message or "yet" in error.verify_message
                else ""
            )
        try:
            server.do_handshake()
        except ssl.SSLError:
            pass
    return ""
