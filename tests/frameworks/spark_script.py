"""Train with plain DDP under Spark's TorchDistributor, on two processes: spark_script.py local, or cluster.

In the cluster two executors run them. Executors have only those of our variables that are passed to Spark.
"""

import os
import sys

from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession


def train() -> str:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 64, generator=generator)).pow(2).mean().backward()
        optimizer.step()
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, model.module.weight.double().sum().item().hex())
    assert len(set(digests)) == 1, digests
    hook = model._get_ddp_logging_data().get("comm_hook", "none")
    dist.destroy_process_group()
    return f"hook {hook}, weights {digests[0]}"


# Executors would use the python3 of the PATH, which need not be the one with our packages.
os.environ["PYSPARK_PYTHON"] = sys.executable
is_local = sys.argv[1] == "local"
builder = SparkSession.builder.master("local[2]" if is_local else "local-cluster[2,1,1024]")
builder = builder.config("spark.ui.enabled", "false").config("spark.task.maxFailures", "1")
if not is_local:
    for name in [name for name in os.environ if name.startswith("REDUCTION_")]:
        builder = builder.config(f"spark.executorEnv.{name}", os.environ.pop(name))
session = builder.getOrCreate()
distributor = TorchDistributor(num_processes=2, local_mode=is_local, use_gpu=False)
print(distributor.run(train), flush=True)
session.stop()
