"""What a machine of two cores cannot show, in ten minutes on one with sixteen: one command.

    python -m benchmarks.many_cores results/

Runs one benchmark after the other as commands of their own, each within its limit of time, and keeps
what they print and write in the folder. Nothing of this has been run on such a machine yet. Needs root and
iproute2.

- `links`: all-reduces at 5, 10 and 25 Gbit/s beside Gloo's ring, and what iperf3 says of the links.
- `processes`: the same with as many processes per reducer as `reducer serve` starts.
- `reducer`: eight workers and one reducer host on links that limit nothing. From its CPU s/GB follow the
  cores per 100 Gbit/s, for float32, bfloat16 and float16: CPU s/GB x 12.5.
- `rank`: two workers and four reducers on such links: what one rank can carry, with its I/O in the process
  and beside it.
- `kernels`: elements per second of the arithmetic.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

_SHAPED = "benchmarks.shaped --size 64MiB --warmup 2 --burst 512KiB"
_UNLIMITED = f"{_SHAPED} --rate 100000 --no-iperf --rounds 5"
#: Module and arguments of each command, and the seconds that it may take.
STEPS = {
    "links": (f"{_SHAPED} --rate 5000,10000,25000 --rounds 5 --contenders tcp,grpc,ring", 200),
    "processes": (
        f"{_SHAPED} --rate 10000,25000 --rounds 5 --processes 0 --no-iperf --contenders tcp,ring",
        120,
    ),
    "reducer": (f"{_UNLIMITED} --workers 8 --reducers 1 --processes 0 --contenders tcp,bf16,fp16,ring", 120),
    "rank": (f"{_UNLIMITED} --workers 2 --reducers 4 --contenders tcp,tcp-io-process,ring", 90),
    "kernels": ("benchmarks.micro.kernels", 60),
}


def run(name: str, folder: Path) -> str:
    """Run a step; return how it went."""
    command, limit_s = STEPS[name]
    words = [sys.executable, "-m", *command.split()]
    if command.startswith("benchmarks.shaped"):
        words += ["--json", str(folder / f"{name}.json")]
    begin = time.monotonic()
    with open(folder / f"{name}.txt", "w", encoding="utf-8") as output:
        try:
            code = subprocess.run(words, stdout=output, stderr=subprocess.STDOUT, timeout=limit_s).returncode
        except subprocess.TimeoutExpired:
            return f"{name}: not done within {limit_s} s"
    return f"{name}: exit code {code} after {time.monotonic() - begin:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.many_cores",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="for results; made if it is not there")
    parser.add_argument("--steps", default=",".join(STEPS), help="comma-separated")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.steps.split(","):
        print(run(name, arguments.folder), flush=True)


if __name__ == "__main__":
    main()
