"""Run everything that only a GPU can prove with one command, once a GPU machine is available. Not run on one yet.

    python -m benchmarks.gpu.proof results/ --limit-s 540
    python -m benchmarks.gpu.proof results/ --device cpu --tiny     # every part here, in a minute
    python -m benchmarks.gpu.proof results/ --parts cores-reducer,cores-kernels

Writes proof.json and proof.txt after each part (`benchmarks.method.parts`), and traces of training in the same folder.
If something is missing, it chooses an alternative and reports it. Without namespaces and `tc` everything runs on
loopback, which shows correctness and overlap but no ratio to NCCL on a network. Without CUDA's MPS, ranks take turns on
the GPU. If NCCL refuses two ranks on a GPU, the rest runs without it.

part         what it shows                                                               passes if
inventory    GPU, PCIe, versions, what is missing, page-locked copies                    -
tests        tests/gpu: bits, streams, memory, failures, casts, a killed reducer and a   all pass
             killed worker in a step
nccl-2       n=2 at 500 Mbit/s, where neither can win by bytes                           0.95 to 1.05 x NCCL
nccl-4       n=4 at 500 Mbit/s                                                           1.45 x NCCL
training     BERT, n=4 at 1 Gbit/s, with traces: exposed communication, NCCL's waiting   1.4 x NCCL
pipeline     down, network and up together                                               1.1 x the slowest at most
mps-tests    tests/gpu through MPS                                                       all pass
nccl-10g     n=4 at 10 Gbit/s, through MPS                                               1.3 x NCCL
nccl-8       n=8 at 200 Mbit/s                                                           1.68 x NCCL
alone        training on loopback                                                        -
cores-...    parts that need many cores and no GPU (`benchmarks.many_cores`)             -

Ranks share one GPU and one PCIe link, and NCCL is forced to Ring, Simple and Socket, so state that with each figure.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks import many_cores
from benchmarks.gpu.load import GLOO, NOOP, OURS
from benchmarks.lab.ranks import TRIED
from benchmarks.many_cores import LINKS
from benchmarks.method.experiment import Line
from benchmarks.method.parts import Part, Parts, chosen

MPS, RING = frozenset({"mps"}), frozenset({"nccl"})
CONTROL = "nvidia-cuda-mps-control"
#: The part that shows whether NCCL accepts two ranks on a GPU.
FIRST_RING = "nccl-2"
#: The parts after this one use MPS if available.
LAST_WITHOUT_MPS = "pipeline"
#: Timeout for the MPS daemon to start or end, in seconds.
MPS_S = 15.0
#: Time limit of each part in a trial run, in seconds. One of five took 75 at a load of 8.
TINY_S = 240.0


def parts(traces: Path, *, device: str, is_tiny: bool, has_nccl: bool = True) -> list[Part]:
    """Return all parts, the most important first.

    Args:
        traces: the folder for traces.
        device: device of the tensors; on "cpu" Gloo's ring stands in for NCCL's.
        is_tiny: whether only to try the commands, with enough time even on a busy machine.
        has_nccl: whether NCCL accepts several ranks on a GPU, as far as known.
    """
    size, rounds = ("64KiB", "--rounds 1 --warmup 1") if is_tiny else ("64MiB", "--rounds 5 --warmup 2")
    tiny = "--tiny" if is_tiny else ""
    nccl = f"benchmarks.gpu.nccl --device {device} --size {size} {rounds} --json {{out}}/nccl.json"
    training = f"benchmarks.gpu.training --device {device} --model bert {tiny} --out {{out}}"
    if not has_nccl:
        training += f" --contenders {OURS},{GLOO},{NOOP}"
    steps = "--rounds 1 --warmup 1 --profiled 1" if is_tiny else "--rounds 3 --warmup 1 --profiled 1"
    tests = "pytest tests/gpu -q -p no:cacheprovider"
    stages = "--size 256KiB --bucket 64KiB --rounds 1" if is_tiny else "--size 1024MiB --bucket 25MiB"

    def of(workers: int) -> str:
        return "--workers 2 --reducers 1" if is_tiny else f"--workers {workers}"

    def ring(name: str, workers: int, rate: int, limit_s: float, needs: frozenset[str]) -> Part:
        return Part(name, f"{nccl} {of(workers)} --rate {rate}", limit_s, needs)

    found = [
        Part(
            "inventory",
            f"benchmarks.gpu.inventory --device {device} {tiny} --json {{out}}/inventory.json",
            60,
        ),
        Part("tests", tests, 150),
        replace(ring(FIRST_RING, 2, 500, 60, LINKS), otherwise=f"{nccl} {of(2)} --unshaped"),
        ring("nccl-4", 4, 500, 90, LINKS | RING),
        Part(
            "training",
            f"{training} {of(4)} --rate 1000 {steps} --trace {traces}",
            150,
            LINKS,
            f"{training} {of(4)} --unshaped {steps} --trace {traces}",
        ),
        Part("pipeline", f"benchmarks.gpu.pipeline --device {device} {stages}", 60),
        Part("mps-tests", tests, 150, MPS),
        ring("nccl-10g", 4, 10_000, 60, LINKS | RING | MPS),
        ring("nccl-8", 8, 200, 120, LINKS | RING),
        Part("alone", f"{training} {of(4)} --unshaped {steps}", 60),
        *(
            replace(part, name=f"cores-{part.name}", limit_s=min(part.limit_s, 90))
            for part in many_cores.parts(is_tiny=is_tiny)
        ),
    ]
    return [replace(part, limit_s=TINY_S) for part in found] if is_tiny else found


@contextmanager
def mps(run: Parts) -> Iterator[None]:
    """Let the parts in the body use MPS with its own pipes in the GPU's default mode, or record why they cannot."""
    control = shutil.which(CONTROL)
    if control is None:
        run.missing["mps"] = f"no {CONTROL}"
        yield
        return
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}

        def tell(*words: str, text: str | None = None) -> str | None:
            """Return why the daemon failed, or None."""
            try:
                done = subprocess.run(
                    [control, *words],
                    input=text,
                    capture_output=True,
                    text=True,
                    timeout=MPS_S,
                    env=os.environ | variables,
                )
            except subprocess.TimeoutExpired:
                return f"{CONTROL} does not answer within {MPS_S:g} s"
            return (done.stdout + done.stderr).strip() or "it says nothing" if done.returncode else None

        if (why := tell("-d")) is not None:
            run.missing["mps"] = why
            yield
            return
        run.variables |= variables
        try:
            yield
        finally:
            tell(text="quit\n")


def main() -> None:
    parser = Line("gpu.proof", __doc__, device="cuda", tiny=False)
    parser.add_argument("folder", type=Path, help="for results; made if it is not there")
    parser.add_argument("--parts", help="comma-separated; all")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="for all parts together")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wanted = chosen(parts(Path(folder), device=given.device, is_tiny=given.tiny), given.parts, parser)
        run = Parts("proof", given.folder, given.limit_s)
        run.missing |= many_cores.lacks()
        if given.tiny:
            run.variables[TRIED] = "1"
        every = partial(parts, Path(folder), device=given.device, is_tiny=given.tiny)
        names = [part.name for part in every()]

        def run_one(name: str) -> None:
            part = next(part for part in every(has_nccl="nccl" not in run.missing) if part.name == name)
            outcome = run.run(part)
            if name == FIRST_RING and outcome.exit_code != 0:
                run.missing["nccl"] = f"{name}: {outcome.text}"

        last = names.index(LAST_WITHOUT_MPS)
        plain = [part.name for part in wanted if names.index(part.name) <= last]
        for name in plain:
            run_one(name)
        for trace in sorted(Path(folder).glob("*.json")):
            with gzip.open(given.folder / f"trace-{trace.name}.gz", "wb") as packed:
                packed.write(trace.read_bytes())
        with mps(run):
            for part in wanted:
                if part.name not in plain:
                    run_one(part.name)


if __name__ == "__main__":
    main()
