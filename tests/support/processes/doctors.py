"""The doctor of all ranks, on the hosts of a shaped network: one process per worker's host."""

from __future__ import annotations

import contextlib
import json
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.processes.children import environment
from support.processes.forks import Fork

from benchmarks.lab.hosts import Host

#: A doctor ends by itself long before; one that takes this many seconds hangs.
LIMIT_S = 110.0


class Doctors:
    """`python -m worker_plugin.doctor`, as torchrun starts it, one for each host.

    `reducers` are the same for all, or a list for each.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        reducers: Sequence[str] | Sequence[Sequence[str]],
        *options: str,
        **more: str,
    ) -> None:
        self.processes: list[Fork] = []
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name, "log")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for rank, host in enumerate(hosts):
            named = reducers[rank] if not isinstance(reducers[0], str) else reducers
            variables = {
                "RANK": f"{rank}",
                "WORLD_SIZE": f"{len(hosts)}",
                "MASTER_ADDR": hosts[0].address,
                "MASTER_PORT": f"{port}",
                "REDUCTION_REDUCERS": ",".join(named),
            }
            env = environment(**variables, **more)
            del env["GLOO_SOCKET_IFNAME"]  # the doctor finds it
            self.processes.append(
                Fork(_examine, options, out=self._out(rank), log=self._log, variables=env, host=host)
            )

    def answer(self) -> tuple[int, str, str]:
        """Return rank 0's exit code and output, and everybody's stderr."""
        first, *others = self.processes
        try:
            code = first.wait(LIMIT_S)
            for process in others:
                with contextlib.suppress(subprocess.TimeoutExpired):  # it may be stopped
                    process.wait(10)
            return code, self._out(0).read_text(), self._log.read_text()
        finally:
            self.kill()

    def _out(self, rank: int) -> Path:
        return Path(self._folder.name, f"{rank}.out")

    def document(self) -> dict[str, Any]:
        """Return what rank 0 says with --json."""
        code, output, errors = self.answer()
        assert output, errors
        document = json.loads(output)
        assert code == {"note": 0, "slow": 1, "broken": 2}[document["verdict"]]
        return document

    def kill(self) -> None:
        """Leave nothing behind."""
        for process in self.processes:
            process.kill()
            process.wait(10)
        self._folder.cleanup()


def _examine(options: Sequence[str]) -> None:
    sys.argv[1:] = options
    runpy.run_module("worker_plugin.doctor", run_name="__main__", alter_sys=True)
