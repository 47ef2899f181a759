"""The element types and their sizes on the wire, in one table, `FORMATS`.

A new wire dtype needs a number in `DType`, a row in `FORMATS`, and a codec in `reduction/codecs`. The
cores use this table, and know nothing about the contents of payloads.

The layout (`reduction/layout.py`) counts every compressed format as two bytes per element, half the size
of an element while it is added. So a chunk's borders are block borders (CHUNK_BYTES_MULTIPLE is one or two
blocks), and the credit, which bounds a reducer's memory, counts the memory that a push occupies at the
reducer. A number of bytes in this sense is called `layout_bytes`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ReduceOp(enum.IntEnum):
    """Operation that a reducer applies to contributions, with the numbers of the schema."""

    SUM = 1
    AVG = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


class DType(enum.IntEnum):
    """Element types, with the numbers of the schema."""

    FLOAT32 = 1
    FLOAT64 = 2
    BFLOAT16 = 3
    FLOAT16 = 4
    INT32 = 5
    INT64 = 6
    UINT8 = 7
    INT8 = 8
    BOOL = 9
    INT8_BLOCK = 10
    FP8_BLOCK = 11
    TOPK = 12

    @property
    def format(self) -> Format:
        """The dtype's row of `FORMATS`."""
        return FORMATS[self]

    @property
    def itemsize(self) -> int:
        """Bytes per element as the layout counts them."""
        return FORMATS[self].itemsize

    def allows(self, op: ReduceOp) -> bool:
        """Return whether contributions can be reduced with this operation."""
        return op in FORMATS[self].ops


#: Elements of a block of INT8_BLOCK and FP8_BLOCK; the last block is padded with zeros.
SCALED_BLOCK = 256
#: Bytes of a block of INT8_BLOCK or FP8_BLOCK: a float32 scale, and a byte for each element.
SCALED_BYTES = 4 + SCALED_BLOCK
#: Elements of a block of TOPK, padded like those above. Each rank sends the k largest.
TOPK_BLOCK = 512
#: An element of TOPK is an index of 2 bytes and a bfloat16.
TOPK_ENTRY_BYTES = 4
#: The largest k. With a larger k the indices would cost more than they save.
TOPK_MAX = TOPK_BLOCK // 2

_SUMS = frozenset((ReduceOp.SUM, ReduceOp.AVG))
_ALL_OPS = frozenset(ReduceOp)
_INTEGER_OPS = _ALL_OPS - {ReduceOp.AVG}


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How elements of one dtype travel."""

    #: Bytes per element as the layout counts them.
    itemsize: int
    #: Elements that are encoded together.
    block: int = 1
    #: Bytes of one block of a contribution.
    push_block_bytes: int
    #: A contribution may have any whole multiple of `push_block_bytes` per block, up to this factor.
    push_multiple_max: int = 1
    #: Bytes of one block of a result.
    result_block_bytes: int
    #: Whether a result may be smaller, with a size that is known only when it arrives.
    may_shrink: bool = False
    #: Operations with which contributions can be reduced.
    ops: frozenset[ReduceOp]
    #: Name of this format in the setting `wire_dtype`; None if it cannot be chosen there.
    setting: str | None = None
    #: Factor by which rank 0 enlarges the usual chunks, because fewer bytes are on the wire.
    chunk_scale: int = 1

    def blocks(self, layout_bytes: int) -> int:
        """Return the number of blocks that begin within the first `layout_bytes` of the layout."""
        return -(-layout_bytes // (self.block * self.itemsize))

    def push_sizes(self, layout_bytes: int) -> tuple[int, int]:
        """Return the minimum and maximum bytes of a contribution. Sizes in between are multiples of the minimum."""
        least = self.blocks(layout_bytes) * self.push_block_bytes
        return least, least * self.push_multiple_max

    def is_push(self, nbytes: int, layout_bytes: int) -> bool:
        """Return whether a contribution may have `nbytes`."""
        least, most = self.push_sizes(layout_bytes)
        return nbytes == least or (least < nbytes <= most and nbytes % least == 0)

    def result_bytes(self, layout_bytes: int) -> int:
        """Return the bytes of a result, or the maximum if it may shrink."""
        return self.blocks(layout_bytes) * self.result_block_bytes

    def is_result(self, nbytes: int, layout_bytes: int) -> bool:
        """Return whether a result may have `nbytes`."""
        most = self.result_bytes(layout_bytes)
        return nbytes == most or (self.may_shrink and nbytes < most)


def _plain(itemsize: int, ops: frozenset[ReduceOp], setting: str | None = None) -> Format:
    """Return the format of elements that are sent unchanged."""
    return Format(
        itemsize=itemsize, push_block_bytes=itemsize, result_block_bytes=itemsize, ops=ops, setting=setting
    )


def _scaled(setting: str) -> Format:
    """Return the format of blocks with a scale and a byte per element, half the bytes that the layout counts."""
    return Format(
        itemsize=2,
        block=SCALED_BLOCK,
        push_block_bytes=SCALED_BYTES,
        result_block_bytes=SCALED_BYTES,
        ops=_SUMS,
        setting=setting,
        chunk_scale=2,
    )


FORMATS: dict[DType, Format] = {
    DType.FLOAT32: _plain(4, _ALL_OPS),
    DType.FLOAT64: _plain(8, _ALL_OPS),
    DType.BFLOAT16: _plain(2, _ALL_OPS, "bf16"),
    DType.FLOAT16: _plain(2, _ALL_OPS, "fp16"),
    DType.INT32: _plain(4, _INTEGER_OPS),
    DType.INT64: _plain(8, _INTEGER_OPS),
    DType.UINT8: _plain(1, _INTEGER_OPS),
    DType.INT8: _plain(1, _INTEGER_OPS),
    DType.BOOL: _plain(1, _INTEGER_OPS),
    DType.INT8_BLOCK: _scaled("int8"),
    DType.FP8_BLOCK: _scaled("fp8"),
    DType.TOPK: Format(
        itemsize=2,
        block=TOPK_BLOCK,
        push_block_bytes=TOPK_ENTRY_BYTES,
        push_multiple_max=TOPK_MAX,
        result_block_bytes=2 * TOPK_BLOCK,
        may_shrink=True,
        ops=_SUMS,
        setting="topk",
        # A few percent of the bytes are on the wire, but larger chunks would leave reducers idle.
        chunk_scale=8,
    ),
}
