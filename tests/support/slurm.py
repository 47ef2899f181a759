"""A Slurm cluster on this machine. Every node has its own network, process and host name namespace.

    network (benchmarks.lab)   w0        w1        r0        r1
    node, by default           gpu-1     gpu-2     cpu-1     cpu-2        a slurmd each
                               slurmctld

All nodes share this machine's files, as the nodes of a cluster share a file system, and one munged. A node's processes
end with its slurmd. Needs root and Debian's packages slurm-wlm and munge; `missing()` reports what is not there.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from support.processes.children import environment

from benchmarks.lab.hosts import NETNS
from benchmarks.lab.network import Network, NetworkUnavailable, check_network
from benchmarks.lab.traffic import link_of

START_S = 60.0
LINK_MBIT = 1000.0
TOOLS = ("slurmctld", "slurmd", "sbatch", "munged", "mungekey", "unshare", "nsenter", "setpriv")

CONFIGURATION = """
ClusterName=test
SlurmctldHost={controller}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,bf_hetjob_immediate
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=5
# The nodes have the cores that this file says, whatever the machine has.
SlurmdParameters=config_overrides
PartitionName=gpu Nodes={workers} Default=YES
PartitionName=cpu Nodes={reducers}
"""

#: So that nothing is left if this process is killed.
END_WITH_US = ("setpriv", "--pdeathsig", "KILL")
#: Each node's first step: set its name, and make all nodes known to each other. $1: the name; $2: the hosts file.
NODE = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


def missing() -> str | None:
    """Return what this machine lacks for a cluster, or None."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)}: install slurm-wlm and munge"
    try:
        check_network()
    except NetworkUnavailable as error:
        return str(error)
    return None


class Slurm:
    """The cluster, as a context manager: partition `gpu` has the workers' nodes, `cpu` the reducers'.

    Args:
        workers: names of the nodes with workers.
        reducers: names of the nodes with reducers.
    """

    def __init__(
        self, workers: Sequence[str] = ("gpu-1", "gpu-2"), reducers: Sequence[str] = ("cpu-1", "cpu-2")
    ) -> None:
        # A socket's path may have at most 107 characters, so this folder is not one of pytest's.
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self._started: list[subprocess.Popen[bytes]] = []
        self._network = Network(len(workers), len(reducers), link_of(LINK_MBIT))
        hosts = (*self._network.workers, *self._network.reducers)
        self.nodes = dict(zip((*workers, *reducers), hosts, strict=True))
        try:
            self._start(workers, reducers)
        except BaseException:
            self.close()
            raise

    def batch(
        self, script: Path, *arguments: str, timeout_s: float = 200.0, **variables: str
    ) -> tuple[int, str]:
        """Run a job script to its end; return its exit code and output.

        Raises:
            TimeoutError: it takes longer than `timeout_s`. The job is cancelled.
        """
        output = self.folder / "job.log"
        given = ["--parsable", f"--output={output}", f"--chdir={script.parent}"]
        submitted = self._ask("sbatch", *given, str(script), *arguments, **variables)
        assert submitted.returncode == 0, submitted.stderr
        job = submitted.stdout.strip()
        try:
            self._wait_for(lambda: not self.jobs(), timeout_s)
        except TimeoutError:
            self._ask("scancel", job)
            raise TimeoutError(f"not done after {timeout_s:g} s:\n{output.read_text()}") from None
        described = self._ask("scontrol", "--oneliner", "show", "job", job).stdout.splitlines()[0]
        code = int(described.partition(" ExitCode=")[2].partition(":")[0])
        return code, output.read_text() if output.exists() else self.logs()

    def states(self) -> set[str]:
        """Return the distinct states of the nodes."""
        return set(self._ask("sinfo", "--noheader", "--Node", "--format=%T").stdout.split())

    def jobs(self) -> list[str]:
        """Return the pending and running jobs."""
        return self._ask("squeue", "--noheader", "--format=%i %T").stdout.splitlines()

    def logs(self) -> str:
        """Return the daemons' last log lines."""
        return "\n".join(
            f"{path.name}:\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log"))
        )

    def close(self) -> None:
        """End all processes of the cluster, jobs included, and remove its files."""
        for process in reversed(self._started):
            process.kill()
        for process in self._started:
            process.wait(START_S)
        self._network.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Slurm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, workers: Sequence[str], reducers: Sequence[str]) -> None:
        folder, controller = self.folder, next(iter(self.nodes))
        folder.chmod(0o755)  # munged refuses a folder that others cannot enter
        for name in ("state", *self.nodes):
            (folder / name).mkdir()
        hosts = [f"{host.address} {name}" for name, host in self.nodes.items()]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts]) + "\n")
        text = CONFIGURATION.format(
            folder=folder, controller=controller, workers=",".join(workers), reducers=",".join(reducers)
        )
        nodes = [f"NodeName={name} NodeAddr={host.address} CPUs=2" for name, host in self.nodes.items()]
        (folder / "slurm.conf").write_text("\n".join([*nodes, text]))
        self._start_munge()
        self._run(controller, "slurmctld", "-D", "-f", str(folder / "slurm.conf"))
        for name in self.nodes:
            self._run(name, "slurmd", "-D", "-N", name, "-f", str(folder / "slurm.conf"))
        self._wait_for(lambda: self.states() == {"idle"})

    def _start_munge(self) -> None:
        folder = self.folder
        key, socket = folder / "munge.key", folder / "munge.socket"
        subprocess.run(["mungekey", "--create", f"--keyfile={key}"], check=True, timeout=START_S)
        files = [
            f"--{name}={folder}/munge.{name.split('-')[0]}" for name in ("pid-file", "log-file", "seed-file")
        ]
        command = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={socket}", *files]
        with (folder / "munged.log").open("wb") as log:
            self._started.append(
                subprocess.Popen([*END_WITH_US, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            )
        self._wait_for(socket.exists)

    def _run(self, name: str, *command: str) -> None:
        """Start a daemon on a node. It is the first process of its namespace, so all others there end with it."""
        own = ["--pid", "--fork", "--mount-proc", "--kill-child"]
        with (self.folder / f"{name}-{command[0]}.out").open("wb") as log:
            self._started.append(
                subprocess.Popen(
                    [*END_WITH_US, *self._on(name, own, command)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def _ask(
        self, *command: str, timeout_s: float = START_S, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands on the first node."""
        controller, host = next(iter(self.nodes.items()))
        environ = environment(
            SLURM_CONF=f"{self.folder}/slurm.conf", GLOO_SOCKET_IFNAME=host.interface, **variables
        )
        return subprocess.run(
            self._on(controller, [], command), capture_output=True, text=True, timeout=timeout_s, env=environ
        )

    def _on(self, name: str, more: Sequence[str], command: Sequence[str]) -> list[str]:
        """Return the words that run a command on a node, with more options for unshare(1)."""
        shell = ["sh", "-c", NODE, "sh", name, f"{self.folder}/hosts", *command]
        # `ip netns exec` would mount /sys again, without the cgroups that slurmd looks for.
        enter = ["nsenter", f"--net={NETNS / str(self.nodes[name].namespace)}"]
        return [*enter, "unshare", "--mount", "--uts", *more, *shell]

    def _wait_for(self, is_so: Callable[[], bool], timeout_s: float = START_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_so():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no Slurm after {timeout_s:g} s:\n{self.logs()}")
            time.sleep(0.2)
