"""The block codecs as torch operations, on any device: the same results as `reduction.codecs` in numpy, bit for bit.

A GPU that encodes sends a quarter of a gradient's bytes, or less, to host memory. Only the representation of NaNs in
decoded values may differ.

A product and a sum are separate operations here, since a fused one rounds once where the CPU rounds twice. No divisor
is a Python number, since torch would multiply by its inverse on a GPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from reduction.codecs.scaled import SMALLEST, e4m3_codes, e4m3_values
from reduction.model import DType
from reduction.model.wire_sizes import SCALED_BLOCK, TOPK_BLOCK, TOPK_ENTRY_BYTES

from worker_plugin.tensors.wire_dtype import WireFormat

#: The bit patterns of NaNs in contributions.
_FLOAT32_NAN, _BFLOAT16_NAN = 0x7FC00000, 0x7FC0


class GpuCodec(ABC):
    """The worker's half of a block codec. Tensors have one row per block, on one device; no operation waits for it."""

    @abstractmethod
    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the contribution of float32 values, as bytes."""

    @abstractmethod
    def sent(self, contribution: torch.Tensor) -> torch.Tensor:
        """Return the float32 values that a reducer will read from a contribution, in newly allocated memory."""

    @abstractmethod
    def decode(self, result: torch.Tensor) -> torch.Tensor:
        """Return the float32 values of a result as written by `BlockCodec.expand`."""


class _ScaledCodec(GpuCodec):
    largest: float

    @abstractmethod
    def _quantise(self, scaled: torch.Tensor) -> torch.Tensor:
        """Return the elements, one byte each."""

    @abstractmethod
    def _values(self, elements: torch.Tensor) -> torch.Tensor:
        """Return the float32 values of elements with scale 1."""

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """See `GpuCodec.encode`."""
        most = values.abs().amax(dim=1)
        factor = torch.full_like(most, self.largest).div_(most).masked_fill_(~(most > SMALLEST), 0)
        scale = (most * float(np.float32(1 / self.largest))).masked_fill_(most <= SMALLEST, 0)
        scale.view(torch.int32).masked_fill_(~most.isfinite(), _FLOAT32_NAN)
        elements = self._quantise(values * factor[:, None])
        return torch.cat([scale.view(torch.uint8).view(-1, 4), elements.view(torch.uint8)], dim=1)

    def sent(self, contribution: torch.Tensor) -> torch.Tensor:
        """See `GpuCodec.sent`."""
        scale = contribution[:, :4].contiguous().view(torch.float32)
        return self._values(contribution[:, 4:]).mul_(scale)

    def decode(self, result: torch.Tensor) -> torch.Tensor:
        """See `GpuCodec.decode`."""
        return self.sent(result.view(-1, 4 + SCALED_BLOCK))


class _Int8Codec(_ScaledCodec):
    largest = 127.0

    def _quantise(self, scaled: torch.Tensor) -> torch.Tensor:
        return scaled.round_().nan_to_num_(nan=0.0).to(torch.int8)

    def _values(self, elements: torch.Tensor) -> torch.Tensor:
        return elements.view(torch.int8).to(torch.float32)


class _Fp8Codec(_ScaledCodec):
    """Uses the tables of the CPU's codec, so that both round in the same way."""

    largest = 448.0

    def __init__(self, device: torch.device) -> None:
        self._codes = torch.from_numpy(e4m3_codes()).to(device)
        self._of_codes = torch.from_numpy(e4m3_values()).to(device)

    def _quantise(self, scaled: torch.Tensor) -> torch.Tensor:
        bits = scaled.view(torch.int32)
        odd = ((bits & 0xFFFF) + 0xFFFF).bitwise_or_(bits)
        odd.bitwise_right_shift_(16).bitwise_and_(0xFFFF)
        return self._codes.index_select(0, odd.view(-1)).view(bits.shape)

    def _values(self, elements: torch.Tensor) -> torch.Tensor:
        return self._of_codes.index_select(0, elements.reshape(-1).to(torch.int32)).view(elements.shape)


class _TopkCodec(GpuCodec):
    def __init__(self, k: int, device: torch.device) -> None:
        self._k = k
        #: Larger for lower indices, so that the first of several equal magnitudes are sent.
        self._order = torch.arange(TOPK_BLOCK - 1, -1, -1, device=device)

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """See `GpuCodec.encode`."""
        magnitudes = (values.view(torch.int32) & 0x7FFFFFFF).to(torch.int64)
        keys = magnitudes.mul_(TOPK_BLOCK).add_(self._order)
        best = keys.topk(self._k, dim=1, sorted=False).indices.sort(dim=1).values
        chosen = values.gather(1, best)
        bits = chosen.view(torch.int32)
        rounded = ((bits >> 16) & 1).add_(0x7FFF).add_(bits).bitwise_right_shift_(16)
        rounded.masked_fill_(chosen.isnan(), _BFLOAT16_NAN)
        entries = torch.stack([best.to(torch.int16), rounded.to(torch.int16)], dim=2)
        return entries.view(torch.uint8).view(-1, self._k * TOPK_ENTRY_BYTES)

    def sent(self, contribution: torch.Tensor) -> torch.Tensor:
        """See `GpuCodec.sent`."""
        entries = contribution.view(torch.int16).view(-1, self._k, 2)
        values = torch.zeros(len(entries), TOPK_BLOCK, dtype=torch.float32, device=contribution.device)
        chosen = entries[:, :, 1].contiguous().view(torch.bfloat16).to(torch.float32)
        return values.scatter_(1, entries[:, :, 0].to(torch.int64), chosen)

    def decode(self, result: torch.Tensor) -> torch.Tensor:
        """See `GpuCodec.decode`."""
        return result.view(torch.bfloat16).view(-1, TOPK_BLOCK).to(torch.float32)


_codecs: dict[tuple[WireFormat, torch.device], GpuCodec] = {}


def codec_of(wire: WireFormat, device: torch.device) -> GpuCodec:
    """Return the codec of a block format. There is one per device, which keeps its tables there."""
    codec = _codecs.get((wire, device))
    if codec is None:
        match wire.dtype:
            case DType.INT8_BLOCK:
                codec = _Int8Codec()
            case DType.FP8_BLOCK:
                codec = _Fp8Codec(device)
            case DType.TOPK:
                codec = _TopkCodec(wire.k, device)
            case _:
                raise AssertionError(f"{wire.dtype.name} has no blocks")
        _codecs[wire, device] = codec
    return codec
