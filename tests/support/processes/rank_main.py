"""Program of one rank process of the integration tests: runs functions of the test modules, one call at a time.

Each function receives a `Rank` first, and returns something that can be pickled.
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import importlib.util
import logging
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from worker_plugin import ReductionState

#: Timeout of every wait of a rank (for a future, the parent or the process group), in seconds.
WAIT_S = 60.0


class Rank:
    """The rank, passed to a test's function as its first argument."""

    def __init__(self, number: int, world_size: int, connection: Connection, kept: dict[str, Any]) -> None:
        self.number = number
        self.world_size = world_size
        #: Objects that a function keeps for later calls in the same process.
        self.kept = kept
        self.cleanup = contextlib.ExitStack()
        self._connection = connection

    def state(self, reducers: list[str] | None, job: str | None, **settings: Any) -> ReductionState:
        """Return a state of this rank that is closed at the end of the call."""
        if not dist.is_initialized():
            settings = {"rank": self.number, "world_size": self.world_size} | settings
        return self.cleanup.enter_context(ReductionState(reducers, job=job, **settings))

    def tell(self, value: Any) -> None:
        """Send a value to the test while the function runs."""
        self._connection.send_bytes(pickle.dumps(("news", value)))

    def hear(self) -> Any:
        """Wait for a value from the test."""
        if not self._connection.poll(WAIT_S):
            raise TimeoutError(f"heard nothing from the test for {WAIT_S:g} s")
        return pickle.loads(self._connection.recv_bytes())

    def lines(self, name: str) -> list[str]:
        """Return a list that collects a logger's lines, info and above, until the end of the call."""
        texts: list[str] = []
        logger, handler = logging.getLogger(name), logging.Handler()
        handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
        self.cleanup.callback(logger.setLevel, logger.level)
        self.cleanup.callback(logger.removeHandler, handler)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        return texts

    @property
    def has_news(self) -> bool:
        """Whether the test has sent something."""
        return self._connection.poll(0)

    @staticmethod
    def fold(tensors: list[torch.Tensor], op: dist.ReduceOp.RedOpType = dist.ReduceOp.AVG) -> torch.Tensor:
        """Return the sum that reducers guarantee: added in rank order, 16-bit types in fp32, divided, rounded once.

        Computed on the CPU, because on a GPU torch divides by a number by multiplying by its inverse.
        """
        dtype, device = tensors[0].dtype, tensors[0].device
        wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
        accumulator = tensors[0].to("cpu", wide, copy=True)
        for tensor in tensors[1:]:
            accumulator += tensor.to("cpu", wide)
        if op == dist.ReduceOp.AVG:
            accumulator /= len(tensors)
        return accumulator.to(device, dtype)

    @staticmethod
    def values(
        rank: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, step: int = 0
    ) -> torch.Tensor:
        """Return a rank's contribution. Every rank can compute all others', and the order of addition matters."""
        generator = torch.Generator().manual_seed(1_000_003 * step + rank)
        if dtype.is_floating_point:
            return (torch.randn(shape, generator=generator) * 10.0 ** (rank % 3)).to(dtype)
        limits = torch.iinfo(dtype)  # sums wrap around
        return torch.randint(limits.min, limits.max, shape, generator=generator, dtype=dtype)

    def expected(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype = torch.float32,
        step: int = 0,
        op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
        world_size: int | None = None,
    ) -> torch.Tensor:
        """Return the expected sum of `values` over all ranks."""
        ranks = range(world_size or self.world_size)
        return self.fold([self.values(rank, shape, dtype, step) for rank in ranks], op)

    def mean_gradients(
        self, model: torch.nn.Module, loss_of: Callable[[torch.nn.Module, int], torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the expected result of DDP: the fold of all ranks' gradients on copies without DDP."""
        columns = []
        for rank in range(self.world_size):
            local = copy.deepcopy(model)
            local.zero_grad()
            loss_of(local, rank).backward()
            columns.append([parameter.grad for parameter in local.parameters()])
        return [self.fold(list(column)) for column in zip(*columns, strict=True)]

    @staticmethod
    def wait(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        """Return a future's value or raise its error, within WAIT_S."""
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        if not done.wait(WAIT_S):
            raise TimeoutError(f"a future is not done after {WAIT_S:g} s")
        return future.wait()

    def round(self, state: ReductionState, numel: int = 1000, step: int = 0) -> None:
        """Sum one tensor over all ranks of a state, and check the result."""
        number = self.number if state.config.rank is None else state.config.rank
        tensor = self.values(number, (numel,), step=step)
        self.wait(state.all_reduce(tensor))
        expected = self.expected((numel,), step=step, world_size=state.config.world_size)
        assert torch.equal(tensor, expected), f"wrong sum in step {step}"

    @staticmethod
    def error_of(call: Callable[[], Any]) -> Exception | None:
        """Return the exception that a call raises."""
        try:
            call()
        except Exception as error:
            return error
        return None


def main(connection: Connection) -> None:
    """Serve calls until the test process at the other end of the connection has exited."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    modules: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    while True:
        try:
            path, name, number, world_size, store, plane, arguments = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        rank = Rank(number, world_size, connection, kept)
        os.environ["REDUCTION_TRANSPORT"] = plane or ""
        try:
            if path not in modules:
                modules[path] = _load(path)
            with rank.cleanup:
                if store is not None:
                    rank.cleanup.callback(_leave_group)
                    dist.init_process_group(
                        "gloo",
                        store=dist.FileStore(store, world_size),
                        rank=number,
                        world_size=world_size,
                        timeout=timedelta(seconds=WAIT_S),
                    )
                    # A rank that finishes immediately must not leave while others still connect to it.
                    dist.barrier()
                answer = ("result", getattr(modules[path], name)(rank, *arguments))
        except BaseException:
            answer = ("error", traceback.format_exc())
        connection.send_bytes(pickle.dumps(answer))


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(os.path.basename(path).removesuffix(".py"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
