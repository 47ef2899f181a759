"""What one TCP stream carries over a shaped link, by iperf3: the ceiling of everything else."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Sequence

from benchmarks.lab.hosts import Host

#: Measured, after one second that does not count: TCP must find the rate first.
SECONDS = 2
PORT = 5201
TIMEOUT_S = 30

_READY = b"Server listening"


def goodput_mbit(worker: Host, reducer: Host) -> float | None:
    """Return Mbit/s of payload, the better of both directions; None if iperf3 is not installed.

    Links are alike, so what lies below the better one is the machine's load, and no ceiling.

    Raises:
        RuntimeError: iperf3 failed.
    """
    if shutil.which("iperf3") is None:
        return None
    return max(_stream(worker, reducer, direction) for direction in ([], ["--reverse"]))


def _stream(client: Host, server: Host, direction: Sequence[str]) -> float:
    # --one-off ends the server after the client, and timeout(1) without one.
    serve = [
        "timeout",
        f"{TIMEOUT_S}",
        "iperf3",
        "--server",
        "--one-off",
        "--port",
        f"{PORT}",
        "--forceflush",
    ]
    connect = ["iperf3", "--client", server.address, "--port", f"{PORT}", "--json", *direction]
    connect += ["--time", f"{SECONDS}", "--omit", "1"]
    with subprocess.Popen([*server.prefix, *serve], stdout=subprocess.PIPE) as listening:
        try:
            _await_ready(listening)
            command = [*client.prefix, *connect]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            answer = json.loads(done.stdout)
            if "error" in answer:
                raise RuntimeError(f"iperf3: {answer['error']}")
            return float(answer["end"]["sum_received"]["bits_per_second"]) / 1e6
        finally:
            listening.terminate()  # timeout(1) passes it on


def _await_ready(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    deadline = time.monotonic() + TIMEOUT_S
    said = b""
    while _READY not in said:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        more = os.read(process.stdout.fileno(), 4096) if ready else b""
        if not more:
            raise RuntimeError(f"iperf3's server did not start, it said {said!r}")
        said += more
