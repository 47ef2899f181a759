"""Ways for a script to start its own ranks: launchers.py spawn|fork SHAPE..."""

import os
import socket
import sys

import shapes
import torch.multiprocessing as multiprocessing
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

RANKS = 2


def of_spawn(rank: int, names: list[str]) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    shapes.main(names)


if __name__ == "__main__":
    way, *names = sys.argv[1:]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    if way == "spawn":
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        multiprocessing.spawn(of_spawn, (names,), RANKS)
    else:  # as Accelerate's notebook_launcher does
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=RANKS,
            rdzv_backend="c10d",
            rdzv_endpoint=f"127.0.0.1:{port}",
            start_method="fork",
        )
        elastic_launch(config, shapes.main)(names)
