"""The errors of averages of gradients: ours in each wire dtype, and those of torch's own compression hooks.

    python -m benchmarks.numerics.accuracy                                # n = 2 to 64, about a minute on 2 cores
    python -m benchmarks.numerics.accuracy --workers 2,8 --data digits

The gradients of n ranks are averaged by our codecs: each rank encodes, and a reducer sums in float32 in
rank order and rounds once. They are also averaged as by `bf16_compress_hook`, `fp16_compress_hook` and
DDP without a hook. For n up to 8 these are the real hooks over Gloo, and `accuracy_sums.ring` must have
the same bits. For larger n only `accuracy_sums.ring` is used. Errors are absolute errors of all elements,
divided by the largest magnitude of the true average in float64. There are two true averages:

- the average of the sent data, which are the contributions after encoding. The remaining errors are those
  of adding and of rounding the result.
- the average of the gradients. The error then includes that of encoding, which for bf16 and fp16 is the
  same on both sides.

Expectation for bf16: let u be the mean error of rounding the average once, which is our error. The ring
rounds n - 1 partial averages, and the squares of these errors add up. If the ranks' gradients have nothing
in common, the average of i ranks' shares is sqrt(i / n) times as large as the whole. The total error is
sqrt((n + 1) / 2 - 1 / n) u, which is 2.1 u at n=8, so the ratio is 0.48. If all gradients are equal, the
average of i shares is i / n times as large, and the ratio is 0.56. The worst of 100,000 errors is a matter
of chance, above all if one element is much larger than the others.

The exit code is 1 unless our bf16 has the bits of the rounded sum, the ring has Gloo's bits, and our bf16
at n=8 has at most WORST_LIMIT and MEAN_LIMIT times the errors of torch's hook relative to the sent data.
Writes accuracy.json.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reduction.model import ReduceOp

from benchmarks.lab import environment
from benchmarks.lab.ending import ending_well
from benchmarks.lab.ranks import Ranks
from benchmarks.method import results
from benchmarks.method.experiment import Cell, Line, among, fail, listed, settings_of, table
from benchmarks.numerics.accuracy_sums import (
    HOOKS,
    SOURCES,
    WIRES,
    Errors,
    Gradients,
    RealRing,
    Values,
    ours,
    rounded_fold,
    torch_average,
)

#: Maximum number of ranks with Gloo.
REAL_MAX = 8
#: Limits of our errors as multiples of torch's, for bf16 at n=LIMIT_WORKERS.
WORST_LIMIT, MEAN_LIMIT, LIMIT_WORKERS = 0.3, 0.5, 8
#: The address of a reducer for communicators that are never used.
_NOWHERE = ("127.0.0.1:9",)


def _error(true: str, index: int) -> Cell:
    return lambda row: f"{row[true][index]:.2e}"


def _ratio(true: str, index: int) -> Cell:
    # A hook of another width sends other values.
    return lambda row: (
        f"{row[true].over(row[f'torch_{true}'])[index]:.2f}"
        if row["hook"] == row["wire"] or true == "gradients"
        else "-"
    )


COLUMNS: dict[str, Cell] = {"wire dtype": "{wire}", "n": "{workers}"}
for _true in ("sent", "gradients"):
    COLUMNS |= {f"{_true}: {what}": _error(_true, index) for index, what in enumerate(Errors._fields)}
    COLUMNS |= {f"{_true}: {what} x torch": _ratio(_true, index) for index, what in enumerate(Errors._fields)}


def rows(data: str, gradients: Gradients, averages: dict[str, Values]) -> list[dict[str, Any]]:
    """Compare our averages with those of torch's hooks, given by width in `averages`.

    Each row has the errors of one wire dtype, and of torch's hook of that width, or of its bf16 hook if there is
    none.
    """
    count = len(gradients.values)
    true = gradients.values.astype(np.float64).sum(0) / count
    made = {wire: ours(gradients, wire, ReduceOp.AVG) for wire in WIRES}
    compared = []
    for wire, summed in made.items():
        hook = wire if wire in averages else "bf16"
        compared.append(
            {
                "data": data,
                "workers": count,
                "wire": wire,
                "hook": hook,
                "sent": Errors.of(summed.result, summed.encoded_sum / count),
                "gradients": Errors.of(summed.result, true),
                "torch_sent": Errors.of(averages[hook], made[hook].encoded_sum / count),
                "torch_gradients": Errors.of(averages[hook], true),
            }
        )
    return compared


def broken(compared: Sequence[dict[str, Any]]) -> list[str]:
    """Return a message for each source where bf16 exceeds a limit."""
    problems = []
    for row in compared:
        if row["wire"] != "bf16" or row["workers"] != LIMIT_WORKERS:
            continue
        ratio = row["sent"].over(row["torch_sent"])
        for name, value, limit in (("worst", ratio.worst, WORST_LIMIT), ("mean", ratio.mean, MEAN_LIMIT)):
            if not value <= limit:
                case = f"{row['data']}, n={LIMIT_WORKERS}"
                problems.append(f"{case}: the {name} error of bf16 is {value:.3f} of torch's, not {limit:g}")
    return problems


def inexact(data: str, gradients: Gradients) -> list[str]:
    """Return a message for each operation whose bf16 result is not the once-rounded sum."""
    return [
        f"{data}, n={len(gradients.values)}: {op.name} in bf16 is not the fold in float32, rounded once"
        for op in (ReduceOp.SUM, ReduceOp.AVG)
        if not np.array_equal(ours(gradients, "bf16", op).result, rounded_fold(gradients, op))
    ]


def unlike(data: str, count: int, simulated: dict[str, Values], real: dict[str, Values]) -> list[str]:
    """Return a message for each width where `accuracy_sums.ring` does not have the bits of Gloo's ring."""
    return [
        f"{data}, n={count}: {np.sum(simulated[width] != real[width])} elements of Gloo's {width} average are "
        f"not those of the ring here"
        for width in real
        if not np.array_equal(simulated[width], real[width])
    ]


def measure(sources: Sequence[str], workers: Sequence[int]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return all rows, and a message for each problem.

    Raises:
        RanksFailed: Gloo failed.
    """
    compared: list[dict[str, Any]] = []
    problems: list[str] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reduction-accuracy-")))
        ranks = None
        if real := [count for count in workers if count <= REAL_MAX]:
            ranks = stack.enter_context(closing(Ranks(max(real), _NOWHERE)))
            ranks.load(RealRing)
        for data in sources:
            for count in workers:
                gradients = SOURCES[data](count)
                averages = {width: torch_average(gradients, width) for width in HOOKS}
                if ranks is not None and count <= REAL_MAX:
                    path = folder / f"{data}-{count}.npy"
                    np.save(path, gradients.values)
                    by_gloo = {width: ranks.call("average", path, width)[0] for width in HOOKS}
                    problems += unlike(data, count, averages, by_gloo)
                    averages = by_gloo
                problems += inexact(data, gradients)
                compared += rows(data, gradients, averages)
    return compared, problems


def main() -> None:
    given = _arguments()
    torch.set_num_threads(1)  # the ranks share the cores
    with ending_well("accuracy"):
        compared, problems = measure(given.data, given.workers)
    problems += broken(compared)
    described = environment.describe()
    print(environment.summary(described))
    for data in given.data:
        print(f"\n{data}; x torch: by the error of torch's hook, for fp8, int8 and topk of that for bf16\n")
        print("\n".join(table(COLUMNS, [row for row in compared if row["data"] == data])))
    if small := [count for count in given.workers if count <= REAL_MAX]:
        print(f"\ntorch's hooks ran over Gloo for n = {', '.join(map(str, small))}; above, the ring here")
    results.write(given.out / "accuracy.json", settings_of(given), compared, described, problems=problems)
    fail("accuracy", problems)
    print("bf16 is the rounded fold; Gloo and the ring here have the same bits; the limits hold")


def _arguments() -> argparse.Namespace:
    line = Line("numerics.accuracy", __doc__, out=results.RESULTS)
    add = line.add_argument
    add("--workers", type=_counts, default="2,4,8,16,32,64", help="values of n (%(default)s)")
    add("--data", type=among(SOURCES), default=",".join(SOURCES), help="which gradients (%(default)s)")
    return line.parse_args()


def _counts(text: str) -> list[int]:
    counts = sorted(set(listed(int)(text)))
    if counts[0] < 2 or counts[-1] > 1024:
        raise argparse.ArgumentTypeError("n is from 2 to 1024")
    return counts


if __name__ == "__main__":
    main()
