"""DDP training on shaped links and on a GPU that all ranks share. The contenders take turns at steps.

    python -m benchmarks.gpu.training --model bert --workers 4 --rate 1000 --trace traces
    python -m benchmarks.gpu.training --model resnet --workers 8 --rate 10000
    python -m benchmarks.gpu.training --model bert --unshaped               # the machine without links
    python -m benchmarks.gpu.training --device cpu --tiny --unshaped        # the same code, without a GPU

Contenders are ours, DDP over Gloo, DDP over NCCL's ring, and torch's noop hook, which does not
communicate.

`exposed` is a step's time less that of the noop hook in the same round, which is the communication not
hidden by computation. `GPU idle` is the share of a step in which no kernel of any rank was on the GPU,
except NCCL's kernels. `NCCL waits` is the share in which an NCCL kernel was on the GPU; such kernels
hold it while they wait for the network. Both come from torch's profiler, in separate steps after the
timed ones. A kernel also counts as being on the shared GPU while it is not its rank's turn, so the real
idle share is larger.

At the end all ranks must have the same bits in every weight, for each contender that communicates, and
our weights must equal those of the others except for rounding. Otherwise the exit code is 1. It is 2 if
the machine lacks something. The log of NCCL is read as in `benchmarks.gpu.nccl`. Writes
gpu-training-*.json, and with --trace a trace of rank 0 for each contender (for chrome://tracing or
Perfetto). Our trace has the parts of each collective of all ranks next to rank 0's backward pass, as
placed by `reducer trace`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu import nccl_log
from benchmarks.gpu import trace as gpu_trace
from benchmarks.gpu.load import NCCL, NOOP, OURS, GpuTraining
from benchmarks.gpu.report import COLUMNS, LABELS, Found, bytes_of, notes, problems, rows_of
from benchmarks.lab.cluster import Cluster, running
from benchmarks.lab.ending import ending_well
from benchmarks.loads.models import RECIPES
from benchmarks.method.experiment import Line, at_least, effort_of, fail, shape_of, show
from benchmarks.method.paired import compare
from benchmarks.method.results import RESULTS
from benchmarks.method.table import size_text

#: Default of --profiled. The profiler needs one more step, in which it starts.
PROFILED = 2


def train(cluster: Cluster, given: argparse.Namespace) -> Found:
    """Train in turn, profile, and compare the weights."""
    ranks, names = cluster.ranks, given.contenders
    ranks.load(GpuTraining, given.model, given.tiny, names, given.bucket_mb)
    measured = compare(cluster, names, effort_of(given))
    shares = {name: profiled(cluster, name, given) for name in names}
    digests = {name: ranks.call("digest", name) for name in names if name != NOOP}
    others = [name for name in digests if name != OURS] if OURS in digests else []
    apart = {name: max(ranks.call("apart", OURS, name)) for name in others}
    log = nccl_log.read(ranks.nccl_logs()) if NCCL in names else None
    found = Found(measured, shares, digests, apart, log, cluster.shape.link)
    found.problems += problems(digests, apart)
    return found


def profiled(cluster: Cluster, name: str, given: argparse.Namespace) -> tuple[float | None, float | None]:
    """Profile a few steps, and return the shares in which the GPU is idle and in which NCCL waits."""
    with TemporaryDirectory(prefix="reduction-bench-") as folder:
        cluster.ranks.call("profile", name, given.profiled + 1, folder)
        paths = [Path(folder, f"profile-{rank}.json") for rank in range(given.workers)]
        traces = [json.loads(path.read_text()) for path in paths if path.exists()]
        if given.trace is not None:
            given.trace.mkdir(parents=True, exist_ok=True)
            out = given.trace / f"{slug(given)}-{name}.json"
            shutil.copy(paths[0], out)
            if name == OURS:  # if this fails, only the profile is left
                command = [sys.executable, "-m", "reducer", "trace", folder]
                subprocess.run([*command, "--profile", paths[0], "-o", out], stdout=subprocess.DEVNULL)
    computes = gpu_trace.kernel_share(traces, nccl=False)
    return None if computes is None else 1 - computes, gpu_trace.kernel_share(traces, nccl=True)


def slug(given: argparse.Namespace) -> str:
    """Return the name of the files of a run."""
    place = "unshaped" if given.unshaped else f"{given.rate:g}mbit"
    kind = f"{given.device}-tiny" if given.tiny else given.device
    return f"gpu-training-{given.model}-n{given.workers}-{kind}-{place}"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = Line(
        "gpu.training",
        __doc__,
        workers=4,
        reducers=None,
        rate=1000.0,
        unshaped=False,
        device="cuda",
        tiny=False,
        rounds=5,
        # DDP creates new buckets after the first step.
        warmup=2,
        out=RESULTS,
    )
    add = parser.add_argument
    add("--model", choices=tuple(RECIPES), default="bert", help="(%(default)s)")
    add("--contenders", help=f"comma-separated, of {','.join(LABELS)}; all that can run")
    add("--bucket-mb", type=float, default=25, help="DDP's bucket_cap_mb, of all (%(default)s)")
    add("--profiled", type=at_least(1), default=PROFILED, help="steps in the profiler (%(default)s)")
    add("--trace", type=Path, help="folder for the traces of rank 0")
    given = parser.parse_args(argv)
    able = [name for name in LABELS if name != NCCL or given.device == "cuda"]
    given.contenders = able if given.contenders is None else given.contenders.split(",")
    if unknown := [name for name in given.contenders if name not in able]:
        parser.error(f"--contenders: {', '.join(unknown)} not among {', '.join(able)} on {given.device}")
    if given.workers < 2 or given.reducers < 1:
        parser.error("--workers must be at least 2, --reducers 1")
    return given


def main() -> None:
    given = parse()
    with ending_well("gpu_training"), running(shape_of(given, sockets=True)) as cluster:
        found = train(cluster, given)
    place = "loopback" if found.link is None else found.link.name
    if found.link is not None and found.link.goodput_mbit is not None:
        place += f", iperf3 {found.link.goodput_mbit:.0f} Mbit/s"
    size = f"{size_text(bytes_of(given))} of gradients"
    show(
        given,
        COLUMNS,
        rows_of(found),
        f"{given.model}, {size}, n={given.workers} k={given.reducers}, {place}\n",
        path=given.out / f"{slug(given)}.json",
        gradient_bytes=bytes_of(given),
        network="loopback" if found.link is None else found.link.json(),
        weights=found.digests,
        apart=found.apart,
        nccl=None if found.nccl is None else found.nccl.json(),
        problems=found.problems,
    )
    print("\n".join(notes(found)))
    fail("gpu_training", found.problems)


if __name__ == "__main__":
    main()
