"""The `wire_dtype` setting: its names, and what they apply to."""

from __future__ import annotations

from dataclasses import dataclass

from reduction.errors import ConfigError
from reduction.model import FORMATS, DType, ReduceOp

#: Fraction of each block's elements that "topk" sends, unless the setting names another one.
RATIO_DEFAULT = 0.01
_NAMES = {
    name: dtype
    for name, dtype in sorted((format.setting, dtype) for dtype, format in FORMATS.items() if format.setting)
}
_REAL = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
_SUMS = (ReduceOp.SUM, ReduceOp.AVG)


@dataclass(frozen=True, slots=True)
class WireFormat:
    """The format in which sums and averages of floating-point numbers are sent."""

    dtype: DType
    #: Number of largest elements of a block that are sent; 1 unless the format leaves a choice.
    k: int = 1

    def applies_to(self, dtype: DType, op: ReduceOp) -> bool:
        """Return whether a collective is sent in this format; all others are sent unchanged."""
        return dtype in _REAL and op in _SUMS and self._is_smaller(dtype)

    @property
    def block(self) -> int:
        """Number of elements that are encoded together."""
        return self.dtype.format.block

    @property
    def push_block_bytes(self) -> int:
        """Bytes of one block of a contribution."""
        return self.k * self.dtype.format.push_block_bytes

    def _is_smaller(self, dtype: DType) -> bool:
        return self.block > 1 or self.dtype.itemsize < dtype.itemsize


def parse(text: str | None, setting: str = "wire_dtype") -> WireFormat | None:
    """Return the format that a setting names; None: every tensor's own.

    Raises:
        ConfigError: there is no such format.
    """
    if text is None:
        return None
    name, colon, ratio = text.partition(":")
    dtype = _NAMES.get(name)
    has_ratio = dtype is not None and dtype.format.push_multiple_max > 1
    if dtype is None or (colon and not has_ratio):
        raise ConfigError(
            f"{setting} is {text!r}; this version knows None, {', '.join(map(repr, _NAMES))} and 'topk:RATIO'"
        )
    if not has_ratio:
        return WireFormat(dtype)
    most = dtype.format.push_multiple_max / dtype.format.block
    try:
        share = float(ratio) if colon else RATIO_DEFAULT
    except ValueError:
        share = 0.0
    if not 0 < share <= most:
        raise ConfigError(f"{setting} is {text!r}; the ratio must be a number above 0, {most:g} at most")
    return WireFormat(dtype, max(1, round(share * dtype.format.block)))
