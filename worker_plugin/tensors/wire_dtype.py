"""The setting `wire_dtype`: its names, and what they apply to."""

from __future__ import annotations

from dataclasses import dataclass

from reduction import formats
from reduction.errors import ConfigError
from reduction.model import DType, ReduceOp

#: Of each block of 512 elements "topk" sends so many, as a share.
RATIO_DEFAULT = 0.01
_NAMES = {
    "bf16": DType.BFLOAT16,
    "fp16": DType.FLOAT16,
    "fp8": DType.FP8_BLOCK,
    "int8": DType.INT8_BLOCK,
    "topk": DType.TOPK,
}
_REAL = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
_SUMS = (ReduceOp.SUM, ReduceOp.AVG)


@dataclass(frozen=True, slots=True)
class WireFormat:
    """What sums and averages of floating-point numbers travel as."""

    dtype: DType
    #: Of TOPK: elements of each block.
    k: int = 0

    def applies_to(self, dtype: DType, op: ReduceOp) -> bool:
        """Whether a collective is sent in this format; all others travel as they are."""
        return dtype in _REAL and op in _SUMS and self._is_smaller(dtype)

    @property
    def block(self) -> int:
        """How many elements are encoded together."""
        return formats.block(self.dtype)

    def _is_smaller(self, dtype: DType) -> bool:
        return self.block > 1 or dtype is DType.FLOAT32


def parse(text: str | None) -> WireFormat | None:
    """Return the format of that name; None: every tensor's own.

    Raises:
        ConfigError: there is none.
    """
    if text is None:
        return None
    name, colon, ratio = text.partition(":")
    dtype = _NAMES.get(name)
    if dtype is None or (colon and dtype is not DType.TOPK):
        raise ConfigError(
            f"wire_dtype is {text!r}; this version knows None, {', '.join(map(repr, _NAMES))} and 'topk:RATIO'"
        )
    if dtype is not DType.TOPK:
        return WireFormat(dtype)
    most = formats.TOPK_MAX / formats.TOPK_BLOCK
    try:
        share = float(ratio) if colon else RATIO_DEFAULT
    except ValueError:
        share = 0.0
    if not 0 < share <= most:
        raise ConfigError(f"wire_dtype is {text!r}; the ratio must be a number above 0, {most:g} at most")
    return WireFormat(dtype, max(1, round(share * formats.TOPK_BLOCK)))
