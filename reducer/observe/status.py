"""Ask a reducer what it serves, and show it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import grpc
from reduction.model import LastRank, ReducerStatus
from reduction.security.tls import TlsFiles
from reduction.security.tls_refusal import why_refused
from reduction.security.tokens import TokenTable, read_tokens, to_metadata
from reduction.wire import frames as wire
from rich.console import Console
from rich.table import Column, Table

from reducer.transports.grpc_server import SERVICE

PIPE_WIDTH = 240
#: http_proxy and the like are for the web, not for a reducer in this network.
OPTIONS = [("grpc.enable_http_proxy", 0)]
#: Of the ranks that others wait for.
LAST_RANKS = 3


class NoAnswer(Exception):
    """No answer in time, no reducer there, or one that refuses us."""


@dataclass(frozen=True, slots=True)
class Access:
    """What to show to the reducer."""

    tls: TlsFiles | None = None
    tokens: TokenTable | None = None

    @classmethod
    def of(cls, tls: TlsFiles | None, token_file: str | None) -> Access:
        """Read the token file.

        Raises:
            ConfigError: it cannot be used.
        """
        return cls(tls, None if token_file is None else read_tokens(token_file))


def fetch(address: str, timeout_s: float, access: Access) -> ReducerStatus:
    """Return the answer of the reducer at HOST:PORT.

    Raises:
        NoAnswer: there is none; it says why.
        ConfigError: a certificate or private key cannot be used.
        MalformedFrame: an answer that is none.
    """
    metadata = to_metadata(None if access.tokens is None else access.tokens.of_any_job())
    with _channel(address, access.tls) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/Status")
        try:
            data = call(b"", timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            reason = asyncio.run(why_refused(address, access.tls))
            detail = error.details() if isinstance(error, grpc.Call) else error
            raise NoAnswer(reason or detail) from None
    return wire.status_from_wire(data)


def _channel(address: str, tls: TlsFiles | None) -> grpc.Channel:
    if tls is None:
        return grpc.insecure_channel(address, OPTIONS)
    key, cert, ca = tls.read()
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, cert), OPTIONS)


def render(address: str, status: ReducerStatus) -> None:
    """Print a table for people."""
    console = Console(markup=False, highlight=False)  # a job may be called [bold]
    if not console.is_terminal:  # a pipe has no width to fit into
        console.width = PIPE_WIDTH
    state = "draining" if status.draining else "serving"
    console.print(
        f"{address}: {state}, version {status.version}, up {status.uptime_seconds:.0f} s, "
        f"{_mib(status.memory_reserved_bytes)} of {_mib(status.memory_limit_bytes)} MiB reserved"
    )
    table = Table(
        Column("job", overflow="fold"),
        "ranks",
        "epoch",
        "held by all",
        "open slots",
        "chunk KiB",
        "under way KiB",
        "in MiB",
        "out MiB",
        "wait p50/p99 ms",
        Column("last rank: share of chunks", overflow="fold"),
    )
    for job in status.jobs:
        present = sum(peer.presence.name == "PRESENT" for peer in job.peers)
        table.add_row(
            job.title,
            f"{present}/{job.world_size}",
            f"{job.epoch}{'' if job.started else ' (starting)'}",
            str(job.minimum),
            str(job.open_slots),
            str(job.chunk_bytes // 1024),
            str(job.under_way_bytes // 1024),
            _mib(job.received_bytes),
            _mib(job.sent_bytes),
            f"{job.waits.p50_s * 1e3:.1f}/{job.waits.p99_s * 1e3:.1f}",
            _latest(job.last),
        )
    console.print(table if status.jobs else "no jobs")


def _latest(last: tuple[LastRank, ...]) -> str:
    """Return the ranks that were most often the last to push a chunk."""
    chunks = sum(one.chunks for one in last)
    most = sorted(last, key=lambda one: one.chunks, reverse=True)[:LAST_RANKS]
    return ", ".join(f"{one.rank}: {one.chunks / chunks:.0%}" for one in most)


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.1f}"
