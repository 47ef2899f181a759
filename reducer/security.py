"""Access control of a reducer by the tokens of its calls."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from reduction.errors import Unauthenticated
from reduction.model import PROTOCOL_VERSION, Join, WorkerFrame
from reduction.security.tokens import TokenTable, from_metadata

if TYPE_CHECKING:
    import grpc

Metadata = Iterable[tuple[str, str | bytes]]


def peer_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Return a call's origin, such as ipv4:10.0.0.1:41234 or ipv6:[::1]:41234, whose brackets gRPC escapes."""
    return unquote(context.peer())


def certificate_of(context: Mapping[str, Iterable[bytes]]) -> bytes:
    """Return the certificate in a call's `auth_context`, in DER; empty without TLS."""
    for pem in context.get("x509_pem_cert", ()):
        return ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))
    return b""


def check_call(tokens: TokenTable | None, metadata: Metadata, peer: str) -> None:
    """Check that a Session call shows the token of some job, before its first frame is read.

    `check_join` checks that it is the token of the job that the frame names.

    Raises:
        Unauthenticated: the call shows no token of any job.
    """
    shown = from_metadata(metadata)
    if tokens is not None and not tokens.knows(shown):
        raise _refusal(
            peer, shown, ": its token_file (REDUCTION_TOKEN_FILE) and this reducer's --token-file must agree"
        )


def check_status(tokens: TokenTable | None, metadata: Metadata, peer: str) -> None:
    """Check that a Status call shows the token of some job.

    Raises:
        Unauthenticated: the call shows no token of any job.
    """
    shown = from_metadata(metadata)
    if tokens is not None and not tokens.knows(shown):
        advice = "pass a --token-file with a line of this reducer's" if shown else "pass --token-file"
        raise _refusal(peer, shown, f" for the status: {advice}")


def check_drain(tokens: TokenTable | None, metadata: Metadata, peer: str) -> None:
    """Check that a Drain call shows a token that may end the reducer for all jobs.

    Raises:
        Unauthenticated: it does not.
    """
    shown = from_metadata(metadata)
    if tokens is not None and not tokens.may_drain(shown):
        raise _refusal(
            peer, shown, " for draining: pass --token-file with the line of `*` that this reducer's has"
        )


def check_lobby(tokens: TokenTable | None, job: str, metadata: Metadata, peer: str) -> None:
    """Check that a Lobby call shows the token of the job that it names.

    Raises:
        Unauthenticated: it does not.
    """
    if tokens is not None and not tokens.admits(job, shown := from_metadata(metadata)):
        raise Unauthenticated(
            f"{peer} shows {'a wrong' if shown else 'no'} token for the lobby of job {job!r}: its token_file and "
            f"this reducer's --token-file must agree on that job's line"
        )


def check_join(tokens: TokenTable | None, frame: WorkerFrame, metadata: Metadata, peer: str) -> WorkerFrame:
    """Check that a Join shows the token of its job, and return it with the name of the token's line.

    The core refuses other frames and versions.

    Raises:
        Unauthenticated: the Join does not show the token of the job that it names.
    """
    if tokens is None or not isinstance(frame, Join) or frame.protocol != PROTOCOL_VERSION:
        return frame
    shown = from_metadata(metadata)
    if not tokens.admits(frame.job, shown):
        raise Unauthenticated(
            f"rank {frame.rank} ({frame.host}, {peer}) shows {'a wrong' if shown else 'no'} token for job "
            f"{frame.job!r}: its token_file (REDUCTION_TOKEN_FILE) and this reducer's --token-file must agree on that "
            f"job's line"
        )
    return replace(frame, admitted_by=tokens.line_of(frame.job))


def _refusal(peer: str, shown: str, advice: str) -> Unauthenticated:
    return Unauthenticated(f"{peer} shows {'a wrong' if shown else 'no'} token{advice}")
