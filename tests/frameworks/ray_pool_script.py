"""Ray tasks sum through a pool of reducers that another driver has started: ray_pool_script.py."""

import os
import subprocess
import sys
import tempfile

import ray
from reduction.discovery.schemes import cluster_of
from reduction.errors import ConfigError

from worker_plugin.integrations.ray import start_pool, stop_pool

TOKEN = "a-token-of-the-trainings-own-that-is-long-enough"


@ray.remote(num_cpus=1)
def total(rank: int, path: str) -> float:
    import torch

    from worker_plugin import ReductionState

    tensor = torch.full((1000,), rank + 1.0)
    run = ray.get_runtime_context().get_job_id()
    with ReductionState("ray:night", job="pool", run=run, rank=rank, world_size=2, token_file=path) as state:
        state.all_reduce(tensor).wait()
    return tensor.unique().item()


def main() -> None:
    ray.init(num_cpus=4, log_to_driver=False)
    # A separate driver, which has exited when the training starts.
    starter = f"import ray; ray.init(address={ray.get_runtime_context().gcs_address!r}); " + (
        "from worker_plugin.integrations.ray import start_pool; "
        f"print('started', *start_pool('night', 2, token={TOKEN!r}))"
    )
    done = subprocess.run([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True, check=True)
    started = done.stdout.partition("started ")[2].split()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "token")
        with open(path, "w") as file:
            file.write(f"*:{TOKEN}\n")
        sums = ray.get([total.remote(rank, path) for rank in range(2)], timeout=120)
    found = list(cluster_of("ray:night").reducers)
    print(f"sums {sums}, found {len(found)}, as started: {found == started}")
    for name, reducers in (("", 1), ("12", 1), ("a,b", 1), ("x", 0)):
        try:
            start_pool(name, reducers, token=TOKEN)
        except ConfigError as error:
            print(error)
    stop_pool("night")
    try:
        cluster_of("ray:night")
    except ConfigError as error:
        print(error, flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
