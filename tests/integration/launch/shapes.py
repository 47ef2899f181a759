"""Trainings in the style of public scripts, which know nothing of reducers: shapes.py [SHAPE...]

Each prints `SHAPE HASH BYTES` on rank 0: a hash of the weights of all ranks, and the number of bytes that the reducers
have received meanwhile ("-" without reducers).
"""

import contextlib
import hashlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

STEPS = 3
Weights = list[torch.Tensor]


def network(width: int = 32) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(width, 64), torch.nn.Tanh(), torch.nn.Linear(64, width))


def batches(width: int = 32, steps: int = STEPS) -> Iterator[torch.Tensor]:
    """Yield the training data of this rank."""
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(steps):
        yield torch.randn(4, width, generator=generator)


def train(model: Callable[[torch.Tensor], torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
    for inputs in batches():
        optimizer.zero_grad()
        model(inputs).pow(2).mean().backward()
        optimizer.step()


def trained(model: torch.nn.Module) -> Weights:
    train(model, torch.optim.SGD(model.parameters(), 0.1))
    return list(model.parameters())


class PassThrough(DistributedDataParallel):
    """A DDP subclass without relevant changes, like mmengine's."""

    def __init__(self, module: torch.nn.Module, *, note: str = "") -> None:
        super().__init__(module)
        self.note = note


class AveragesItself(DistributedDataParallel):
    """A DDP subclass with its own averaging, like torchft's."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        self.register_comm_hook(None, average)


def average(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    tensor = bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0])


def plain() -> Weights:
    return trained(DistributedDataParallel(network()))


def subclass() -> Weights:
    return trained(PassThrough(network(), note="hello"))


def subclass_that_averages() -> Weights:
    return trained(AveragesItself(network()))


def two_modules() -> Weights:
    """Train a GAN: two modules and two optimizers in turn, one module through the other."""
    maker, judge = DistributedDataParallel(network()), DistributedDataParallel(network())
    first, second = (torch.optim.Adam(model.parameters(), 1e-2) for model in (maker, judge))
    for inputs in batches():
        second.zero_grad()
        (judge(inputs).pow(2).mean() - judge(maker(inputs).detach()).pow(2).mean()).backward()
        second.step()
        first.zero_grad()
        judge.module(maker(inputs)).pow(2).mean().backward()
        first.step()
    return [*maker.parameters(), *judge.parameters()]


def moving_average() -> Weights:
    model = DistributedDataParallel(network())
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for inputs in batches():
        optimizer.zero_grad()
        model(inputs).pow(2).mean().backward()
        optimizer.step()
        average.update_parameters(model)
    return list(average.parameters())


def zero() -> Weights:
    model = DistributedDataParallel(network())
    train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-2))
    return list(model.parameters())


def power_sgd() -> Weights:
    model = DistributedDataParallel(network())
    model.register_comm_hook(
        PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1), powerSGD_hook
    )
    return trained(model)


def fp16_hook() -> Weights:
    model = DistributedDataParallel(network())
    model.register_comm_hook(None, fp16_compress_hook)
    return trained(model)


def uneven() -> Weights:
    """Give rank 1 fewer inputs."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Join([model]):
        for inputs in batches(steps=STEPS - dist.get_rank()):
            optimizer.zero_grad()
            model(inputs).pow(2).mean().backward()
            optimizer.step()
    return list(model.parameters())


def groups() -> Weights:
    """Train a module over a new group of ranks 0 and 1, and one over the default group."""
    pair = dist.new_group([0, 1])
    return [*trained(DistributedDataParallel(network(), process_group=pair)), *plain()]


def gloo_group() -> Weights:
    """Train a module over a group whose backend the script names."""
    return trained(DistributedDataParallel(network(), process_group=dist.new_group([0, 1], backend="gloo")))


def static_graph() -> Weights:
    return trained(DistributedDataParallel(network(), static_graph=True))


def accumulation() -> Weights:
    model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number, inputs in enumerate(batches(steps=2 * STEPS)):
        with model.no_sync() if number % 2 == 0 else contextlib.nullcontext():
            model(inputs).pow(2).mean().backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    return list(model.parameters())


def compiled() -> Weights:
    model = DistributedDataParallel(network())
    fast = torch.compile(model, backend="aot_eager")
    train(fast, torch.optim.SGD(model.parameters(), 0.1))
    return list(model.parameters())


def by_hand() -> Weights:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for inputs in batches():
        optimizer.zero_grad()
        model(inputs).pow(2).mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
    return list(model.parameters())


def local_sgd() -> Weights:
    """Train each rank alone, and average the weights every second step."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number, inputs in enumerate(batches(steps=4)):
        with model.no_sync():
            model(inputs).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % 2:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()
    return list(model.parameters())


def fsdp2() -> Weights:
    return sharded(init_device_mesh("cpu", (dist.get_world_size(),)))


def hsdp() -> Weights:
    return sharded(
        init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("copies", "shards"))
    )


def sharded(mesh: dist.DeviceMesh) -> Weights:
    model = fully_shard(network(), mesh=mesh)
    train(model, torch.optim.SGD(model.parameters(), 0.1))
    return [parameter.full_tensor() for parameter in model.parameters()]


SHAPES = {
    shape.__name__: shape
    for shape in (
        plain,
        subclass,
        subclass_that_averages,
        two_modules,
        moving_average,
        zero,
        power_sgd,
        fp16_hook,
        uneven,
        groups,
        gloo_group,
        static_graph,
        accumulation,
        compiled,
        by_hand,
        local_sgd,
        fsdp2,
        hsdp,
    )
}


def received_bytes() -> Counter[str] | None:
    """Return the number of bytes that the reducers have received, by job; None if no reducers are named."""
    from reducer.observe.status import StatusAccess, look

    if not (named := os.environ.get("REDUCTION_REDUCERS")):
        return None
    access = StatusAccess.of(None, os.environ.get("REDUCTION_TOKEN_FILE"))
    received: Counter[str] = Counter()
    for process in look(named.split(","), 10, access):
        for job in (*process.status.jobs, *process.status.ended):
            received[job.title] += job.received_bytes
    return received


def main(names: list[str]) -> None:
    dist.init_process_group("gloo")
    for name in names:
        torch.manual_seed(0)
        before = received_bytes()
        weights = torch.cat([weight.detach().flatten() for weight in SHAPES[name]()])
        everywhere = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
        dist.all_gather(everywhere, weights)
        after = received_bytes()
        if dist.get_rank() == 0:
            digest = hashlib.sha256(torch.cat(everywhere).numpy().tobytes()).hexdigest()[:16]
            nbytes = "-" if after is None else (after - before).total()
            sys.stdout.write(f"{name} {digest} {nbytes}\n")
            sys.stdout.flush()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    # `torch.distributed.launch` adds --local-rank.
    main([name for name in sys.argv[1:] if not name.startswith("--")] or list(SHAPES))
