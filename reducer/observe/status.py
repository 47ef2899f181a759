"""Query the status of reducers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import grpc
from reduction import wire
from reduction.errors import ConfigError, MalformedFrame
from reduction.model import ReducerStatus
from reduction.security.tls import TlsFiles
from reduction.security.tls_refusal import why_refused
from reduction.security.tokens import TokenTable, read_tokens, to_metadata
from reduction.text import printable
from reduction.transports.grpc_reasons import plain, shorter

from reducer.observe.summary import Process
from reducer.transports.grpc_server import SERVICE

#: Proxies such as http_proxy are for the web, not for a reducer on this network.
OPTIONS = [("grpc.enable_http_proxy", 0)]
#: Maximum number of processes that are queried at a time.
LOOKS_AT_A_TIME = 32


class NoAnswer(Exception):
    """There was no answer in time, there is no reducer, or it refused the call."""


@dataclass(frozen=True, slots=True)
class StatusAccess:
    """The certificates and the token of a Status or Drain call."""

    tls: TlsFiles | None = None
    tokens: TokenTable | None = None

    @classmethod
    def of(cls, tls: TlsFiles | None, token_file: str | None) -> StatusAccess:
        """Read the token file.

        Raises:
            ConfigError: the file cannot be used.
        """
        return cls(tls, None if token_file is None else read_tokens(token_file))

    def metadata_of(self, job: str) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a rank of this job.

        Raises:
            ConfigError: the token file has no line for the job.
        """
        token = None if self.tokens is None else self.tokens.of(job)
        if self.tokens is not None and token is None:
            raise ConfigError(
                f"the token file has no line for job {job!r}, and none for '*': name a job that it has (--job)"
            )
        return to_metadata(token)


def fetch(address: str, timeout_s: float, access: StatusAccess) -> ReducerStatus:
    """Return the answer of the reducer at HOST:PORT.

    Raises:
        NoAnswer: there was no answer; the text has the reason.
        ConfigError: a certificate or private key cannot be used.
        MalformedFrame: the answer is not a valid status.
    """
    return wire.status_from_wire(call("Status", address, timeout_s, access))


def call(method: str, address: str, timeout_s: float, access: StatusAccess) -> bytes:
    """Call a method with an empty request, and return its answer.

    Raises:
        NoAnswer: there was no answer; the text has the reason.
        ConfigError: a certificate or private key cannot be used.
    """
    metadata = to_metadata(None if access.tokens is None else access.tokens.of_any_job())
    with channel_to(address, access.tls) as channel:
        function: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/{method}")
        try:
            return function(b"", timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            if not isinstance(error, grpc.Call):
                raise NoAnswer(printable(str(error))) from None
            # A TLS refusal comes immediately, so a timeout is something else.
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            reason = None if is_late else asyncio.run(why_refused(address, access.tls))
            details = printable(str(error.details()))
            raise NoAnswer(reason or plain(details) or shorter(details)[0]) from None


def channel_to(address: str, tls: TlsFiles | None) -> grpc.Channel:
    """Return a channel to the reducer at HOST:PORT. The caller closes it.

    Raises:
        ConfigError: a certificate or private key cannot be used.
    """
    if tls is None:
        return grpc.insecure_channel(address, OPTIONS)
    key, cert, ca = tls.read()
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, cert), OPTIONS)


def look(addresses: Sequence[str], timeout_s: float, access: StatusAccess) -> list[Process]:
    """Query the reducers at these addresses, and then their siblings. No process appears twice.

    Raises:
        ConfigError: a certificate or private key cannot be used.
    """
    with ThreadPoolExecutor(LOOKS_AT_A_TIME) as pool:
        given = list(pool.map(lambda address: look_at(address, timeout_s, access), dict.fromkeys(addresses)))
        beside = dict.fromkeys(
            f"{process.address.rpartition(':')[0]}:{port}"
            for process in given
            if process.status is not None
            for port in process.status.siblings
        )
        named = {process.address for process in given}
        others = [address for address in beside if address not in named]
        siblings = pool.map(
            lambda address: replace(look_at(address, timeout_s, access), is_given=False), others
        )
        return _unique([*given, *siblings])


def look_at(address: str, timeout_s: float, access: StatusAccess) -> Process:
    """Query one process.

    Raises:
        ConfigError: a certificate or private key cannot be used.
    """
    try:
        return Process(address, fetch(address, timeout_s, access))
    except NoAnswer as error:
        return Process(address, None, str(error))
    except MalformedFrame as error:
        return Process(address, None, f"its answer is not a valid status: {error}")


def _unique(processes: Sequence[Process]) -> list[Process]:
    """Remove duplicates of processes that answered at two addresses, such as localhost and 127.0.0.1."""
    seen: set[bytes] = set()
    unique = []
    for process in processes:
        incarnation = b"" if process.status is None else process.status.incarnation
        if incarnation not in seen:
            unique.append(process)
        if incarnation:
            seen.add(incarnation)
    return unique
