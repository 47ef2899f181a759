"""How many bytes a chunk has on the wire, by dtype. Pure: the cores ask, and know nothing of what is in them.

The layout (`layout.py`) counts every compressed format as two bytes per element, half of what an element takes while
it is added: so a chunk's borders are block borders (CHUNK_BYTES_MULTIPLE is one or two blocks), and the credit, which
bounds a reducer's memory, counts what a push makes the reducer keep. A `span` is a number of bytes in this sense.
"""

from __future__ import annotations

from reduction.model import DType

#: INT8_BLOCK and FP8_BLOCK: a float32 scale, then so many elements of a byte. The last block is filled up.
SCALED_BLOCK = 256
SCALED_BYTES = 4 + SCALED_BLOCK
#: TOPK: of so many elements each rank sends the k largest, as index (2 bytes) and bfloat16; filled up as above.
TOPK_BLOCK = 512
TOPK_ENTRY_BYTES = 4
#: With more the index would cost more than it saves.
TOPK_MAX = TOPK_BLOCK // 2

_BLOCK = {DType.INT8_BLOCK: SCALED_BLOCK, DType.FP8_BLOCK: SCALED_BLOCK, DType.TOPK: TOPK_BLOCK}


def block(dtype: DType) -> int:
    """Return how many elements are encoded together."""
    return _BLOCK.get(dtype, 1)


def blocks(dtype: DType, span: int) -> int:
    """Return the number of blocks that begin in a span."""
    return -(-span // (block(dtype) * dtype.itemsize))


def push_sizes(dtype: DType, span: int) -> tuple[int, int]:
    """Return the least and the most bytes of a contribution; in between, multiples of the least."""
    if dtype is DType.TOPK:
        least = blocks(dtype, span) * TOPK_ENTRY_BYTES
        return least, least * TOPK_MAX
    nbytes = result_bytes(dtype, span)
    return nbytes, nbytes


def is_push(dtype: DType, nbytes: int, span: int) -> bool:
    """Whether a contribution may have so many bytes."""
    least, most = push_sizes(dtype, span)
    return nbytes == least or (least < nbytes <= most and nbytes % least == 0)


def result_bytes(dtype: DType, span: int) -> int:
    """Return the bytes of a result, of TOPK the most."""
    if dtype in (DType.INT8_BLOCK, DType.FP8_BLOCK):
        return blocks(dtype, span) * SCALED_BYTES
    return blocks(dtype, span) * block(dtype) * dtype.itemsize


def is_placed(dtype: DType) -> bool:
    """Whether the bytes of a result belong where its elements do, one chunk's after the other's."""
    return dtype is not DType.TOPK


def is_result(dtype: DType, nbytes: int, span: int) -> bool:
    """Whether a result may have so many bytes."""
    most = result_bytes(dtype, span)
    return nbytes == most or (dtype is DType.TOPK and nbytes < most)
