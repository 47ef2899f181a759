"""The codec of each wire dtype. There is one file per kind; `interface.py` defines the interface of codecs."""

from __future__ import annotations

from reduction.codecs.half import Bfloat16Codec, Float16Codec
from reduction.codecs.interface import BlockCodec, Codec
from reduction.codecs.plain import BoolCodec, PlainCodec
from reduction.codecs.scaled import Fp8Codec, Int8Codec
from reduction.codecs.topk import TopkCodec
from reduction.model import DType

__all__ = ["BLOCK_CODECS", "CODECS", "TOPK", "BlockCodec", "Codec"]

TOPK = TopkCodec(DType.TOPK)
BLOCK_CODECS: dict[DType, BlockCodec] = {
    DType.INT8_BLOCK: Int8Codec(DType.INT8_BLOCK),
    DType.FP8_BLOCK: Fp8Codec(DType.FP8_BLOCK),
    DType.TOPK: TOPK,
}
CODECS: dict[DType, Codec] = {
    DType.FLOAT32: PlainCodec(DType.FLOAT32, "<f4"),
    DType.FLOAT64: PlainCodec(DType.FLOAT64, "<f8"),
    DType.BFLOAT16: Bfloat16Codec(DType.BFLOAT16),
    DType.FLOAT16: Float16Codec(DType.FLOAT16),
    DType.INT32: PlainCodec(DType.INT32, "<i4"),
    DType.INT64: PlainCodec(DType.INT64, "<i8"),
    DType.UINT8: PlainCodec(DType.UINT8, "u1"),
    DType.INT8: PlainCodec(DType.INT8, "i1"),
    DType.BOOL: BoolCodec(DType.BOOL, "u1"),
    **BLOCK_CODECS,
}
