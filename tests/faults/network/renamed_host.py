"""One rank whose reducer's name gets another address. For test_addresses.py, in its own mount namespace, in which
/etc/hosts is writable.

Usage: renamed_host.py PORT HOSTS
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from worker_plugin import ReductionState

HOST = "reducer.example"


def serve(address: str, port: str, hosts: Path) -> subprocess.Popen:
    """Start a reducer at this address, to which the name resolves from now on."""
    hosts.write_text(f"127.0.0.1 localhost\n{address} {HOST}\n")
    command = [sys.executable, "-m", "reducer", "serve", "--bind", f"{address}:{port}", "--insecure"]
    reducer = subprocess.Popen([*command, "--workers", "1"], stdout=subprocess.PIPE, text=True)
    assert reducer.stdout is not None
    print(reducer.stdout.readline().strip(), flush=True)
    return reducer


def main(port: str, hosts: Path) -> None:
    """Sum once at the first address and once at the second."""
    subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)
    reducer = serve("127.0.0.2", port, hosts)
    try:
        with ReductionState(
            f"{HOST}:{port}", job="renamed", rank=0, world_size=1, join_timeout_s=15
        ) as state:
            state.all_reduce(torch.ones(8)).wait()
            reducer.kill()
            reducer.wait()
            reducer = serve("127.0.0.3", port, hosts)
            tensor = torch.arange(8.0)
            state.all_reduce(tensor).wait()
            assert torch.equal(tensor, torch.arange(8.0)), tensor
    finally:
        reducer.kill()
    print("both sums are right", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
