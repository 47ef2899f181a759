"""Train with Ray Train on a cluster of several raylets on one machine: ray_script.py hook|reduction|kill.

Two trainer nodes and two CPU nodes, which get the reducers. With "kill" one reducer's actor is killed in
the middle. Prints the weights, the backend and where the reducers ran.
"""

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

os.environ["RAY_TRAIN_V2_ENABLED"] = "1"

import ray
from ray.cluster_utils import Cluster
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from worker_plugin.integrations.ray import ReductionConfig

WAY = sys.argv[1]
STEPS = 40 if WAY == "kill" else 4


def train(config: dict) -> None:
    import ray.train.torch
    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    rank = ray.train.get_context().get_world_rank()
    generator = torch.Generator().manual_seed(rank)
    for step in range(config["steps"]):
        optimizer.zero_grad()
        model(torch.randn(4, 64, generator=generator)).pow(2).mean().backward()
        optimizer.step()
        if config["way"] == "kill" and step == 5 and rank == 0:
            Path(config["folder"], "in the middle").touch()
        if config["way"] == "kill":
            time.sleep(0.2)
    if rank == 0:
        result = {
            "weights": model.module.weight.double().sum().item().hex(),
            "backend": dist.get_backend(),
            "hook": model._get_ddp_logging_data().get("comm_hook"),
            "reducers": os.environ["REDUCTION_REDUCERS"],
        }
        Path(config["folder"], "result.json").write_text(json.dumps(result))


def kill_an_actor(folder: str) -> None:
    """Kill the process of one reducer's actor once training is in progress; its reducer ends with it."""
    while not Path(folder, "in the middle").exists():
        time.sleep(0.1)
    titles = {path.parent.name: path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")}
    pids = [int(pid) for pid, title in titles.items() if title.startswith(b"ray::ReducerActor")]
    os.kill(pids[0], signal.SIGKILL)
    print(f"killed one of {len(pids)} actors", flush=True)


def main() -> None:
    import threading

    cluster = Cluster()
    cluster.add_node(num_cpus=1)
    for pool in ("trainer", "trainer", "reducer", "reducer"):
        cluster.add_node(num_cpus=1, resources={pool: 1})
    ray.init(address=cluster.address, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        if WAY == "kill":
            threading.Thread(target=kill_an_actor, args=(folder,), daemon=True).start()
        config = ReductionConfig(
            backend="reduction" if WAY == "reduction" else "gloo", reducers=2, resources={"reducer": 1}
        )
        TorchTrainer(
            train,
            train_loop_config={"way": WAY, "steps": STEPS, "folder": folder},
            torch_config=config,
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1, "trainer": 1}),
            run_config=RunConfig(storage_path=folder),
        ).fit()
        result = json.loads(Path(folder, "result.json").read_text())
    print(result["backend"], result["hook"], len(result["reducers"].split(",")), "reducers")
    print(f"weights {result['weights']}", flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
