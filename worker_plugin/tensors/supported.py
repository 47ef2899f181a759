"""Which tensors and operations can be reduced, and their names on the wire."""

from __future__ import annotations

import torch
import torch.distributed as dist
from reduction.errors import ConfigError
from reduction.model import DType, ReduceOp

_DTYPES = {
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.bfloat16: DType.BFLOAT16,
    torch.float16: DType.FLOAT16,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.uint8: DType.UINT8,
    torch.int8: DType.INT8,
    torch.bool: DType.BOOL,
}
_DEVICES = ("cpu", "cuda")
_OPS = (
    (dist.ReduceOp.SUM, ReduceOp.SUM),
    (dist.ReduceOp.AVG, ReduceOp.AVG),
    (dist.ReduceOp.MIN, ReduceOp.MIN),
    (dist.ReduceOp.MAX, ReduceOp.MAX),
    (dist.ReduceOp.PRODUCT, ReduceOp.PRODUCT),
)


def admit(tensor: torch.Tensor, op: dist.ReduceOp.RedOpType | dist.ReduceOp) -> tuple[DType, ReduceOp]:
    """Return the dtype and operation of this collective on the wire. An admitted tensor can be copied and written to.

    Raises:
        ConfigError: the tensor cannot be reduced; the message says what can.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ConfigError(f"a {type(tensor).__name__} cannot be reduced; pass a tensor")
    if tensor.layout is not torch.strided:
        raise ConfigError(f"a {tensor.layout} tensor cannot be reduced; pass a dense one")
    if not tensor.is_contiguous():
        raise ConfigError(
            f"a tensor of shape {tuple(tensor.shape)} and stride {tensor.stride()} is not contiguous; "
            f"pass tensor.contiguous()"
        )
    if tensor.is_neg():
        raise ConfigError("a tensor with the negative bit cannot be reduced; pass tensor.resolve_neg()")
    if tensor.device.type not in _DEVICES:
        raise ConfigError(f"a tensor on {tensor.device} cannot be reduced; cpu and cuda can")
    if tensor.is_cuda:
        _check_capture(tensor.device)
    dtype, ours = _on_the_wire(tensor, op)
    if dtype is None:
        raise ConfigError(f"dtype {tensor.dtype} cannot be reduced; known are {', '.join(map(str, _DTYPES))}")
    if ours is None:
        raise ConfigError(f"op {op} is not supported; known are {', '.join(one.name for _, one in _OPS)}")
    if not dtype.allows(ours):
        raise ConfigError(f"{ours.name} of {tensor.dtype} is not defined: use SUM and divide")
    _check_memory(tensor)
    return dtype, ours


def each_once(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor for writing. Of elements that `expand` has put in one place, it has only the first.

    Raises:
        ConfigError: other elements may share a place, so the order of the writes would be undefined, which matters
            after a lossy `wire_dtype`. Or the tensor has no memory.
    """
    _check_memory(tensor)
    view = tensor.data[tuple(slice(None if stride else 1) for stride in tensor.stride())]
    end = 1
    for stride, size in sorted(zip(view.stride(), view.shape, strict=True)):
        if size > 1 and stride < end and view.numel():
            raise ConfigError(
                f"elements of a tensor of shape {tuple(tensor.shape)} and stride {tensor.stride()} may lie in one "
                f"place; pass tensor.clone()"
            )
        end += stride * (size - 1)
    return view


def is_admitted(tensor: torch.Tensor, op: dist.ReduceOp.RedOpType | dist.ReduceOp) -> bool:
    """Return whether `admit` would accept a dense copy of this tensor: depends on layout, device, dtype and op only."""
    dtype, ours = _on_the_wire(tensor, op)
    if dtype is None or ours is None or tensor.layout is not torch.strided:
        return False
    return tensor.device.type in _DEVICES and dtype.allows(ours)


def _on_the_wire(
    tensor: torch.Tensor, op: dist.ReduceOp.RedOpType | dist.ReduceOp
) -> tuple[DType | None, ReduceOp | None]:
    """Return the names of dtype and operation on the wire; None for one that has no name there."""
    # `op in (...)` is always False for torch's ReduceOp, and it cannot be hashed.
    return _DTYPES.get(tensor.dtype), next((ours for theirs, ours in _OPS if op == theirs), None)


def _check_memory(tensor: torch.Tensor) -> None:
    try:
        tensor.data.as_strided(tensor.shape, tensor.stride()).data_ptr()
    except RuntimeError as error:  # torch would read from the location of its storage before it was freed
        raise ConfigError(
            f"a tensor of shape {tuple(tensor.shape)} without its memory cannot be reduced; do it before its "
            f"storage is freed, and outside of torch.func: {error}"
        ) from error


def _check_capture(device: torch.device) -> None:
    with torch.cuda.device(device):
        if torch.cuda.is_current_stream_capturing():
            raise ConfigError(
                "a collective cannot be part of a CUDA graph, because the CPU has to take part at each replay; "
                "capture the forward pass alone, or what comes before and after the all-reduce"
            )


def check_dense(gradient: torch.Tensor) -> None:
    """Reject a sparse bucket, which DDP creates for each parameter that has sparse gradients.

    Raises:
        ConfigError: the bucket is sparse; the message says what to do.
    """
    if gradient.layout is not torch.strided:
        raise ConfigError(
            f"the gradient of a parameter of shape {tuple(gradient.shape)} is a {gradient.layout} tensor, reducers "
            f"average dense ones: make the nn.Embedding or nn.EmbeddingBag with sparse=False; if few elements of its "
            f"gradient count, wire_dtype='topk' sends only those"
        )
