"""A process of its own: strangers on many connections, all at once, each with a first frame as long as a frame may be.

    python flood.py HOST:PORT WAVES

They show no token, and hear in vain. Prints how many calls ended with which status.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import grpc
from reduction import layout, wire
from reduction.model import Collective, DType, Push, ReduceOp

from worker_plugin.transports.grpc_client import METHOD

CONNECTIONS, STREAMS = 8, 32
FRAME = wire.worker_frame_to_wire(
    Push(
        1,
        0,
        0,
        Collective(ReduceOp.SUM, DType.FLOAT32, layout.CHUNK_BYTES_MAX // 4, 7),
        0,
        memoryview(bytes(layout.CHUNK_BYTES_MAX)),
    )
)
OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]


async def stranger(channel: grpc.aio.Channel) -> str:
    call = channel.stream_stream(METHOD)()
    try:
        await call.write(FRAME)
        while await call.read() is not grpc.aio.EOF:
            pass
        code = await call.code()
    except grpc.aio.AioRpcError as error:
        code = error.code()
    return code.name


async def wave(address: str) -> Counter[str]:
    options = [*OPTIONS, ("grpc.enable_http_proxy", 0)]
    channels = [grpc.aio.insecure_channel(address, options) for _ in range(CONNECTIONS)]
    calls = [stranger(channel) for channel in channels for _ in range(STREAMS)]
    answers = Counter(await asyncio.gather(*calls))
    for channel in channels:
        await channel.close()
    return answers


async def main(address: str, waves: int) -> None:
    answers: Counter[str] = Counter()
    for _ in range(waves):
        answers += await wave(address)
    print(*(f"{name}={count}" for name, count in sorted(answers.items())))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
