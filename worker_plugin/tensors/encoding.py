"""How a tensor becomes a contribution and a result becomes the tensor again. One object per collective.

The content of a contribution is fixed once, when its chunk is first pushed. An epoch that asks for it again gets the
same bytes. Starts and stops are bytes as counted by the layout (`reduction/model/wire_sizes.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from reduction.codecs import BLOCK_CODECS
from reduction.model import DType

from worker_plugin.tensors.wire_dtype import WireFormat

#: A tensor is encoded and decoded in batches of this many elements. They fit in the processor's cache, and are whole
#: blocks.
BATCH_ELEMENTS = 1 << 15
#: Number of elements that a GPU converts at a time. They take only some MiB of its memory, and are enough for long
#: copies.
GPU_BATCH_ELEMENTS = 1 << 22
FLOATS_OF_16_BITS = {DType.BFLOAT16: torch.bfloat16, DType.FLOAT16: torch.float16}


class Encoding:
    """Sends bytes unchanged.

    Args:
        tensor: contiguous; not touched until `decode`.

    Attributes:
        tensor: the tensor's elements; see `flat_of`.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = flat_of(tensor)
        self.contribution_bytes = self.result_bytes = tensor.nbytes
        self._bytes = memoryview(b"")

    def open(self) -> None:
        """Prepare for `encode`. Not called for a tensor on a GPU, whose contribution `fetch` creates."""
        self._bytes = bytes_of(self.tensor.view(torch.uint8))

    def close(self) -> None:
        """Forget the tensor's memory once everything has been pushed."""
        self._bytes = memoryview(b"")

    def where(self, start: int, stop: int) -> tuple[int, int]:
        """Return the position of a range's bytes in the contribution."""
        return start, stop

    def encode(self, start: int, stop: int, out: memoryview) -> None:
        """Fill a range of the contribution, if that has not been done yet."""
        if self._bytes:  # repeated in another epoch, which is harmless: the tensor has not changed
            out[:] = self._bytes[start:stop]

    def elements(self, stop: int) -> int:
        """Return how many of the tensor's elements, from the first one, the ranges up to `stop` cover."""
        return -(-stop // self.tensor.element_size())

    def fetch(self, host: torch.Tensor, first: int, stop: int) -> None:
        """Have the GPU copy elements into the contribution. Called for all of them, in order."""
        elements = self.tensor[first:stop]
        host.view(elements.dtype)[first:stop].copy_(elements, non_blocking=True)

    def store(self, start: int, stop: int, payload: memoryview, out: NDArray[np.uint8]) -> None:
        """Put a chunk's result into the result memory.

        Raises:
            MalformedFrame: no correct reducer sends this.
        """
        # numpy releases the GIL for this copy; a memoryview would not.
        out[start:stop] = np.frombuffer(payload, np.uint8)

    def decode(self, result: torch.Tensor) -> None:
        """Write the result into the tensor."""
        self.tensor.copy_(result.view(self.tensor.dtype), non_blocking=True)


class OwnEncoding(Encoding):
    """For a rank that is alone: its tensor already is the result, unrounded and with the bits of its NaNs."""

    def decode(self, result: torch.Tensor) -> None:
        """Leave the tensor as it is."""


class CastEncoding(Encoding):
    """float32 sent in 16 bits, rounded by torch."""

    def __init__(self, tensor: torch.Tensor, dtype: DType) -> None:
        super().__init__(tensor)
        self._dtype = FLOATS_OF_16_BITS[dtype]
        self._flat: torch.Tensor | None = None
        self.contribution_bytes = self.result_bytes = tensor.numel() * 2

    def open(self) -> None:
        """See `Encoding.open`."""
        self._flat = self.tensor

    def close(self) -> None:
        """See `Encoding.close`."""
        self._flat = None

    def encode(self, start: int, stop: int, out: memoryview) -> None:
        """See `Encoding.encode`."""
        if self._flat is not None and start < stop:
            torch.frombuffer(out, dtype=self._dtype).copy_(self._flat[start // 2 : stop // 2])

    def elements(self, stop: int) -> int:
        """See `Encoding.elements`."""
        return -(-stop // 2)

    def fetch(self, host: torch.Tensor, first: int, stop: int) -> None:
        """See `Encoding.fetch`. Rounds on the GPU, so half as many bytes leave it."""
        elements = self.tensor[first:stop].to(self._dtype)
        host.view(self._dtype)[first:stop].copy_(elements, non_blocking=True)

    def decode(self, result: torch.Tensor) -> None:
        """See `Encoding.decode`. Works in parts: on a GPU torch copies to equally large memory, and then converts."""
        flat, values = self.tensor, result.view(self._dtype)
        for first in range(0, flat.numel(), GPU_BATCH_ELEMENTS):
            part = slice(first, first + GPU_BATCH_ELEMENTS)
            flat[part].copy_(values[part], non_blocking=True)


@dataclass(slots=True)
class Residual:
    """The part of a parameter that contributions left out: float32, flat, on its device, divided by the loss scale."""

    #: Left out by earlier contributions, up to the last step that counted. `encode` adds it.
    kept: torch.Tensor
    #: Left out by this contribution. `encode` writes it.
    pending: torch.Tensor
    loss_scale: float = 1.0

    def part(self, start: int, stop: int) -> Residual:
        """Return the residual of some of the elements, as a view."""
        return Residual(self.kept[start:stop], self.pending[start:stop], self.loss_scale)


@dataclass(slots=True)
class ParameterSlice:
    """Elements of a tensor that begin their own block: a parameter, however DDP has assigned it to buckets."""

    offset: int
    numel: int
    #: None: no error feedback.
    residual: Residual | None = None


class BlockEncoding(Encoding):
    """A lossy block codec with error feedback (Karimireddy et al., "Error feedback fixes SignSGD", 2019).

    Args:
        tensor: contiguous, floating point.
        wire: a block format.
        slices: of the tensor, by offset; each is padded to whole blocks with zeros.
    """

    def __init__(self, tensor: torch.Tensor, wire: WireFormat, slices: Sequence[ParameterSlice]) -> None:
        super().__init__(tensor)
        self._codec = BLOCK_CODECS[wire.dtype]
        self._slices = slices
        self._block = self._codec.block
        counts = [-(-slice_.numel // self._block) for slice_ in slices]
        #: The first block of each slice, and the end.
        self._borders = [0, *accumulate(counts)]
        self._count = self._borders[-1]
        self._itemsize = wire.dtype.itemsize
        self._push_bytes = wire.push_block_bytes
        self.contribution_bytes = self._count * self._push_bytes
        self.result_bytes = wire.dtype.format.result_bytes(self.numel * self._itemsize)
        self._flat: torch.Tensor | None = None
        #: The values being encoded, and what the receivers will decode from them.
        self._scratch = np.empty((2, 0, self._block), np.float32)
        self._is_encoded = bytearray(self._count)

    @property
    def numel(self) -> int:
        """Number of elements, including the padding of blocks."""
        return self._count * self._block

    def open(self) -> None:
        """See `Encoding.open`."""
        self._flat = self.tensor
        self._scratch = np.empty(
            (2, min(self._count, BATCH_ELEMENTS // self._block), self._block), np.float32
        )

    def close(self) -> None:
        """See `Encoding.close`."""
        self._flat = None
        self._scratch = self._scratch[:, :0].copy()

    def where(self, start: int, stop: int) -> tuple[int, int]:
        """See `Encoding.where`."""
        return self._blocks(start) * self._push_bytes, self._blocks(stop) * self._push_bytes

    def _blocks(self, layout_bytes: int) -> int:
        return self._codec.dtype.format.blocks(layout_bytes)

    def encode(self, start: int, stop: int, out: memoryview) -> None:
        """See `Encoding.encode`."""
        base, end = self._blocks(start), self._blocks(stop)
        first = base
        while self._flat is not None and (first := self._is_encoded.find(0, first, end)) >= 0:
            slice_ = bisect_right(self._borders, first) - 1
            last = min(end, self._borders[slice_ + 1], first + BATCH_ELEMENTS // self._block)
            encoded = self._is_encoded.find(1, first, last)
            last = last if encoded < 0 else encoded
            part = np.frombuffer(out, np.uint8)[
                (first - base) * self._push_bytes : (last - base) * self._push_bytes
            ]
            self._encode(self._slices[slice_], first - self._borders[slice_], last - first, part)
            self._is_encoded[first:last] = b"\1" * (last - first)
            first = last

    def _encode(self, slice_: ParameterSlice, first: int, count: int, out: NDArray[np.uint8]) -> None:
        """Encode `count` blocks of a slice."""
        assert self._flat is not None
        start = first * self._block
        stop = min(start + count * self._block, slice_.numel)
        source = self._flat[slice_.offset + start : slice_.offset + stop].to(torch.float32).numpy()
        values, sent = self._scratch[:, :count]
        flat = values.reshape(-1)
        flat[stop - start :] = 0
        residual = slice_.residual
        if residual is None:
            flat[: stop - start] = source
            self._codec.encode(values, out)
            return
        kept, pending = residual.kept.numpy()[start:stop], residual.pending.numpy()[start:stop]
        with np.errstate(over="ignore", invalid="ignore"):  # Inf and NaN are data
            np.multiply(kept, np.float32(residual.loss_scale), out=flat[: stop - start])
            flat[: stop - start] += source
            self._codec.encode(values, out)
            self._codec.start(sent, out)
            np.subtract(values, sent, out=values)
            np.divide(flat[: stop - start], np.float32(residual.loss_scale), out=pending)

    def elements(self, stop: int) -> int:
        """See `Encoding.elements`."""
        blocks = self._blocks(stop)
        index = bisect_right(self._borders, blocks - 1) - 1
        if index < 0:
            return 0
        slice_ = self._slices[index]
        return slice_.offset + min((blocks - self._borders[index]) * self._block, slice_.numel)

    def store(self, start: int, stop: int, payload: memoryview, out: NDArray[np.uint8]) -> None:
        """See `Encoding.store`."""
        begin, end = (self._codec.dtype.format.result_bytes(border) for border in (start, stop))
        self._codec.expand(payload, out[begin:end])

    def decode(self, result: torch.Tensor) -> None:
        """See `Encoding.decode`."""
        encoded, size = result.numpy(), self.result_bytes // max(1, self._count)
        scratch = torch.empty(BATCH_ELEMENTS, dtype=torch.float32)
        for slice_, first, stop in zip(self._slices, self._borders[:-1], self._borders[1:], strict=True):
            elements = self.tensor[slice_.offset : slice_.offset + slice_.numel]
            step = BATCH_ELEMENTS // self._block
            for begin in range(first, stop, step):
                end = min(begin + step, stop)
                values = scratch[: (end - begin) * self._block]
                self._codec.decode(encoded[begin * size : end * size], values.numpy())
                part = elements[(begin - first) * self._block : (end - first) * self._block]
                part.copy_(values[: part.numel()])


def flat_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a contiguous tensor as a flat view.

    Writes to them do not count in the tensor's autograd version counter, as Gloo's writes do not, because `data` has
    its own counter. Their stride is 1. `reshape(-1)` would keep any stride of a tensor with one element or none, and
    torch does not view such a tensor as bytes.
    """
    return tensor.data.as_strided((tensor.numel(),), (1,))


def bytes_of(buffer: torch.Tensor) -> memoryview:
    """Return the memory of a CPU tensor."""
    return buffer.numpy().data
