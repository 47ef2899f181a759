"""The element types, and how many bytes a chunk of each has on the wire: one table, `FORMATS`.

A new wire dtype is a number of `DType`, a row of `FORMATS`, and a codec in `reduction/codecs`. The
cores ask this table, and know nothing of what is in the bytes.

The layout (`reduction/layout.py`) counts every compressed format as two bytes per element, half of
what an element takes while it is added. So a chunk's borders are block borders
(CHUNK_BYTES_MULTIPLE is one or two blocks), and the credit, which bounds a reducer's memory, counts
what a push makes the reducer keep. A number of bytes in this sense is called `layout_bytes`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ReduceOp(enum.IntEnum):
    """What a reducer does with the contributions; the numbers are those of the schema."""

    SUM = 1
    AVG = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


class DType(enum.IntEnum):
    """Element types; the numbers are those of the schema."""

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
        """Bytes per element, as the layout counts them."""
        return FORMATS[self].itemsize

    def allows(self, op: ReduceOp) -> bool:
        """Whether contributions can be reduced in this way."""
        return op in FORMATS[self].ops


#: Elements of a block of INT8_BLOCK and FP8_BLOCK; the last block is filled up with zeros.
SCALED_BLOCK = 256
#: Such a block is a float32 scale, and a byte for each element.
SCALED_BYTES = 4 + SCALED_BLOCK
#: Elements of a block of TOPK, of which each rank sends the k largest; filled up likewise.
TOPK_BLOCK = 512
#: An element of TOPK is an index of 2 bytes and a bfloat16.
TOPK_ENTRY_BYTES = 4
#: The largest k. With more the indices would cost more than they save.
TOPK_MAX = TOPK_BLOCK // 2

_SUMS = frozenset((ReduceOp.SUM, ReduceOp.AVG))
_ALL_OPS = frozenset(ReduceOp)
_INTEGER_OPS = _ALL_OPS - {ReduceOp.AVG}


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How elements of one dtype travel."""

    #: Bytes per element, as the layout counts them.
    itemsize: int
    #: Elements that are encoded together.
    block: int = 1
    #: Bytes of one block of a contribution.
    push_block_bytes: int
    #: A contribution may have this many times as many bytes per block, or any whole number of times
    #: less.
    push_multiple_max: int = 1
    #: Bytes of one block of a result.
    result_block_bytes: int
    #: Whether a result may have fewer bytes, which are known only when it comes.
    may_shrink: bool = False
    #: Ways in which contributions can be reduced.
    ops: frozenset[ReduceOp]
    #: What the setting `wire_dtype` calls this format; None if it cannot be chosen there.
    setting: str | None = None
    #: How many times larger than usual the chunks are that rank 0 chooses, because fewer bytes are
    #: on the wire.
    chunk_scale: int = 1

    def blocks(self, layout_bytes: int) -> int:
        """Return the number of blocks that begin within the first `layout_bytes` of the layout."""
        return -(-layout_bytes // (self.block * self.itemsize))

    def push_sizes(self, layout_bytes: int) -> tuple[int, int]:
        """Return the least and the most bytes of a contribution; in between are multiples of the least."""
        least = self.blocks(layout_bytes) * self.push_block_bytes
        return least, least * self.push_multiple_max

    def is_push(self, nbytes: int, layout_bytes: int) -> bool:
        """Whether a contribution may have `nbytes`."""
        least, most = self.push_sizes(layout_bytes)
        return nbytes == least or (least < nbytes <= most and nbytes % least == 0)

    def result_bytes(self, layout_bytes: int) -> int:
        """Return the bytes of a result; the most, if it may shrink."""
        return self.blocks(layout_bytes) * self.result_block_bytes

    def is_result(self, nbytes: int, layout_bytes: int) -> bool:
        """Whether a result may have `nbytes`."""
        most = self.result_bytes(layout_bytes)
        return nbytes == most or (self.may_shrink and nbytes < most)


def _plain(itemsize: int, ops: frozenset[ReduceOp], setting: str | None = None) -> Format:
    """Return the format of elements that travel as they are."""
    return Format(
        itemsize=itemsize, push_block_bytes=itemsize, result_block_bytes=itemsize, ops=ops, setting=setting
    )


def _scaled(setting: str) -> Format:
    """Return the format of blocks of a scale and a byte for each element: half the bytes that the layout counts."""
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
        # A few percent of the bytes are on the wire, but with larger chunks reducers would stand
        # idle.
        chunk_scale=8,
    ),
}
