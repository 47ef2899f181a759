"""Run your script on a slow network without and with reducers, to see whether they would help.

    python -m benchmarks.lab --workers 4 --reducers 4 --rate 1000 --queue 1 -- torchrun --nproc-per-node 1 SCRIPT

Every worker and every reducer is a separate host (a network namespace) with a link of the given rate. The command
runs once on each worker's host, as one node of the job. It finds its place in the variables that torchrun, Lightning
and `init_process_group` read, so its command line must not mention nodes. It alternately runs unchanged, over Gloo's
ring, and with REDUCTION_AUTO, which makes it use the reducers. The script needs no changes, and must not use
reduction_server itself.

A step is the time between two steps of a rank's optimizer (torch.optim), as recorded in the script's processes, so
everything that the script does in between counts. The table has the median over all ranks, and the time of the whole
command. All ranks compute on this machine's cores, with one thread each unless OMP_NUM_THREADS is set, so the results
apply to hosts that compute as fast. Needs root, Linux and iproute2.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

from reduction.discovery.cluster import REDUCERS_VARIABLE, Cluster
from reduction.errors import ConfigError
from reduction.process.place import link_mbit
from reduction.text import counted

from benchmarks.lab.network import Network
from benchmarks.lab.procfs import cores_s
from benchmarks.lab.ranks import RanksFailed
from benchmarks.lab.reducers import Reducers
from benchmarks.lab.script import job, steps
from benchmarks.lab.script.outcome import WITH, WITHOUT, Turn, figure, lines, rows_of
from benchmarks.lab.traffic import Link
from benchmarks.method import results
from benchmarks.method.experiment import Line, at_least
from benchmarks.method.progress import Progress, kept
from benchmarks.method.results import RESULTS
from reducer.launch import world

_AUTO = "REDUCTION_AUTO"
Turns = dict[str, list[Turn]]


def mbit(text: str) -> float:
    """Return the Mbit/s of a text such as 1000 or 1G; see `link_mbit`."""
    try:
        return at_least(1, float)(text)
    except ValueError:
        pass
    try:
        return link_mbit("the rate", text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the settings of the command line."""
    line = Line("lab", __doc__, rounds=2, out=RESULTS)
    line.usage = "%(prog)s [options] -- COMMAND ..."
    add, above = line.add_argument, at_least(0.001, float)
    add("--workers", type=at_least(2), default=4, help="hosts with ranks (%(default)s)")
    add("--reducers", type=at_least(1), help="hosts with reducers; by default as many as workers")
    rate = "rate of every link in each direction, in Mbit/s or as in 1G (%(default)s)"
    add("--rate", type=mbit, default=1000.0, help=rate)
    queue = "ms that a full queue of a link holds (%(default)s)"
    add("--queue", type=above, default=Link(rate_mbit=1).latency_ms, help=queue)
    delay = "ms from a host to the switch, half of a round trip (%(default)s)"
    add("--delay", type=at_least(0, float), default=0.0, help=delay)
    auto = "what goes through the reducers, as in `reducer run` (%(default)s)"
    add("--auto", choices=("ddp", "group"), default="ddp", help=auto)
    add(
        "--warmup",
        type=at_least(0),
        default=2,
        help="initial steps of a turn that do not count (%(default)s)",
    )
    add("--timeout", type=above, default=600.0, help="maximum seconds of a turn (%(default)s)")
    add("command", nargs="+", metavar="COMMAND", help="the command to run on each worker's host")
    given = line.parse_args(words)
    given.reducers = given.reducers or given.workers
    try:
        check(given.command, given.workers)
    except ConfigError as error:
        line.error(str(error))
    return given


def check(command: Sequence[str], workers: int) -> None:
    """Check that the command can run as one of this many nodes.

    Raises:
        ConfigError: the command cannot run so.
    """
    if shutil.which(command[0], path=_path()) is None:
        raise ConfigError(f"there is no program {command[0]!r}")
    script = next((Path(word) for word in command if word.endswith(".py")), None)
    if script is not None and not script.is_file():
        raise ConfigError(f"there is no script {script}: give its path from {Path.cwd()}")
    world.check(Cluster("the lab", (), ("",) * workers), command, os.environ)


def _path() -> str:
    """Return the search path of programs, with this Python's folder first, since sudo drops virtual environments."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def measure(given: argparse.Namespace, turns: Turns, progress: Progress) -> None:
    """Let the command take its turns, and append them to `turns`."""
    link = Link(rate_mbit=given.rate, latency_ms=given.queue, delay_ms=given.delay)
    with (
        tempfile.TemporaryDirectory(prefix="reduction-bench-") as name,
        Network(given.workers, given.reducers, link) as network,
        closing(Reducers(given.reducers, network.reducers)) as reducers,
    ):
        steps.install(Path(name, "hook"))
        for number in range(given.rounds):
            for side in (WITHOUT, WITH):
                folder = Path(name, f"{side}-{number}")
                turn = take(given, side, network, reducers, folder)
                turns[side].append(turn)
                progress.done(f"{side}: {turn.line()}")


def take(given: argparse.Namespace, side: str, network: Network, reducers: Reducers, folder: Path) -> Turn:
    """Run the command on all workers' hosts.

    Raises:
        RanksFailed: the command failed on one of them, or did not finish in time.
    """
    recorded = folder / "steps"
    recorded.mkdir(parents=True)
    environment = {
        name: value for name, value in os.environ.items() if name not in (_AUTO, REDUCERS_VARIABLE)
    }
    environment.setdefault("OMP_NUM_THREADS", "1")
    if side == WITH:
        environment |= {_AUTO: given.auto, REDUCERS_VARIABLE: ",".join(reducers.addresses)}
    hook = [str(folder.parent / "hook"), *filter(None, [environment.get("PYTHONPATH")])]
    environment |= {"PATH": _path(), "PYTHONPATH": os.pathsep.join(hook), steps.FOLDER: str(recorded)}
    addresses = tuple(host.address for host in network.workers)
    tasks = []
    for node, host in enumerate(network.workers):
        place = world.variables(Cluster("the lab", (), addresses, "worker", node), world.MASTER_PORT)
        place["GLOO_SOCKET_IFNAME"] = host.interface
        tasks.append(job.Task(host, environment | place, folder / f"node-{node}.log"))
    traffic, cores, began = network.traffic(), cores_s(), time.monotonic()
    try:
        job.run(given.command, tasks, given.timeout)
    except RanksFailed as error:
        raise RanksFailed(f"{side}: {error}") from error
    seconds = time.monotonic() - began
    idle_s, all_s = (after - before for before, after in zip(cores, cores_s(), strict=True))
    return Turn(
        seconds=seconds,
        steps=steps.intervals(recorded, given.warmup),
        traffic=network.traffic() - traffic,
        busy=1 - idle_s / all_s,
    )


def keep(given: argparse.Namespace, turns: Turns) -> None:
    """Show the table, and write the table and the figure."""
    rows = rows_of(turns, given.workers)
    if not rows:
        return
    path = given.out / "lab.json"
    names = ("workers", "reducers", "rate", "queue", "delay", "auto", "rounds", "warmup", "command")
    results.write(path, {name: getattr(given, name) for name in names}, rows)
    print("\n".join(["", *lines(rows), "", f"rows: {path}"]))
    if find_spec("matplotlib") is None:
        return
    from benchmarks.plots.style import png

    title = f"{given.workers} workers, {given.reducers} reducers, {given.rate:g} Mbit/s"
    path.with_suffix(".png").write_bytes(png(figure(rows, title)))
    print(f"figure: {path.with_suffix('.png')}")


def main() -> None:
    given = parse()
    turns: Turns = {WITHOUT: [], WITH: []}
    hosts = f"{counted(given.workers, 'worker')} and {counted(given.reducers, 'reducer')}"
    turns_text = f"{counted(given.rounds, 'turn')} of each side"
    print(f"{hosts}, links of {given.rate:g} Mbit/s each way: {turns_text}", flush=True)
    if find_spec("matplotlib") is None:
        print("There will be no figure: `pip install matplotlib` for one.", flush=True)
    progress = Progress([1.0] * (2 * given.rounds))
    with kept("lab", lambda: keep(given, turns)):
        measure(given, turns, progress)


if __name__ == "__main__":
    main()
