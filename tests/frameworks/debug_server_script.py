"""Two ranks with torch's debug server; rank 1 joins the last collective only after rank 0 has seen it missing.

Rank 0 prints the page before and after.
"""

import socket
import time
import urllib.request

import torch
import torch.distributed as dist
from torch.distributed.debug import start_debug_server, stop_debug_server

from worker_plugin import ReductionState
from worker_plugin.integrations.debug_server import handlers

WAIT_S = 60.0


def page(port: int, path: str) -> str:
    """Return a page of the server, which takes a while to start."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
                return response.read().decode()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def main() -> None:
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with ReductionState(job="<b>job</b>") as state:
        start_debug_server(port=port, handlers=handlers(state), start_method="spawn")
        for _ in range(3):
            state.all_reduce(torch.ones(1000)).wait()
        if rank == 0:
            future = state.all_reduce(torch.ones(7))
            text = ""
            while "1 without a result" not in text:
                text = page(port, "/reduction")
            print(text)
            print("menu:", "/reduction" in page(port, "/"))
            dist.barrier()
            future.wait()
            while "1 without a result" in text:
                text = page(port, "/reduction")
            print("later:", "without a result" in text)
            dist.barrier()
        else:
            dist.barrier()
            state.all_reduce(torch.ones(7)).wait()
            dist.barrier()
        if rank == 0:  # elsewhere torch 2.13 fails, because only rank 0 has the process that it ends
            stop_debug_server()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
