"""Asks reducers what they serve, for the report of rank 0; see `Status` in proto/README.md."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc
from reduction import wire
from reduction.client.access import Access
from reduction.client.grpc_client import OPTIONS
from reduction.errors import MalformedFrame
from reduction.model import ReducerStatus
from reduction.v1 import reduction_pb2 as pb

METHOD = f"/{pb.DESCRIPTOR.services_by_name['Reduction'].full_name}/Status"
#: How long an answer may take, in seconds.
ANSWER_S = 5.0


async def ask(accesses: Mapping[str, Access]) -> dict[str, ReducerStatus]:
    """Return the answers of the reducers at these addresses, without those that did not answer."""
    answers = await asyncio.gather(*(_ask(address, access) for address, access in accesses.items()))
    return {address: answer for address, answer in zip(accesses, answers, strict=True) if answer is not None}


async def _ask(address: str, access: Access) -> ReducerStatus | None:
    channel = (
        grpc.aio.insecure_channel(address, options=OPTIONS)
        if access.credentials is None
        else grpc.aio.secure_channel(address, access.credentials, options=OPTIONS)
    )
    try:
        method: Any = channel.unary_unary(METHOD)
        return wire.status_from_wire(await method(b"", timeout=ANSWER_S, metadata=access.metadata))
    except (grpc.RpcError, MalformedFrame):  # it may be gone, or not let this rank ask
        return None
    finally:
        await channel.close()
