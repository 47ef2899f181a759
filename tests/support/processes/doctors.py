"""The doctor of all ranks on the hosts of a shaped network, with one process per worker host."""

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

#: A doctor ends on its own long before this; one that takes this many seconds hangs.
LIMIT_S = 110.0


class Doctors:
    """`python -m worker_plugin.doctor` on each host, started as torchrun starts it.

    `reducers` is the same for all, or a list with one entry each.
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
        """Return rank 0's exit code and output, and the stderr of all ranks."""
        first, *others = self.processes
        try:
            code = first.wait(LIMIT_S)
            for process in others:
                with contextlib.suppress(subprocess.TimeoutExpired):  # may be stopped
                    process.wait(10)
            return code, self._out(0).read_text(), self._log.read_text()
        finally:
            self.kill()

    def _out(self, rank: int) -> Path:
        return Path(self._folder.name, f"{rank}.out")

    def document(self) -> dict[str, Any]:
        """Return rank 0's --json output."""
        code, output, errors = self.answer()
        assert output, errors
        document = json.loads(output)
        assert code == {"note": 0, "slow": 1, "broken": 2}[document["verdict"]]
        return document

    def kill(self) -> None:
        """Kill all that is left."""
        for process in self.processes:
            process.kill()
            process.wait(10)
        self._folder.cleanup()


def _examine(options: Sequence[str]) -> None:
    sys.argv[1:] = options
    runpy.run_module("worker_plugin.doctor", run_name="__main__", alter_sys=True)
