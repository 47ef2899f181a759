"""How a tensor becomes a contribution, and a result the tensor again; one object per collective.

What a contribution says is decided once, when its chunk is first pushed: an epoch that asks for it again gets the same
bytes, and a residual changes once per collective. Spans and starts are bytes as the layout counts them (`formats.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from reduction import formats
from reduction.codecs import BLOCK_CODECS, TOPK
from reduction.model import DType

from worker_plugin.wire_dtype import WireFormat

#: Elements that are worked on at a time where a whole tensor is: whole blocks, and they stay in the cache.
_SLICE = 1 << 16
_TORCH = {DType.BFLOAT16: torch.bfloat16, DType.FLOAT16: torch.float16}


class Encoding:
    """Bytes as they are.

    Args:
        tensor: contiguous; not touched until `deliver`.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.contribution_bytes = self.result_bytes = tensor.nbytes
        self._bytes = memoryview(b"")

    def open(self) -> None:
        """Prepare for `encode`; the tensor is on the CPU."""
        self._bytes = _bytes_of(self.tensor.reshape(-1).view(torch.uint8))

    def close(self) -> None:
        """Forget the tensor's memory: everything was pushed."""
        self._bytes = memoryview(b"")

    def where(self, start: int, stop: int) -> tuple[int, int]:
        """Return where a span's bytes lie in the contribution."""
        return start, stop

    def encode(self, start: int, stop: int, out: memoryview) -> None:
        """Fill a span's part of the contribution, if that is still to be done."""
        if self._bytes:  # again in another epoch: harmless, the tensor is as it was
            out[:] = self._bytes[start:stop]

    def stage(self, out: torch.Tensor) -> None:
        """Fill the whole contribution from a tensor on a GPU."""
        out.view(self.tensor.dtype).view(self.tensor.shape).copy_(self.tensor)

    def store(self, start: int, stop: int, payload: memoryview, out: NDArray[np.uint8]) -> None:
        """Put a chunk's result into the result memory.

        Raises:
            MalformedFrame: no reducer of ours sends this.
        """
        # numpy gives the GIL away for this copy, a memoryview would not.
        out[start:stop] = np.frombuffer(payload, np.uint8)

    def deliver(self, result: torch.Tensor) -> None:
        """Write the result into the tensor."""
        self.tensor.copy_(result.view(self.tensor.dtype).view(self.tensor.shape))


class CastEncoding(Encoding):
    """float32 that travels in 16 bits, rounded by torch."""

    def __init__(self, tensor: torch.Tensor, dtype: DType) -> None:
        super().__init__(tensor)
        self._dtype = _TORCH[dtype]
        self._flat: torch.Tensor | None = None
        self.contribution_bytes = self.result_bytes = tensor.numel() * 2

    def open(self) -> None:
        """See `Encoding.open`."""
        self._flat = self.tensor.reshape(-1)

    def close(self) -> None:
        """See `Encoding.close`."""
        self._flat = None

    def encode(self, start: int, stop: int, out: memoryview) -> None:
        """See `Encoding.encode`."""
        if self._flat is not None and start < stop:
            torch.frombuffer(out, dtype=self._dtype).copy_(self._flat[start // 2 : stop // 2])

    def stage(self, out: torch.Tensor) -> None:
        """See `Encoding.stage`."""
        out.view(self._dtype).view(self.tensor.shape).copy_(self.tensor)

    def deliver(self, result: torch.Tensor) -> None:
        """See `Encoding.deliver`."""
        self.tensor.copy_(result.view(self._dtype).view(self.tensor.shape))


@dataclass(slots=True)
class Piece:
    """Elements of a tensor that begin a block of their own: a parameter, however DDP has put it into buckets."""

    offset: int
    numel: int
    #: What earlier contributions left out, changed by `encode`; None: nobody makes up for that.
    residual: NDArray[np.float32] | None = None


class BlockEncoding(Encoding):
    """A lossy block codec with error feedback (Karimireddy et al., "Error feedback fixes SignSGD", 2019).

    Args:
        tensor: contiguous, floating point.
        wire: a block format.
        pieces: of the tensor; each is filled up to whole blocks with zeros.
    """

    def __init__(self, tensor: torch.Tensor, wire: WireFormat, pieces: Sequence[Piece]) -> None:
        super().__init__(tensor)
        self._codec = BLOCK_CODECS[wire.dtype]
        self._pieces = pieces
        self._block = self._codec.block
        counts = [-(-piece.numel // self._block) for piece in pieces]
        #: The first block of each piece, and the end.
        self._borders = [0, *accumulate(counts)]
        self._count = self._borders[-1]
        self._itemsize = wire.dtype.itemsize
        self._push_bytes = (
            wire.k * formats.TOPK_ENTRY_BYTES if wire.dtype is DType.TOPK else formats.SCALED_BYTES
        )
        self.contribution_bytes = self._count * self._push_bytes
        self.result_bytes = formats.result_bytes(wire.dtype, self.numel * self._itemsize)
        self._flat: torch.Tensor | None = None
        self._is_encoded = bytearray(self._count)

    @property
    def numel(self) -> int:
        """Elements, with what fills up the blocks."""
        return self._count * self._block

    def open(self) -> None:
        """See `Encoding.open`."""
        self._flat = self.tensor.reshape(-1)

    def close(self) -> None:
        """See `Encoding.close`."""
        self._flat = None

    def where(self, start: int, stop: int) -> tuple[int, int]:
        """See `Encoding.where`."""
        return self._blocks(start) * self._push_bytes, self._blocks(stop) * self._push_bytes

    def _blocks(self, span: int) -> int:
        return formats.blocks(self._codec.dtype, span)

    def encode(self, start: int, stop: int, out: memoryview) -> None:
        """See `Encoding.encode`."""
        base, end = self._blocks(start), self._blocks(stop)
        first = base
        while self._flat is not None and (first := self._is_encoded.find(0, first, end)) >= 0:
            piece = bisect_right(self._borders, first) - 1
            last = min(end, self._borders[piece + 1])
            encoded = self._is_encoded.find(1, first, last)
            last = last if encoded < 0 else encoded
            part = np.frombuffer(out, np.uint8)[
                (first - base) * self._push_bytes : (last - base) * self._push_bytes
            ]
            self._encode(self._pieces[piece], first - self._borders[piece], last - first, part)
            self._is_encoded[first:last] = b"\1" * (last - first)
            first = last

    def _encode(self, piece: Piece, first: int, count: int, out: NDArray[np.uint8]) -> None:
        """Encode `count` blocks of a piece."""
        assert self._flat is not None
        start = first * self._block
        stop = min(start + count * self._block, piece.numel)
        source = self._flat[piece.offset + start : piece.offset + stop].to(torch.float32).numpy()
        values = np.empty((count, self._block), np.float32)
        flat = values.reshape(-1)
        flat[stop - start :] = 0
        if piece.residual is None:
            flat[: stop - start] = source
            self._codec.encode(values, out)
            return
        with np.errstate(over="ignore", invalid="ignore"):  # Inf and NaN are data
            np.add(source, piece.residual[start:stop], out=flat[: stop - start])
            self._codec.encode(values, out)
            sent = np.empty_like(values)
            self._codec.start(sent, out)
            np.subtract(values, sent, out=values)
        # After Inf or NaN, which the others have seen, there is nothing to make up for.
        np.nan_to_num(flat, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
        piece.residual[start:stop] = flat[: stop - start]

    def stage(self, out: torch.Tensor) -> None:
        """See `Encoding.stage`."""
        self._flat = self.tensor.reshape(-1).cpu()
        step, end, whole = _SLICE * self._itemsize, self.numel * self._itemsize, _bytes_of(out)
        for start in range(0, end, step):
            stop = min(start + step, end)
            begin, after = self.where(start, stop)
            self.encode(start, stop, whole[begin:after])
        self._flat = None

    def store(self, start: int, stop: int, payload: memoryview, out: NDArray[np.uint8]) -> None:
        """See `Encoding.store`."""
        begin, end = (formats.result_bytes(self._codec.dtype, span) for span in (start, stop))
        if self._codec is TOPK:  # of any size; in memory it is spread out
            TOPK.expand(payload, out[begin:end].view("<u2"))
        else:
            out[begin:end] = np.frombuffer(payload, np.uint8)

    def deliver(self, result: torch.Tensor) -> None:
        """See `Encoding.deliver`."""
        flat, encoded = self.tensor.view(-1), result.numpy()
        size = self.result_bytes // max(1, self._count)
        for piece, first, stop in zip(self._pieces, self._borders[:-1], self._borders[1:], strict=True):
            elements = flat[piece.offset : piece.offset + piece.numel]
            step = _SLICE // self._block
            for begin in range(first, stop, step):
                end = min(begin + step, stop)
                values = torch.empty((end - begin) * self._block)
                self._codec.decode(encoded[begin * size : end * size], values.numpy())
                part = elements[(begin - first) * self._block : (end - first) * self._block]
                part.copy_(values[: part.numel()])


def _bytes_of(buffer: torch.Tensor) -> memoryview:
    return buffer.numpy().data
