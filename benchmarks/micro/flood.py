"""The time and cost of a job's sums next to strangers of eight kinds, with a new reducer for each kind.

    python -m benchmarks.micro.flood                            # the table; about 3 minutes
    python -m benchmarks.micro.flood no-token lobby --seconds 4

The job has 2 ranks, 1 reducer of one process with a token file, loopback, the TCP plane, and sums of 4 MiB, which are
all checked. For each kind the job runs alone for a while and then next to the strangers (strangers.py) for the same
time. They run at the lowest priority, because in reality they would run on other machines.
"""

from __future__ import annotations

import re
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, closing
from pathlib import Path

from reduction.process.ready import close, wait_until_ready

from benchmarks.lab.ending import ending_well
from benchmarks.lab.hosts import LOOPBACK
from benchmarks.lab.ranks import Ranks, RanksFailed
from benchmarks.lab.reducers import own_token, start
from benchmarks.loads.all_reduce import AllReduce
from benchmarks.method.experiment import Line
from benchmarks.method.paired import turn
from benchmarks.method.table import markdown
from benchmarks.micro.strangers import JOB, KINDS

#: Elements of a sum, and sums between two looks at the clock.
NUMEL, SUMS = 1 << 20, 10
#: Timeout for a reducer to start or end, and for strangers to end, in seconds.
PROCESS_S = 30.0
#: Seconds that strangers stay after the sums, and timeout of /livez meanwhile.
STAY_S, LIVEZ_S = 3.0, 2.0
HEAD = [
    "strangers",
    "median sum, ms (x alone)",
    "worst sum, ms (x alone)",
    "peak MiB (alone)",
    "lines logged",
    "/livez, ms",
    "calls and connections",
]


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


class Served:
    """A reducer with a metrics port and a counted log, which requires the current tokens."""

    def __init__(self, log: Path) -> None:
        self._log = log
        #: Its other ports, as options for it and for the strangers.
        self.ports = ["--data-port", free_port(), "--metrics-port", free_port()]
        self._livez = f"http://127.0.0.1:{self.ports[-1]}/livez"
        with log.open("w") as file:
            self._process = start(LOOPBACK, 0, *self.ports, log_level="info", log=file)
        self.address = wait_until_ready(self._process, PROCESS_S)

    @property
    def lines(self) -> int:
        """The number of lines in its log so far."""
        return self._log.read_text(errors="replace").count("\n")

    @property
    def peak_mib(self) -> int:
        """The peak memory of the process so far."""
        [kib] = re.findall(r"^VmHWM:\s+(\d+)", Path(f"/proc/{self._process.pid}/status").read_text(), re.M)
        return int(kib) >> 10

    def livez_ms(self) -> str:
        """Return the milliseconds of a liveness probe, or "none" without an answer within LIVEZ_S."""
        begun = time.monotonic()
        try:
            with urllib.request.urlopen(self._livez, timeout=LIVEZ_S):
                return f"{(time.monotonic() - begun) * 1e3:.0f}"
        except OSError:
            return "none"

    def close(self) -> None:
        """End the reducer."""
        close(self._process, PROCESS_S)


def sums(ranks: Ranks, seconds: float) -> list[float]:
    """Let the job run for a while, and return the seconds of each sum on its slowest rank."""
    ends_at, found = time.monotonic() + seconds, list[float]()
    while time.monotonic() < ends_at:
        found += map(max, zip(*(sample.seconds for sample in turn(ranks, "tcp")), strict=True))
    return found


def beside(kind: str, seconds: float) -> list[str]:
    """Return a row of the table."""
    theirs = secrets.token_hex(16)
    try:
        with ExitStack() as stack:
            stack.enter_context(own_token(**{JOB: theirs}))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            served = stack.enter_context(closing(Served(folder / "log")))
            ranks = stack.enter_context(closing(Ranks(2, [served.address])))
            ranks.load(AllReduce, NUMEL, SUMS)
            sums(ranks, 1.0)  # connections and memory settle
            alone = sums(ranks, seconds)
            alone_mib, lines = served.peak_mib, served.lines
            command = ["nice", "-n", "19", sys.executable, "-m", "benchmarks.micro.strangers"]
            command += [kind, served.address, *served.ports]
            command += ["--token", theirs, "--seconds", f"{seconds + STAY_S:g}"]
            strangers = stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            )
            stack.callback(strangers.kill)
            assert strangers.stdout is not None
            strangers.stdout.readline()
            crowded = sums(ranks, seconds)
            livez_ms = served.livez_ms()
            ended, _ = strangers.communicate(timeout=PROCESS_S)
            middle, worst = statistics.median, max
            return [
                KINDS[kind][1],
                f"{middle(crowded) * 1e3:.1f} ({middle(crowded) / middle(alone):.1f})",
                f"{worst(crowded) * 1e3:.1f} ({worst(crowded) / worst(alone):.1f})",
                f"{served.peak_mib} ({alone_mib})",
                str(served.lines - lines),
                livez_ms,
                ended.strip(),
            ]
    except (RanksFailed, OSError) as error:
        return [KINDS[kind][1], f"the job failed: {str(error).splitlines()[-1]}"] + [""] * 5


def main() -> None:
    """Print the table."""
    line = Line("micro.flood", __doc__)
    line.add_argument("kinds", nargs="*", choices=[*KINDS, []], metavar="KIND", help=", ".join(KINDS))
    line.add_argument("--seconds", type=float, default=6.0, help="beside each kind, and alone before it")
    given = line.parse_args()
    with ending_well("flood"):
        rows = [beside(kind, given.seconds) for kind in given.kinds or KINDS]
    print(*markdown(HEAD, rows), sep="\n")


if __name__ == "__main__":
    main()
