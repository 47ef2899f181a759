"""The speed of each wire dtype's arithmetic on one thread, in G elements/s of CPU time.

    python -m benchmarks.micro.kernels --chunk 256KiB

A worker encodes (with and without error feedback) and delivers. A reducer starts with the first rank's
contribution, adds the others and finishes. `--chunk` counts bytes as the layout does, with two bytes per
element, or four for float32. The result of all steps must equal that of `benchmarks.loads.codecs.reduced`.
10 Gbit/s of bf16 are 0.625 G elements/s.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from reduction.codecs import BLOCK_CODECS, CODECS
from reduction.model import DType, ReduceOp

from benchmarks.loads.codecs import contribution, delivered, encoding_of, reduced
from benchmarks.method.experiment import Line, size
from benchmarks.method.table import markdown
from worker_plugin.tensors.encoding import BlockEncoding, Encoding, ParameterSlice, Residual
from worker_plugin.tensors.wire_dtype import WireFormat, parse

WIRES = (None, "bf16", "fp16", "int8", "fp8", "topk")
#: A call is repeated until all repetitions together have taken this many CPU seconds.
LEAST_S = 0.02


def seconds(call: Callable[[], object]) -> float:
    """Return the CPU seconds of one call."""
    call()
    repeats = 1
    while True:
        begin = time.thread_time()
        for _ in range(repeats):
            call()
        taken = time.thread_time() - begin
        if taken >= LEAST_S:
            return taken / repeats
        repeats *= 2


def steps(name: str | None, layout_bytes: int) -> tuple[int, dict[str, Callable[[], object]]]:
    """Return the number of elements of a chunk, and the calls to measure by name."""
    wire = parse(name) if name is not None else None
    dtype = DType.FLOAT32 if wire is None else wire.dtype
    codec, numel = CODECS[dtype], layout_bytes // dtype.itemsize
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(numel, generator=generator) * 1e-3 for _ in range(2)]
    first, second = (contribution(encoding_of(tensor, wire), layout_bytes) for tensor in tensors)
    accumulator = np.empty(codec.elements(layout_bytes), codec.accumulation)
    out = None if codec.is_plain else np.empty(dtype.format.result_bytes(layout_bytes), np.uint8).data
    codec.start(accumulator, first)
    codec.add(accumulator, second, ReduceOp.SUM)
    result = memoryview(bytearray(codec.finish(accumulator, out)))
    target = encoding_of(torch.empty(numel), wire)
    if name is not None and not torch.equal(delivered(target, layout_bytes, result), reduced(tensors, name)):
        raise AssertionError(f"{name}: wrong result")
    todo: dict[str, Callable[[], object]] = {
        "encode": lambda: contribution(encoding_of(tensors[0], wire), layout_bytes),
        "start": lambda: codec.start(accumulator, first),
        "add": lambda: codec.add(accumulator, second, ReduceOp.SUM),
        "finish": lambda: codec.finish(accumulator, out),
        "deliver": lambda: delivered(target, layout_bytes, result),
    }
    if wire is not None and dtype in BLOCK_CODECS:
        residual = Residual(torch.zeros(numel), torch.zeros(numel))
        todo["encode+EF"] = lambda: contribution(_with_feedback(tensors[0], wire, residual), layout_bytes)
    return numel, todo


def _with_feedback(tensor: torch.Tensor, wire: WireFormat, residual: Residual) -> Encoding:
    return BlockEncoding(tensor, wire, [ParameterSlice(0, tensor.numel(), residual)])


def main() -> None:
    line = Line("micro.kernels", __doc__, rounds=9)
    line.add_argument("--chunk", type=size, default="128KiB")
    arguments = line.parse_args()
    torch.set_num_threads(1)
    made = {name or "float32": steps(name, arguments.chunk) for name in WIRES}
    rates: dict[tuple[str, str], list[float]] = {}
    for _ in range(arguments.rounds):  # in turn, so that other load on the machine slows all of them
        for name, (numel, todo) in made.items():
            for step, call in todo.items():
                rates.setdefault((name, step), []).append(numel / seconds(call) / 1e9)
    columns = ["encode", "encode+EF", "start", "add", "finish", "deliver"]
    rows = [
        [name] + [f"{statistics.median(rates[name, step]):.2f}" if step in todo else "-" for step in columns]
        for name, (_, todo) in made.items()
    ]
    print(
        f"G elements/s, chunks of {arguments.chunk} bytes as the layout counts, median of {arguments.rounds}"
    )
    print("\n".join(markdown(["wire", *columns], rows)))


if __name__ == "__main__":
    main()
