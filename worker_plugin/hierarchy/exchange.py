"""Hierarchical mode, inside the node: exchange and fold a tensor's shards, and reassemble its result."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from reduction.errors import CollectiveMismatch
from reduction.model import Collective, DType, ReduceOp

from worker_plugin.communicator import Request
from worker_plugin.discovery.nodes import Node
from worker_plugin.hierarchy.local_group import LocalGroup
from worker_plugin.hierarchy.shards import Shards, fold
from worker_plugin.tensors.arena import ArenaPool
from worker_plugin.tensors.encoding import flat_of
from worker_plugin.tensors.futures import Future
from worker_plugin.tensors.gpu.streams import CudaEvent, side_stream
from worker_plugin.tensors.wire_dtype import WireFormat

#: What local ranks compare before they exchange a tensor: seq, op, dtype, dtype on the wire, whether it is on a GPU,
#: elements and fingerprint. If the sizes differed, Gloo would write past the ends of its buffers.
_HEADER = struct.Struct("<QBBBBxxxxQQ")


@dataclass(slots=True, eq=False)
class Submission:
    """A collective that has been issued and is not done."""

    seq: int
    request: Request
    future: Future
    #: The tensor may be read after this event; None on the CPU.
    ready: CudaEvent | None


@dataclass(slots=True, eq=False)
class Share:
    """The part of a collective that this rank sends over the network."""

    submission: Submission
    shards: Shards
    #: The request for the reducers. Its tensor is the fold of the node's ranks, in the accumulation dtype, and later
    #: the result. None if another rank of the node sends this one.
    outgoing: Request | None
    #: Memory that may hold the fold.
    received: torch.Tensor


class Exchange:
    """Exchanges tensors between the ranks of a node.

    `scatter` and `gather` are each called by one thread, with its own group.
    """

    def __init__(self, node: Node, wire: WireFormat | None) -> None:
        self._node = node
        self._wire = wire
        self._pool = ArenaPool()

    def scatter(self, group: LocalGroup, submission: Submission) -> Share:
        """Give every local rank all parts of its shard, and fold this rank's parts in the order of the local ranks.

        Raises:
            CollectiveMismatch: the local ranks issued different collectives.
            RuntimeError: a connection broke, or the exchange timed out.
        """
        self._check_header(group, submission)
        request, size, local_rank = submission.request, self._node.size, self._node.local_rank
        wire = (
            self._wire
            if self._wire is not None and self._wire.applies_to(request.dtype, request.op)
            else None
        )
        shards = Shards(request.slices, 1 if wire is None else wire.block, size)
        flat = flat_of(request.tensor)
        count, itemsize = shards.sizes[local_rank], flat.element_size()
        received = self._take(size * count * itemsize, flat.device)
        mine = shards.pack(flat).view(torch.uint8)
        sizes = [one * itemsize for one in shards.sizes]
        group.all_to_all(received, mine, [count * itemsize] * size, sizes)
        shard = fold(received.view(flat.dtype).view(size, count).unbind(), request.op)
        outgoing = replace(request, tensor=shard, slices=shards.slices_of(local_rank))
        return Share(submission, shards, outgoing, received)

    def gather(self, group: LocalGroup, share: Share) -> torch.Tensor:
        """Exchange the results of the shards, and return all of them for `write`.

        Raises:
            RuntimeError: a connection broke, or the exchange timed out.
        """
        assert share.outgoing is not None
        shard = share.outgoing.tensor
        dtype, most, size = share.submission.request.tensor.dtype, share.shards.most, self._node.size
        row, device = most * dtype.itemsize, shard.device
        mine, gathered = self._take(row, device), self._take(row * size, device)
        mine.view(dtype)[: shard.numel()].copy_(shard)
        group.all_gather(gathered, mine)
        self._give(mine)
        return gathered

    def write(self, share: Share, gathered: torch.Tensor) -> None:
        """Write the result into the tensor, and reclaim the memory of both arguments."""
        tensor = share.submission.request.tensor
        with torch.inference_mode(tensor.is_inference()):
            self._put(share, gathered.view(tensor.dtype), flat_of(tensor))
        if tensor.is_cuda:
            torch.cuda.current_stream(tensor.device).synchronize()
        self._give(gathered)
        self._give(share.received)

    def _put(self, share: Share, gathered: torch.Tensor, flat: torch.Tensor) -> None:
        """Write what `gather` returned into the tensor."""
        share.shards.unpack(gathered.view(self._node.size, share.shards.most), flat)

    def close(self) -> None:
        """Free the memory kept for later collectives."""
        self._pool = ArenaPool()

    def _check_header(self, group: LocalGroup, submission: Submission) -> None:
        wire = 0 if self._wire is None else self._wire.dtype
        tensor = submission.request.tensor
        op, dtype, fingerprint = (
            submission.request.op,
            submission.request.dtype,
            submission.request.fingerprint,
        )
        what = submission.seq, op, dtype, wire, tensor.is_cuda, tensor.numel(), fingerprint
        mine = bytearray(_HEADER.pack(*what))
        gathered = torch.empty(self._node.size * len(mine), dtype=torch.uint8)
        group.all_gather(gathered, torch.frombuffer(mine, dtype=torch.uint8))
        data = gathered.numpy().tobytes()
        headers = [data[at : at + len(mine)] for at in range(0, len(data), len(mine))]
        for local_rank, header in enumerate(headers):
            if header != headers[0]:
                raise CollectiveMismatch(
                    f"{self._node.name(local_rank)} issued {_describe(header)}, "
                    f"but {self._node.name(0)} issued {_describe(headers[0])}"
                )

    def _take(self, nbytes: int, device: torch.device) -> torch.Tensor:
        if device.type == "cpu":
            return self._pool.take(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8, device=device)

    def _give(self, buffer: torch.Tensor) -> None:
        if not buffer.is_cuda:
            self._pool.give(buffer)


def _describe(header: bytes) -> str:
    seq, op, dtype, wire, is_cuda, numel, fingerprint = _HEADER.unpack(header)
    collective = Collective(ReduceOp(op), DType(dtype), numel, fingerprint)
    sent_as = f" as {DType(wire).name.lower()}" if wire else ""
    return f"collective {seq}: {collective}{sent_as} on {'a GPU' if is_cuda else 'the CPU'}"


@contextlib.contextmanager
def on_stream(submission: Submission) -> Iterator[None]:
    """Work on a GPU's tensor on this thread's own stream, after the stream that wrote the tensor. Not run yet."""
    if submission.ready is None:
        yield
        return
    device = submission.request.tensor.device
    stream = side_stream(device)
    with torch.cuda.device(device), torch.cuda.stream(stream):
        submission.ready.delay(stream)
        yield
