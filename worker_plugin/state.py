"""`ReductionState`: the object that the user makes, and hands to DDP or calls directly."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from reduction.errors import ClosedError, ConfigError, ReductionError
from reduction.layout import NUMEL_MAX, fingerprint
from reduction.model import Collective
from torch._C._distributed_c10d import GradBucket

from worker_plugin.bridge import Future, check, check_dense
from worker_plugin.client import Client
from worker_plugin.config import PluginConfig, build
from worker_plugin.discovery.meeting import Meeting
from worker_plugin.encoding import Piece, encoding_of
from worker_plugin.feedback import ErrorFeedback
from worker_plugin.hierarchy import Hierarchy
from worker_plugin.staging import CLOSED

_SHAPE, _BUCKET = 1, 2


class ReductionState:
    """One communicator of one rank. Constructing it opens nothing; the first collective connects.

    Args:
        reducers: addresses as a list or a comma-separated string of HOST:PORT or dns:NAME:PORT. None looks at
            REDUCTION_REDUCERS, then at Vertex AI's CLUSTER_SPEC, else rank 0 starts a private reducer on this
            host.
        job: name that is the same on all ranks and no other live job's; made up by rank 0 if not given.
        rank: this rank; from torch.distributed if not given.
        world_size: number of ranks; from torch.distributed if not given.
        transport: "auto", "tcp" or "grpc"; with TLS "auto" is "grpc".
        wire_dtype: what sums and averages of floating-point numbers travel as: None, the tensor's own; "bf16" or
            "fp16", added in float32 and rounded once, for float32; "int8", "fp8" or "topk:RATIO" ("topk" is 1 %),
            lossy, with error feedback for DDP's gradients, for float32, bfloat16 and float16.
        on_reducer_loss: "reshard", the others take over at once, and take a lost one in again when it is back;
            "wait", for all of them at their addresses, up to `join_timeout_s`; "raise". Rank 0's counts.
        fallback: "embedded", rank 0 starts a private reducer on its host when none has been there for
            `join_timeout_s`; all ranks must run on that host. None, the job fails then.
        timeout_s: seconds from a collective's first push to CollectiveTimeout.
        stall_warn_s: seconds without a result after which the oldest collective is logged as a warning.
        join_timeout_s: seconds to wait for reducers and ranks, at the start and after losing all.
        close_timeout_s: seconds that `close` waits for ranks that may still need this one.
        chunk_bytes: bytes per message, a multiple of 1024; rank 0's counts.
        credit_bytes: bytes pushed to one reducer ahead of its results.
        checksums: whether every push and result has a CRC-32C; one that does not fit is sent again. Rank 0's counts.
        local_group: "auto" or a number g of ranks of each node that reduce among themselves first, so that one copy of
            the gradients per node crosses the network; see the README. None, every rank by itself.
        tls_cert: this worker's certificate (chain), a PEM file. With TLS everything goes over gRPC.
        tls_key: its private key.
        tls_ca: the CA's certificates that a reducer's must lead to. All three or none.
        token_file: file with a line JOB:TOKEN for the job, or *:TOKEN for any. See SECURITY.md.

    Every setting can also be given as REDUCTION_<NAME>; an explicit argument wins.

    Raises:
        ConfigError: a setting is wrong.
    """

    def __init__(
        self,
        reducers: Sequence[str] | str | None = None,
        *,
        job: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        transport: str | None = None,
        wire_dtype: str | None = None,
        on_reducer_loss: str | None = None,
        fallback: str | None = None,
        timeout_s: float | None = None,
        stall_warn_s: float | None = None,
        join_timeout_s: float | None = None,
        close_timeout_s: float | None = None,
        chunk_bytes: int | None = None,
        credit_bytes: int | None = None,
        checksums: bool | None = None,
        local_group: int | str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        tls_ca: str | None = None,
        token_file: str | None = None,
    ) -> None:
        self.config: PluginConfig = build(
            {
                "reducers": reducers,
                "job": job,
                "rank": rank,
                "world_size": world_size,
                "transport": transport,
                "wire_dtype": wire_dtype,
                "on_reducer_loss": on_reducer_loss,
                "fallback": fallback,
                "timeout_s": timeout_s,
                "stall_warn_s": stall_warn_s,
                "join_timeout_s": join_timeout_s,
                "close_timeout_s": close_timeout_s,
                "chunk_bytes": chunk_bytes,
                "credit_bytes": credit_bytes,
                "checksums": checksums,
                "local_group": local_group,
                "tls_cert": tls_cert,
                "tls_key": tls_key,
                "tls_ca": tls_ca,
                "token_file": token_file,
            }
        )
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a signal handler may close
        self._client: Client | Hierarchy | None = None
        self._refused: ConfigError | None = None
        self._is_closed = False
        self._wire = self.config.wire
        self._feedback = ErrorFeedback()

    # ---- collectives ----

    def all_reduce(
        self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType | dist.ReduceOp = dist.ReduceOp.SUM
    ) -> Future:
        """Reduce a contiguous tensor over all ranks, in place; return at once.

        All ranks must issue the same collectives in the same order. The tensor is not touched until the
        future completes and must not be changed until then; it then holds the result, and is the future's
        value. After an error its content is undefined. SUM, MIN, MAX and PRODUCT for all known dtypes, AVG for
        floating point. `wire_dtype` applies to SUM and AVG, without error feedback.
        Callbacks of the future run on the thread that completes all futures: they must not wait for another.

        Raises:
            ConfigError: the tensor or op cannot be reduced; nothing was issued.
            ClosedError: after `close`.
            ReductionError: the communicator has failed before; the same error again.
        """
        return self._submit(tensor, op, (_SHAPE, *tensor.shape), None)

    def reduce_bucket(self, bucket: GradBucket) -> Future:
        """Average a DDP bucket over all ranks; errors as for `all_reduce`, kept as `error`."""
        parameters = bucket.parameters()
        sizes = (parameter.numel() for parameter in parameters)
        layout = _BUCKET, bucket.index(), *sizes
        try:
            check_dense(bucket.buffer())
            return self._submit(bucket.buffer(), dist.ReduceOp.AVG, layout, parameters)
        except ConfigError as error:
            self._refused = error
            raise

    def _submit(
        self,
        tensor: torch.Tensor,
        op: dist.ReduceOp.RedOpType | dist.ReduceOp,
        layout: tuple[int, ...],
        parameters: Sequence[torch.Tensor] | None,
    ) -> Future:
        dtype, reduce_op = check(tensor, op)
        if tensor.numel() > NUMEL_MAX:
            raise ConfigError(f"a tensor of {tensor.numel()} elements is too large, {NUMEL_MAX} is the limit")
        client, wire, pieces = self._connected(), self._wire, [Piece(0, tensor.numel())]
        if (
            parameters is not None
            and wire is not None
            and wire.block > 1
            and wire.applies_to(dtype, reduce_op)
        ):
            pieces = self._feedback.pieces(parameters)
        if isinstance(client, Hierarchy):
            return client.submit(tensor, dtype, reduce_op, fingerprint(layout), pieces)
        dtype, numel, encoding = encoding_of(tensor.detach(), dtype, reduce_op, wire, pieces)
        return client.submit(tensor, Collective(reduce_op, dtype, numel, fingerprint(layout)), encoding)

    def state_dict(self) -> dict[str, Any]:
        """Return what a lossy `wire_dtype` has left out so far on this rank, for this rank's checkpoint.

        Between steps: not while a collective is in flight. Empty residuals if nothing was ever left out.
        """
        return self._feedback.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` returned on the same rank; before the first backward pass.

        Raises:
            ConfigError: it is no such thing, or comes too late.
        """
        self._feedback.load_state_dict(state)

    # ---- life ----

    @property
    def error(self) -> ReductionError | None:
        """The error that ended this communicator, or with which it has refused a bucket of DDP's."""
        if self._pid != os.getpid():
            return None
        return (self._client.error if self._client is not None else None) or self._refused

    def close(self) -> None:
        """Leave in good order. Idempotent; never raises for the absence of others; also run at exit.

        After success it waits until all other ranks have everything too, at most `close_timeout_s`; after an
        error it does not wait.
        """
        if self._pid != os.getpid():
            return  # a forked child: the communicator is its parent's
        with self._lock:
            self._is_closed = True
            client = self._client
        if client is not None:
            client.close()

    def __enter__(self) -> ReductionState:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.config = state["config"]
        self._reset()

    def _connected(self) -> Client | Hierarchy:
        if self._pid != os.getpid():
            self._reset()  # forked: this process makes its own communicator
        with self._lock:
            if self._is_closed:
                raise ClosedError(CLOSED)
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> Client | Hierarchy:
        rank, world_size, store = self.config.rank, self.config.world_size, None
        if dist.is_available() and dist.is_initialized():
            rank = dist.get_rank() if rank is None else rank
            world_size = dist.get_world_size() if world_size is None else world_size
            store = dist.distributed_c10d._get_default_store()
        if rank is None or world_size is None:
            raise ConfigError(
                f"rank is {rank} and world_size is {world_size}: pass both, or call init_process_group first"
            )
        if store is not None and (rank, world_size) != (dist.get_rank(), dist.get_world_size()):
            store = None  # not the group that the store serves: others of it would meet in the same corner
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank is {rank}, it must be 0 to {world_size - 1} (world size {world_size})")
        meeting, group = Meeting(self.config, store, world_size), self.config.local_group
        client: Client | Hierarchy
        if group in (None, 1) or world_size == 1 or (group == "auto" and store is None):
            client = Client(self.config, rank, world_size, meeting)
        elif store is None:
            raise ConfigError(
                f"local_group={group} needs a way to meet the other ranks of the node: initialise torch.distributed, "
                f"with this rank {rank} of {world_size}"
            )
        else:
            client = Hierarchy(self.config, rank, world_size, store, meeting)
        # A state that is dropped without close() leaves in the background, after its collectives; one that is kept, at
        # exit.
        weakref.finalize(self, client.leave).atexit = False
        return client
