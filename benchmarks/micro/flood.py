"""Strangers that send frames of the largest size on many connections at once, and a job beside them.

    python -m benchmarks.micro.flood HOST:PORT WAVES     # the strangers, which have no token
    python -m benchmarks.micro.flood                     # a job with and without strangers, in turn

The first form prints how many calls ended with which status. The second one prints how long a sum
takes with and without strangers. It has 2 ranks and 1 reducer on loopback. The strangers run at the
lowest priority, because in reality they would have machines of their own.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections import Counter

import grpc
from reduction import limits, wire
from reduction.model import Collective, DType, Push, ReduceOp

from benchmarks.lab.cluster import Shape, running
from benchmarks.lab.ending import ending_well
from benchmarks.loads.all_reduce import AllReduce
from benchmarks.method.paired import LEAD_S
from benchmarks.method.records import quartiles
from worker_plugin.transports.grpc_client import METHOD

CONNECTIONS, STREAMS = 8, 32
#: Elements of a sum of the job, its sums in a turn, and the turns that count.
NUMEL, SUMS, TURNS = 4 << 20, 12, 9
FRAME = wire.worker_frame_to_wire(
    Push(
        1,
        0,
        0,
        Collective(ReduceOp.SUM, DType.FLOAT32, limits.CHUNK_BYTES_MAX // 4, 7),
        0,
        memoryview(bytes(limits.CHUNK_BYTES_MAX)),
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


async def flood(address: str, waves: int) -> None:
    """Send waves one after the other, and print the status codes."""
    answers: Counter[str] = Counter()
    for _ in range(waves):
        answers += await wave(address)
    print(*(f"{name}={count}" for name, count in sorted(answers.items())))


def compare() -> None:
    """Print how long a sum takes beside strangers, and without them."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with ending_well("flood"), running(Shape(workers=2, reducers=1)) as cluster:
        cluster.ranks.load(AllReduce, NUMEL, SUMS)
        command = [
            "nice",
            "-n",
            "19",
            sys.executable,
            "-m",
            "benchmarks.micro.flood",
            cluster.reducers.addresses[0],
        ]
        for turn in range(1 + TURNS):
            for is_flooded in (False, True):
                strangers = subprocess.Popen([*command, "1000000"]) if is_flooded else None
                try:
                    time.sleep(LEAD_S)
                    cluster.ranks.call("prepare")
                    samples = cluster.ranks.call("run", "tcp", time.perf_counter() + LEAD_S)
                    cluster.ranks.call("verify")
                finally:
                    if strangers is not None:
                        strangers.kill()
                        strangers.wait()
                if turn:
                    seconds[is_flooded].append(max(sum(sample.seconds) for sample in samples) / SUMS)
    for is_flooded, name in ((False, "alone"), (True, "beside strangers")):
        low, middle, high = quartiles(seconds[is_flooded])
        print(f"{name}: {middle * 1e3:.1f} ms ({low * 1e3:.1f} to {high * 1e3:.1f})")
    slower = [flooded / alone for alone, flooded in zip(seconds[False], seconds[True], strict=True)]
    print(f"times as long, median of neighbouring turns: {statistics.median(slower):.2f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(flood(sys.argv[1], int(sys.argv[2])))
    else:
        compare()
