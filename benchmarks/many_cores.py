"""Measurements that a machine with two cores cannot make: one command, ten minutes on sixteen cores.

    python -m benchmarks.many_cores results/

Writes many_cores.json and many_cores.txt there after each part. None of this has been run on such a machine yet.
Links need root and iproute2. Without them, `reducer` and `rank` run on loopback.

- `links`: all-reduces at 5, 10 and 25 Gbit/s compared with Gloo's ring, and iperf3's rate on the links.
- `processes`: the same with as many processes per reducer as `reducer serve` starts.
- `reducer`: eight workers and one reducer host on links that are never the limit. Its CPU s/GB gives the
  cores per 100 Gbit/s, for float32, bfloat16 and float16: CPU s/GB x 12.5.
- `rank`: two workers and four reducers on such links. This shows the throughput of one rank, with its I/O in
  the same process and in a separate one.
- `kernels`: elements per second of the arithmetic.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.lab.network import NetworkUnavailable, check_network
from benchmarks.lab.ranks import TRIED
from benchmarks.method.experiment import Line
from benchmarks.method.parts import Part, Parts, chosen

LINKS = frozenset({"links"})


def parts(*, is_tiny: bool = False) -> list[Part]:
    """Return the parts. Tiny ones only test the commands, and tell nothing about speed."""
    size, rounds = ("64KiB", "--rounds 1 --warmup 1") if is_tiny else ("64MiB", "--rounds 5 --warmup 2")
    of_links, fast, fastest = (
        ("500", "500", "500") if is_tiny else ("5000,10000,25000", "10000,25000", "100000")
    )
    shaped = f"benchmarks.shaped --size {size} {rounds} --burst 512KiB --json {{out}}/shaped.json"
    loopback = (
        f"benchmarks.gpu.nccl --device cpu --unshaped --size {size} {rounds} --json {{out}}/loopback.json"
    )
    eight_on_one, two_on_four = "--workers 8 --reducers 1", "--workers 2 --reducers 4"
    few = ""
    if is_tiny:
        eight_on_one = two_on_four = few = "--workers 2 --reducers 1"
    return [
        Part("links", f"{shaped} --rate {of_links} --contenders tcp,grpc,ring {few}", 200, LINKS),
        Part(
            "processes",
            f"{shaped} --rate {fast} --processes 0 --contenders tcp,ring {few} --no-iperf",
            120,
            LINKS,
        ),
        Part(
            "reducer",
            f"{shaped} --rate {fastest} --no-iperf --processes 0 --contenders tcp,bf16,fp16,ring {eight_on_one}",
            120,
            LINKS,
            f"{loopback} {eight_on_one}",
        ),
        Part(
            "rank",
            f"{shaped} --rate {fastest} --no-iperf --contenders tcp,tcp-io-process,ring {two_on_four}",
            90,
            LINKS,
            f"{loopback} {two_on_four}",
        ),
        Part("kernels", f"benchmarks.micro.kernels {'--chunk 4KiB --rounds 1' if is_tiny else ''}", 60),
    ]


def lacks() -> dict[str, str]:
    """Return the requirements of the parts that this machine does not meet, each with the reason."""
    try:
        check_network()
    except NetworkUnavailable as error:
        return {"links": str(error)}
    return {}


def main() -> None:
    line = Line("many_cores", __doc__, tiny=False)
    line.add_argument("folder", type=Path, help="for results; made if it is not there")
    line.add_argument("--parts", help="comma-separated; all")
    arguments = line.parse_args()
    wanted = chosen(parts(is_tiny=arguments.tiny), arguments.parts, line)
    run = Parts("many_cores", arguments.folder)
    run.missing = lacks()
    if arguments.tiny:
        run.variables[TRIED] = "1"
    for part in wanted:
        run.run(part)


if __name__ == "__main__":
    main()
