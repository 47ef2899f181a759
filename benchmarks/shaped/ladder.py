"""The ladder of examples/ladder on shaped links: the rungs take turns at an epoch of the same images.

    python -m benchmarks.shaped.ladder --nodes 4 --rate 100 --rounds 3

Each node is a separate host with one link, and there are as many reducers on separate hosts. A turn runs
train.py as a user would, for two epochs. The second one counts, as printed by rank 0. On the rungs one and
dataparallel there is one process on the first node, on ddp and reducers one process per node, and on hsdp
`--local` processes per node, which share a copy of the model, once with Gloo across nodes and once with the
reducers. `--batch` is the number of images in a batch of all ranks together.

`x Gloo` is the speed with reducers relative to the same training without them, as median and quartiles over
the rounds. All processes share the machine's cores, and each has one thread, so more processes do not compute
faster here, as they would on separate machines. Ranks have the same images with and without reducers, so the
losses may only differ by rounding. If they differ by more than 1 %, the run fails. The losses are rank 0's, for
its part of the last batch. Needs root, iproute2 and the requirements of examples/ladder.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.lab.ending import ending_well
from benchmarks.lab.hosts import LOOPBACK, Host
from benchmarks.lab.network import Network
from benchmarks.lab.ranks import RanksFailed
from benchmarks.lab.reducers import Reducers
from benchmarks.lab.script import job
from benchmarks.lab.traffic import Link
from benchmarks.method.experiment import Line, show
from benchmarks.method.table import quartiles, spread

_LADDER = Path(__file__).parents[2] / "examples" / "ladder"
#: The arguments of each contender.
CONTENDERS = {rung: ["--rung", rung] for rung in ("one", "dataparallel", "ddp", "reducers")}
CONTENDERS |= {"hsdp, Gloo": ["--rung", "hsdp", "--across", "gloo"], "hsdp": ["--rung", "hsdp"]}
#: The same training without reducers.
WITHOUT = {"reducers": "ddp", "hsdp": "hsdp, Gloo"}
COLUMNS = {
    "rung": "{rung}",
    "ranks": "{ranks}",
    "s per epoch (quartiles)": lambda row: spread(row["epoch_s"]),
    "images/s": "{images_per_s:.1f}",
    "x Gloo (quartiles)": lambda row: spread(row["times_as_fast_as_without"]),
    "loss": "{loss:.4f}",
}
#: Timeout for the processes of a turn, in seconds.
TURN_TIMEOUT_S = 300.0
#: Maximum relative difference of the losses with and without reducers.
LOSS_DIFFERENCE_MAX = 0.01
_PORT = 29500
_LINE = re.compile(r"^epoch 2: loss ([\d.]+), (\d+) images, ([\d.]+) s$", re.MULTILINE)


class Epoch(NamedTuple):
    """Rank 0's output for the epoch that counts."""

    loss: float
    images: int
    seconds: float


def measure(arguments: argparse.Namespace) -> dict[str, list[Epoch]]:
    """Return the epochs of each contender."""
    epochs: dict[str, list[Epoch]] = {name: [] for name in CONTENDERS}
    link = Link(rate_mbit=arguments.rate)
    with (
        tempfile.TemporaryDirectory(prefix="reduction-bench-") as folder,
        Network(arguments.nodes, arguments.nodes, link) as network,
        closing(Reducers(arguments.nodes, network.reducers)) as reducers,
    ):
        shards = Path(folder, "shards")
        count = arguments.nodes * arguments.local
        sizes = ["--shards", f"{count}", "--images", f"{arguments.images // count}"]
        subprocess.run([sys.executable, _LADDER / "shards.py", shards, *sizes], check=True)
        for _ in range(arguments.rounds):
            for name, rung in CONTENDERS.items():
                hosts = hosts_of(name, network.workers, arguments.local)
                words = [f"{shards}", *rung, "--batch", f"{arguments.batch}"]
                words += ["--width", f"{arguments.width}", "--shard", f"{arguments.local}"]
                epoch = turn(hosts, words, reducers.addresses, Path(folder, name))
                print(f"{name}: {epoch.seconds:.2f} s, loss {epoch.loss:.4f}", file=sys.stderr, flush=True)
                epochs[name].append(epoch)
    return epochs


def hosts_of(name: str, nodes: Sequence[Host], local: int) -> list[Host]:
    """Return the host of each rank of a contender."""
    if name in ("one", "dataparallel"):
        return [nodes[0]]
    return [host for host in nodes for _ in range(local if name.startswith("hsdp") else 1)]


def turn(hosts: Sequence[Host], words: Sequence[str], reducers: Sequence[str], out: Path) -> Epoch:
    """Run train.py on these hosts for two epochs, and return the second.

    Raises:
        RanksFailed: a rank failed, or did not finish in time.
    """
    out.mkdir(exist_ok=True)
    common = {"WORLD_SIZE": f"{len(hosts)}", "MASTER_ADDR": hosts[0].address, "MASTER_PORT": f"{_PORT}"}
    common |= {"GLOO_SOCKET_IFNAME": hosts[0].interface, "OMP_NUM_THREADS": "1"}
    common |= {"REDUCTION_REDUCERS": ",".join(reducers), "REDUCTION_TRANSPORT": "tcp"}
    command = [sys.executable, f"{_LADDER / 'train.py'}", *words, "--epochs", "2", "--out", f"{out}"]
    tasks = []
    for rank, host in enumerate(hosts):
        places = {"RANK": f"{rank}", "LOCAL_RANK": f"{hosts[:rank].count(host)}"}
        places["LOCAL_WORLD_SIZE"] = f"{hosts.count(host)}"
        tasks.append(job.Task(host, os.environ | common | places, out / f"rank-{rank}.log"))
    job.run(command, tasks, TURN_TIMEOUT_S)
    output = tasks[0].log.read_text()
    match = _LINE.search(output)
    if match is None:
        raise RanksFailed(f"rank 0 has printed no epoch 2:\n{output[-3000:]}")
    return Epoch(float(match[1]), int(match[2]), float(match[3]))


def rows_of(arguments: argparse.Namespace, epochs: dict[str, list[Epoch]]) -> list[dict[str, Any]]:
    """Return a row for each contender."""
    rows = []
    for name, mine in epochs.items():
        seconds = quartiles([epoch.seconds for epoch in mine])
        pairs = zip(epochs[WITHOUT.get(name, name)], mine, strict=True)
        ratio = quartiles([without.seconds / epoch.seconds for without, epoch in pairs])
        rows.append(
            {
                "rung": name,
                "ranks": len(hosts_of(name, [LOOPBACK] * arguments.nodes, arguments.local)),
                "epoch_s": seconds,
                "images_per_s": mine[0].images / seconds.median,
                "times_as_fast_as_without": ratio if name in WITHOUT else None,
                "loss": mine[-1].loss,
            }
        )
    return rows


def check(epochs: dict[str, list[Epoch]]) -> None:
    """Compare the losses with and without reducers.

    Raises:
        RanksFailed: they differ by more than rounding explains.
    """
    for name, other in WITHOUT.items():
        for ours, without in zip(epochs[name], epochs[other], strict=True):
            if abs(ours.loss - without.loss) > LOSS_DIFFERENCE_MAX * without.loss:
                raise RanksFailed(f"{name}: the loss is {ours.loss}, and {without.loss} without reducers")


def main() -> None:
    line = Line("shaped.ladder", __doc__, rate=100.0, rounds=3, json=None)
    add = line.add_argument
    add("--nodes", type=int, default=4, help="and as many reducers (%(default)s)")
    add("--local", type=int, default=2, help="hsdp: ranks of a node (%(default)s)")
    add("--images", type=int, default=256, help="of an epoch (%(default)s)")
    add("--batch", type=int, default=32, help="images of a step (%(default)s)")
    add("--width", type=int, default=32, help="of the ResNet (%(default)s)")
    arguments = line.parse_args()
    # Slow links are intended here. Warnings about slow ranks would hide the output that matters.
    os.environ.setdefault("REDUCTION_STALL_WARN_S", "60")
    with ending_well("ladder"):
        epochs = measure(arguments)
        check(epochs)
    title = (
        f"{arguments.nodes} nodes, {arguments.nodes} reducers, {arguments.rate:g} Mbit/s each way, "
        f"{epochs['one'][0].images} images per epoch, {arguments.batch} per step"
    )
    show(arguments, COLUMNS, rows_of(arguments, epochs), title)


if __name__ == "__main__":
    main()
