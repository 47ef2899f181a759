"""Three replicas with torchft, one of which is killed and comes back: torchft_script.py ALGORITHM KILL.

ALGORITHM is ddp, local (LocalSGD) or diloco; KILL is 0 or 1. Compares
the weights of all replicas after every step, and prints how long the others took from the kill to
their next step.
"""

import collections
import multiprocessing
import os
import signal
import sys
import time
from datetime import timedelta
from multiprocessing import connection
from typing import Any

import torch
import torch.distributed as dist
from torchft import Manager, Optimizer
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo, LocalSGD

from worker_plugin.integrations.torchft import ProcessGroupReduction

ALGORITHM, IS_KILLING = sys.argv[1], sys.argv[2] == "1"
REPLICAS, KILLED, KILLED_AFTER, PAUSE_S = 3, 2, 6, 0.05
STEPS = 10


def batch(step: int, replica: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + replica))


def train(replica: int, lighthouse: str, news: connection.Connection, begin: Any) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.manual_seed(replica)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)

    def load(state: dict) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupReduction(timedelta(seconds=20)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica{replica}",
        timeout=timedelta(seconds=15),
        quorum_timeout=timedelta(seconds=30),
        use_async_quorum=ALGORITHM == "ddp",
        hostname="127.0.0.1",
    )
    begin.wait()

    def tell() -> None:
        news.send((replica, manager.current_step(), model.weight.double().sum().item().hex()))

    if ALGORITHM == "ddp":
        outer = Optimizer(manager, optimizer)
        while True:
            outer.zero_grad()
            model(batch(manager.current_step(), replica)).pow(2).mean().backward()
            for work in [manager.allreduce(parameter.grad) for parameter in model.parameters()]:
                work.wait()
            outer.step()
            tell()
            time.sleep(PAUSE_S)
    if ALGORITHM == "local":
        context = LocalSGD(manager, model, optimizer, sync_every=4)
    else:
        nesterov = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        context = DiLoCo(manager, [model], optimizer, nesterov, sync_every=4)
    with context:
        while True:
            step = manager.current_step()
            optimizer.zero_grad()
            model(batch(step, replica)).pow(2).mean().backward()
            optimizer.step()
            if manager.current_step() != step:
                tell()
            time.sleep(PAUSE_S / 4)


def main() -> None:
    server = LighthouseServer(bind="[::]:0", min_replicas=2, join_timeout_ms=500, heartbeat_timeout_ms=1000)
    context = multiprocessing.get_context("spawn")
    #: One per process, because the lock of a shared queue would stay locked if its holder was killed.
    pipes: list[connection.Connection] = []

    def start(replica: int, begin: Any) -> multiprocessing.Process:
        reading, news = context.Pipe(duplex=False)
        pipes.append(reading)
        process = context.Process(target=train, args=(replica, server.address(), news, begin), daemon=True)
        process.start()
        return process

    begin = context.Barrier(REPLICAS)
    processes = [start(replica, begin) for replica in range(REPLICAS)]
    #: Each replica's weights after each step.
    weights: dict[int, dict[int, str]] = {}
    steps_since: collections.Counter[int] = collections.Counter()
    killed_at = next_step_s = None
    is_back = not IS_KILLING
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (
        is_back and min(steps_since[one] for one in range(REPLICAS)) > STEPS
    ):
        if killed_at and not is_back and time.monotonic() > killed_at + 1.0:
            begin = context.Barrier(1)
            processes[KILLED] = start(KILLED, begin)
            is_back = True
        heard = []
        for pipe in connection.wait(pipes, timeout=0.1):
            try:
                heard.append(pipe.recv())
            except EOFError:
                pipes.remove(pipe)
        for replica, step, its_weights in heard:
            weights.setdefault(step, {})[replica] = its_weights
            if (
                killed_at
                and next_step_s is None
                and replica != KILLED
                and time.monotonic() > killed_at + 2 * PAUSE_S
            ):
                next_step_s = time.monotonic() - killed_at
            if is_back:
                steps_since[replica] += 1
            if IS_KILLING and killed_at is None and step >= KILLED_AFTER:
                os.kill(processes[KILLED].pid, signal.SIGKILL)
                killed_at = time.monotonic()
    for process in processes:
        process.kill()
    has_enough = min(steps_since[one] for one in range(REPLICAS)) > STEPS
    shared = [step for step in weights.values() if len(step) > 1]
    by_all = sum(len(step) == REPLICAS for step in shared)
    is_equal = all(len(set(step.values())) == 1 for step in shared)
    print(f"{len(shared)} steps of several replicas, {by_all} of all; same weights: {is_equal}")
    print(f"next step after {next_step_s} s", flush=True)
    is_good = is_equal and has_enough and by_all >= STEPS // 2
    os._exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
