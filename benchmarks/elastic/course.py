"""Runs a job, kills its workers on a schedule, and restarts them."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lab.procfs import children
from benchmarks.lab.ranks import RanksFailed
from benchmarks.lab.reducers import Reducers
from benchmarks.method.history import History, merge
from benchmarks.method.table import tail

#: Timeout in seconds for a job's first step, and for its last one.
PATIENCE_S = 120.0
#: The loss is still falling between these numbers of samples.
EARLY_SAMPLES = 20_000, 30_000
#: Seconds between two checkpoints of the job under torchrun.
CHECKPOINT_S = 60.0
#: The lines that a worker has written, one for each step.
Lines = list[dict[str, Any]]
LOAD = Path(__file__).with_name("load.py")
_JOB = "elastic"


@dataclass(frozen=True, slots=True)
class Course:
    """The results of a run."""

    #: Seconds from the first strike to the end.
    seconds: float
    #: Samples that went into the weights, over all workers.
    samples: int
    #: Number of steps in the final weights, and number of steps that were repeated.
    steps: int
    repeated: int
    #: Seconds from each kill to the survivors' next step.
    gaps: tuple[float, ...]
    loss: float
    #: Mean loss while the total number of samples was within EARLY_SAMPLES.
    early_loss: float = math.nan
    #: Uses of samples that are missing in the finished epochs, because workers were killed.
    unused: int = 0
    #: Number of kills that hit the worker with the lowest rank present.
    first: int = 0

    def gap_s(self) -> dict[str, float] | None:
        """Return the typical and the longest gaps; None if no worker was killed."""
        return tail(self.gaps)._asdict() if self.gaps else None


def elastic(settings: Namespace, say: Callable[[str], None]) -> Course:
    """Kill workers of an elastic job, and check that no survivor ends and that all have the same bits.

    With a history every step reduces some additional tensors, and the file records every worker's inputs and results.

    Raises:
        RanksFailed: a survivor ended, or the bits differ.
    """
    with tempfile.TemporaryDirectory() as name, closing(Reducers(settings.reducers)) as reducers:
        folder = Path(name)
        variables = environment(folder, settings.pause_s) | of_job(_JOB, folder, reducers, settings.workers)
        (folder / "history").mkdir()
        if settings.history is not None:
            variables["HISTORY"] = str(folder / "history")

        def begin(rank: int) -> subprocess.Popen[bytes]:
            return start([str(LOAD)], variables | {"REDUCTION_RANK": str(rank)}, folder, rank)

        workers = {rank: begin(rank) for rank in range(settings.workers)}
        try:
            return _strike_workers(settings, folder, workers, reducers, begin, say)
        finally:
            for worker in workers.values():
                worker.kill()
                worker.wait()
            if settings.history is not None:
                merge(settings.history, (folder / "history").iterdir(), ())


def _strike_workers(
    settings: Namespace,
    folder: Path,
    workers: dict[int, subprocess.Popen[bytes]],
    reducers: Reducers,
    begin: Callable[[int], subprocess.Popen[bytes]],
    say: Callable[[str], None],
) -> Course:
    chance = random.Random(settings.seed)
    history = History(folder / "history" / "strikes")

    def all_have_stepped() -> bool:
        return all(lines_of(folder, worker.pid) for worker in workers.values())

    wait_until(all_have_stepped, "the first step")
    began, first, kills = time.monotonic(), 0, []
    for number in range(settings.kills):
        _sleep_until(began + (number + 1) * settings.every_s, workers)
        rank = chance.choice(sorted(workers))
        first += rank == min(workers)
        victim = workers.pop(rank)
        kills.append((time.monotonic(), victim.pid))
        victim.kill()
        victim.wait()
        for path in (folder / "history").glob(f"*-{victim.pid}"):
            history.record("killed", job=_JOB, worker=read(path)[0]["worker"])
        reducer = chance.randrange(settings.reducers)
        if settings.reducers_too:
            reducers.kill(reducer)
            history.record("fault", kind="kill reducer", hosts=[reducer], seconds=settings.back_after_s)
        _sleep_until(kills[-1][0] + settings.back_after_s, workers)
        if settings.reducers_too:
            reducers.restart(reducer)
        workers[rank] = begin(rank)
        if (number + 1) % 10 == 0:
            say(f"{number + 1} workers killed")
    if not settings.kills:
        wait_until(lambda: _samples_of(folder) > EARLY_SAMPLES[1], f"sample {EARLY_SAMPLES[1]}")
    wait_until(all_have_stepped, "the last worker")
    (folder / "stop").touch()
    seconds = time.monotonic() - began
    for rank, worker in workers.items():
        if worker.wait(PATIENCE_S) != 0:
            raise RanksFailed(f"worker {rank} ended with {worker.returncode}:\n{log_of(folder)}")
    survivors = {path.name.partition("-")[2]: read(path) for path in (folder / "out").iterdir()}
    check_bits(survivors, settings.workers)
    said = [line for lines in survivors.values() for line in lines]
    return Course(
        seconds,
        samples=sum(line["samples"] for line in said),
        steps=max(line["step"] for line in said),
        repeated=0,
        gaps=tuple(gap(survivors, at, str(pid)) for at, pid in kills),
        loss=_loss(said),
        early_loss=_early_loss(said),
        unused=_unused(said),
        first=first,
    )


def restarted(settings: Namespace, say: Callable[[str], None]) -> Course:
    """Kill ranks of a job under torchrun, which restarts all of them from the last checkpoint."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        variables = environment(folder, settings.pause_s) | {
            "CHECKPOINT": str(folder / "checkpoint.pt"),
            "CHECKPOINT_S": str(CHECKPOINT_S),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(settings.workers)]
        command += ["--max-restarts", str(10 * settings.kills + 10), str(LOAD)]
        torchrun = start(command, variables, folder, 0)
        try:
            return _strike_ranks(settings, folder, torchrun, say)
        finally:
            torchrun.terminate()
            torchrun.wait()


def _strike_ranks(
    settings: Namespace, folder: Path, torchrun: subprocess.Popen[bytes], say: Callable[[str], None]
) -> Course:
    chance = random.Random(settings.seed)
    out = folder / "out"
    wait_until(lambda: len(list(out.iterdir())) >= settings.workers, "the first step")
    began, kills = time.monotonic(), []
    for number in range(settings.kills):
        time.sleep(max(0.0, began + (number + 1) * settings.every_s - time.monotonic()))
        ranks = children(torchrun.pid)
        if ranks:
            pid = chance.choice(ranks)
            kills.append((time.monotonic(), pid))
            os.kill(pid, signal.SIGKILL)
        if (number + 1) % 10 == 0:
            say(f"{number + 1} ranks killed")
    wait_until(lambda: _has_stepped_since(out, kills[-1][0]), "a step after the last kill")
    seconds = time.monotonic() - began
    (folder / "stop").touch()
    torchrun.wait(PATIENCE_S)
    lines = [line for path in out.iterdir() for line in read(path)]
    steps = max(line["step"] for line in lines)
    done = sum(line["samples"] for line in lines)
    # Only steps in the final weights count, so a step that was repeated after a restart counts once.
    samples = steps * settings.workers * lines[0]["samples"]
    gaps = tuple(next_step(lines, at) for at, _ in kills)
    repeated = (done - samples) // (settings.workers * lines[0]["samples"])
    return Course(seconds, samples, steps, repeated, gaps, lines[-1]["loss"])


# ---- the workers' lines ----


def check_bits(workers: dict[str, Lines], size: int) -> None:
    """Check that all workers of a job of this size had the same bits after each step, and left out no step.

    Raises:
        RanksFailed: bits differ, a step is missing, or the job started over.
    """
    digests: dict[int, set[str]] = {}
    for lines in workers.values():
        steps = [line["step"] for line in lines]
        if steps and steps != list(range(steps[0], steps[0] + len(steps))):
            raise RanksFailed(f"a worker did steps {steps}")
        for line in lines:
            digests.setdefault(line["step"], set()).add(line["digest"])
    if different := [step for step, found in digests.items() if len(found) > 1]:
        raise RanksFailed(f"workers differ after steps {different}")
    starts = [lines[0]["step"] for lines in workers.values() if lines]
    if starts.count(1) != size:
        raise RanksFailed(f"the job has started over, workers at steps {sorted(starts)}: too few were left")
    if missing := set(range(1, max(digests) + 1)) - set(digests):
        raise RanksFailed(f"nobody did steps {sorted(missing)}")


def gap(workers: dict[str, Lines], at: float, victim: str) -> float:
    """Return the seconds until a survivor's next step without the victim, or with all workers again."""
    before = max(line["step"] for lines in workers.values() for line in lines if line["at"] <= at)
    later = [line for pid, lines in workers.items() if pid != victim for line in lines if line["at"] > at]
    # The step in flight may end just after the kill. The step after it needs the new generation.
    after = [line for line in later if line["step"] > before + 1]
    return (
        min((line["at"] for line in after), default=max((line["at"] for line in later), default=math.inf))
        - at
    )


def next_step(lines: Lines, at: float) -> float:
    """Return the seconds until the next step of a job that must be restarted first."""
    return min((line["at"] for line in lines if line["at"] > at + 0.5), default=math.inf) - at


def _has_stepped_since(out: Path, at: float) -> bool:
    return any(line["at"] > at + 0.5 for path in out.iterdir() for line in read(path)[-1:])


def _samples_of(folder: Path) -> int:
    return sum(line["samples"] for path in (folder / "out").iterdir() for line in read(path))


def _loss(said: Lines) -> float:
    last = max(line["step"] for line in said)
    return statistics.mean(line["loss"] for line in said if line["step"] > last - 20)


def _early_loss(said: Lines) -> float:
    used, found = 0, []
    for _, lines in itertools.groupby(sorted(said, key=_step), _step):
        together = list(lines)
        used += sum(line["samples"] for line in together)
        if EARLY_SAMPLES[0] < used <= EARLY_SAMPLES[1]:
            found += [line["loss"] for line in together]
    return statistics.mean(found) if found else math.nan


def _step(line: dict[str, Any]) -> int:
    return int(line["step"])


def _unused(said: Lines) -> int:
    """Check that no sample was used more often than there were epochs, and return the number of missing uses."""
    counts = Counter(sample for line in said for sample in line["batch"])
    epochs = max(line["epoch"] for line in said)
    if (most := max(counts.values())) > epochs + 1:
        raise RanksFailed(
            f"a sample was used {most} times in {epochs} epochs and the beginning of another one"
        )
    return sum(max(0, epochs - count) for count in counts.values())


def read(path: Path) -> Lines:
    """Return the complete lines in a worker's file."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def lines_of(folder: Path, pid: int) -> Lines:
    """Return the complete lines that the worker with this process id has written."""
    return [line for path in (folder / "out").glob(f"*-{pid}") for line in read(path)]


# ---- processes ----


def environment(folder: Path, pause_s: float) -> dict[str, str]:
    """Return the environment variables of all workers, which write their lines into `folder`/out."""
    (folder / "out").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REDUCTION_")}
    return kept | {
        "OUT": str(folder / "out"),
        "STOP": str(folder / "stop"),
        "PAUSE_S": str(pause_s),
        "OMP_NUM_THREADS": "1",
    }


def of_job(name: str, folder: Path, reducers: Reducers, workers: int) -> dict[str, str]:
    """Return the environment variables of an elastic job's workers."""
    return {
        "REDUCTION_REDUCERS": ",".join(reducers.addresses),
        "REDUCTION_JOB": name,
        "REDUCTION_RUN": folder.name,
        "REDUCTION_WORLD_SIZE": str(workers),
        "REDUCTION_LOG": "error",
    }


def start(
    command: list[str], variables: dict[str, str], folder: Path, number: int
) -> subprocess.Popen[bytes]:
    """Start Python with these arguments. Its log is `folder`/log-NUMBER."""
    with (folder / f"log-{number}").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *command], env=variables, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )


def log_of(folder: Path) -> str:
    """Return the ends of the logs of all processes."""
    return "\n".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("log-*"))


def _sleep_until(at: float, workers: dict[int, subprocess.Popen[bytes]]) -> None:
    while time.monotonic() < at:
        for rank, worker in workers.items():
            if worker.poll() is not None:
                raise RanksFailed(f"worker {rank} ended with {worker.returncode}, and nobody had killed it")
        time.sleep(0.05)


def wait_until(ready: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds.

    Raises:
        RanksFailed: it did not hold within PATIENCE_S.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        if time.monotonic() > deadline:
            raise RanksFailed(f"{what} did not come within {PATIENCE_S:g} s")
        time.sleep(0.1)
