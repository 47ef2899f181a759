"""Asks reducers for their status, for rank 0's report; see `Status` in proto/README.md."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc
from reduction import wire
from reduction.client.access import Access
from reduction.client.grpc_client import METHOD, GrpcEndpoint
from reduction.errors import MalformedFrame
from reduction.model import ReducerStatus

STATUS_METHOD = METHOD.replace("Session", "Status")
#: How long an answer may take, in seconds.
ANSWER_S = 5.0


async def ask(accesses: Mapping[str, Access]) -> dict[str, ReducerStatus]:
    """Return the answers of the reducers at these addresses, without those that did not answer."""
    answers = await asyncio.gather(*(_ask(address, access) for address, access in accesses.items()))
    return {address: answer for address, answer in zip(accesses, answers, strict=True) if answer is not None}


async def _ask(address: str, access: Access) -> ReducerStatus | None:
    endpoint = GrpcEndpoint(address, access)
    try:
        method: Any = endpoint.channel().unary_unary(STATUS_METHOD)
        return wire.status_from_wire(await method(b"", timeout=ANSWER_S, metadata=access.metadata))
    except (grpc.RpcError, MalformedFrame):  # it may be gone, or may not allow this rank to ask
        return None
    finally:
        await endpoint.close()
