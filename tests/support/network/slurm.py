"""A Slurm cluster on one machine: every node is a network namespace with an address of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

TOOLS = ("ip", "nsenter", "unshare", "hostname", "munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo")
#: The daemons must be there after this many seconds.
START_S = 60.0
_SUBNET = "10.213.7"
#: `ip netns exec` would hide the control groups, which slurmd asks for.
_ON_HOST = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'

_CONF = """
ClusterName=reducers
SlurmctldHost=controller({subnet}.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,bf_hetjob_immediate,batch_sched_delay=1
SlurmdParameters=config_overrides
ReturnToService=2
{nodes}
{partitions}
"""


def missing_tools() -> list[str]:
    """Return the programs that are not installed, and the right that this process lacks."""
    missing = [tool for tool in TOOLS if shutil.which(tool, path=_path()) is None]
    return missing if os.geteuid() == 0 else [*missing, "root"]


class SlurmCluster:
    """A running cluster.

    Args:
        folder: for its files.
        partitions: the names of the nodes of each.
    """

    def __init__(self, folder: Path, partitions: Mapping[str, Sequence[str]]) -> None:
        self.folder = folder
        self._nodes = [node for nodes in partitions.values() for node in nodes]
        self._mark = secrets.token_hex(3)
        self._cleanup = contextlib.ExitStack()
        self._conf = folder / "slurm.conf"
        self._write_conf(partitions)

    @property
    def log(self) -> str:
        """What the daemons have logged last."""
        return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in self.folder.glob("*.log"))

    def run(
        self, command: Sequence[str], timeout_s: float, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm on the controller."""
        return subprocess.run(
            self._in("controller", command),
            env=self._environment(**variables),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def _write_conf(self, partitions: Mapping[str, Sequence[str]]) -> None:
        nodes = [
            f"NodeName={node} NodeAddr={self._address(node)} CPUs=2 RealMemory=500 State=UNKNOWN"
            for node in self._nodes
        ]
        lines = [
            f"PartitionName={name} Nodes={','.join(of_it)} State=UP MaxTime=10 Default={'YES' if not index else 'NO'}"
            for index, (name, of_it) in enumerate(partitions.items())
        ]
        self._conf.write_text(
            _CONF.format(
                folder=self.folder, subnet=_SUBNET, nodes="\n".join(nodes), partitions="\n".join(lines)
            )
        )

    def _address(self, node: str) -> str:
        return f"{_SUBNET}.{11 + self._nodes.index(node)}"

    def _namespace(self, host: str) -> str:
        return f"rs-{self._mark}-{host}"

    def _in(self, host: str, command: Sequence[str]) -> list[str]:
        """Return the command as one that runs on a host: with its network, name, and table of hosts."""
        enter = ["nsenter", f"--net=/run/netns/{self._namespace(host)}", "unshare", "--mount", "--uts"]
        return [*enter, "sh", "-c", _ON_HOST, "sh", str(self.folder / "hosts"), host, *command]

    def _environment(self, **variables: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("REDUC", "SLURM"))}
        return kept | {"PATH": _path(), "SLURM_CONF": str(self._conf)} | variables

    def __enter__(self) -> SlurmCluster:
        try:
            self._make_network()
            self._start_daemons()
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def _make_network(self) -> None:
        """A bridge in the controller's namespace, and a cable from it to each node's."""
        hosts = {"controller": f"{_SUBNET}.1"} | {node: self._address(node) for node in self._nodes}
        table = "".join(f"{address} {host}\n" for host, address in hosts.items())
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{table}")
        for host in hosts:
            namespace = self._namespace(host)
            _ip("netns", "add", namespace)
            self._cleanup.callback(_ip, "netns", "del", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        controller = self._namespace("controller")
        _ip("-n", controller, "link", "add", "bridge", "type", "bridge")
        _ip("-n", controller, "addr", "add", f"{_SUBNET}.1/24", "dev", "bridge")
        _ip("-n", controller, "link", "set", "bridge", "up")
        for number, node in enumerate(self._nodes):
            port, namespace = f"port{number}", self._namespace(node)
            _ip(
                "-n",
                controller,
                "link",
                "add",
                port,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                namespace,
            )
            _ip("-n", controller, "link", "set", port, "master", "bridge", "up")
            _ip("-n", namespace, "addr", "add", f"{self._address(node)}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "eth0", "up")

    def _start_daemons(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(64))
        key.chmod(0o600)
        files = ("socket", "pid", "log", "seed")
        options = [f"--{name}{'-file' * (name != 'socket')}={self.folder}/munge.{name}" for name in files]
        self._start("munge", ["munged", "--foreground", "--force", f"--key-file={key}", *options])
        for name in ("state", *(f"spool-{node}" for node in self._nodes)):
            (self.folder / name).mkdir()
        self._start("slurmctld", self._in("controller", ["slurmctld", "-D", "-f", str(self._conf)]))
        for node in self._nodes:
            daemon = ["slurmd", "-D", "-f", str(self._conf)]
            self._start(f"slurmd-{node}", self._in(node, daemon))
        deadline = time.monotonic() + START_S
        while True:
            states = self.run(["sinfo", "--noheader", "--Node", "--format=%T"], START_S).stdout.split()
            if states == ["idle"] * len(self._nodes):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"the nodes are {states}:\n{self.log}")
            time.sleep(0.5)

    def _start(self, name: str, command: Sequence[str]) -> None:
        with (self.folder / f"{name}.out.log").open("w") as log:
            process = subprocess.Popen(
                command, env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._cleanup.callback(_end, process)


def _path() -> str:
    """The daemons are in folders that only root's search path has."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
