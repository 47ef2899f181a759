"""The goodput of one TCP stream over a shaped link, measured by iperf3, which is an upper bound."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence

from benchmarks.lab.hosts import Host

#: Length of the measurement. The second before it does not count, since TCP must first find the rate.
SECONDS = 2
PORT = 5201
TIMEOUT_S = 30

_READY = "Server listening"


def goodput_mbit(worker: Host, reducer: Host) -> float | None:
    """Return Mbit/s of payload, the better of both directions; None if iperf3 is not installed.

    All links have the same rate, so a slower direction was slowed by the machine's load and not by the
    link.

    Raises:
        RuntimeError: iperf3 failed.
    """
    if shutil.which("iperf3") is None:
        return None
    return max(_stream(worker, reducer, direction) for direction in ([], ["--reverse"]))


def _stream(client: Host, server: Host, direction: Sequence[str]) -> float:
    # --one-off ends the server after its client. timeout(1) ends it if no client comes.
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
    with subprocess.Popen([*server.prefix, *serve], stdout=subprocess.PIPE, text=True) as listening:
        try:
            assert listening.stdout is not None
            if not any(_READY in line for line in listening.stdout):
                raise RuntimeError("iperf3's server did not start")
            command = [*client.prefix, *connect]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            answer = json.loads(done.stdout)
            if "error" in answer:
                raise RuntimeError(f"iperf3: {answer['error']}")
            return float(answer["end"]["sum_received"]["bits_per_second"]) / 1e6
        finally:
            listening.terminate()  # timeout(1) passes the signal on to iperf3
