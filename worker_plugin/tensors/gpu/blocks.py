"""A block codec with error feedback on a GPU, so that only data sent and received crosses PCIe."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import torch

from worker_plugin.tensors.encoding import BlockEncoding, ParameterSlice
from worker_plugin.tensors.gpu.codecs import codec_of
from worker_plugin.tensors.wire_dtype import WireFormat

#: Number of elements decoded at a time, the same as are encoded at a time (`downloads.BATCH_BYTES`).
DECODED_ELEMENTS = 1 << 19


class GpuBlockEncoding(BlockEncoding):
    """Has the same contributions, results and residuals as `BlockEncoding`, bit for bit; residuals are on the GPU."""

    def __init__(self, tensor: torch.Tensor, wire: WireFormat, slices: Sequence[ParameterSlice]) -> None:
        super().__init__(tensor, wire, slices)
        self._on_gpu = codec_of(wire, tensor.device)
        self._offsets = [slice_.offset for slice_ in slices]

    def fetch(self, host: torch.Tensor, first: int, stop: int) -> None:
        """See `Encoding.fetch`; fetches the blocks whose last elements are among these."""
        begin, end = self._whole_blocks(first), self._whole_blocks(stop)
        if begin == end:
            return
        values = torch.zeros(end - begin, self._block, dtype=torch.float32, device=self.tensor.device)
        parts = list(self._parts(values, begin, end))
        for slice_, start, last, part in parts:
            source = self.tensor[slice_.offset + start : slice_.offset + last].to(torch.float32)
            if slice_.residual is None:
                part.copy_(source)
            else:
                torch.mul(slice_.residual.kept[start:last], slice_.residual.loss_scale, out=part).add_(source)
        contribution = self._on_gpu.encode(values)
        target = host[begin * self._push_bytes : end * self._push_bytes]
        target.copy_(contribution.view(-1), non_blocking=True)
        if any(slice_.residual is not None for slice_, *_ in parts):
            values.sub_(self._on_gpu.sent(contribution))
        for slice_, start, last, part in parts:
            if (residual := slice_.residual) is not None:
                loss_scale = torch.full((1,), residual.loss_scale, dtype=torch.float32, device=values.device)
                torch.div(part, loss_scale, out=residual.pending[start:last])

    def decode(self, result: torch.Tensor) -> None:
        """See `Encoding.decode`."""
        size, step = self.result_bytes // max(1, self._count), DECODED_ELEMENTS // self._block
        for begin in range(0, self._count, step):
            end = min(begin + step, self._count)
            encoded = result[begin * size : end * size].to(self.tensor.device, non_blocking=True)
            for slice_, start, last, part in self._parts(self._on_gpu.decode(encoded), begin, end):
                self.tensor[slice_.offset + start : slice_.offset + last].copy_(part)

    def _whole_blocks(self, elements: int) -> int:
        """Return the number of blocks without elements beyond the first `elements` elements of the tensor."""
        index = bisect_right(self._offsets, elements - 1) - 1
        if index < 0:
            return 0
        within, numel = elements - self._offsets[index], self._slices[index].numel
        return self._borders[index + 1] if within >= numel else self._borders[index] + within // self._block

    def _parts(
        self, values: torch.Tensor, begin: int, end: int
    ) -> Iterator[tuple[ParameterSlice, int, int, torch.Tensor]]:
        """Yield each slice in blocks [begin, end), its first and last element there, and these elements in `values`."""
        flat, first = values.view(-1), begin
        while first < end:
            index = bisect_right(self._borders, first) - 1
            slice_, last = self._slices[index], min(end, self._borders[index + 1])
            start = (first - self._borders[index]) * self._block
            stop = min((last - self._borders[index]) * self._block, slice_.numel)
            at = (first - begin) * self._block
            yield slice_, start, stop, flat[at : at + stop - start]
            first = last
