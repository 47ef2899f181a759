"""A place where the test defines host names: a network and mount namespace with its own name server.

The name server is dnsmasq, and it is the first process of the place. Processes started with `prefix` see its answers,
and only the place's loopback addresses. Needs root.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

START_S = 20.0
TOOLS = ("dnsmasq", "unshare", "nsenter", "setpriv", "ip", "mount")

#: $1: the file for /etc/resolv.conf.
PLACE = 'ip link set lo up && mount --bind "$1" /etc/resolv.conf && shift && exec dnsmasq "$@"'
OPTIONS = (
    "--keep-in-foreground",
    "--no-resolv",
    "--no-hosts",
    "--user=root",
    "--pid-file=",
    "--conf-file=/dev/null",
)


def missing() -> str | None:
    """Return what this machine lacks, or None."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)} missing"
    may = subprocess.run(["unshare", "-mn", "true"], capture_output=True).returncode == 0
    return None if may else "no right to make namespaces"


class Names:
    """The place, as a context manager.

    Args:
        folder: for its files.
        addresses: addresses of each full name. `set` changes them.
        search: domains that are tried for names with fewer than five dots, as in a pod.
    """

    def __init__(self, folder: Path, addresses: Mapping[str, str], search: Sequence[str] = ()) -> None:
        self._hosts = folder / "hosts"
        lines = ["nameserver 127.0.0.1"]
        if search:
            lines += [f"search {' '.join(search)}", "options ndots:5"]
        resolv = folder / "resolv.conf"
        resolv.write_text("\n".join(lines) + "\n")
        self._write(addresses)
        options = [*OPTIONS, f"--addn-hosts={self._hosts}", "--listen-address=127.0.0.1"]
        self._server = subprocess.Popen(
            [
                "setpriv",
                "--pdeathsig",
                "KILL",
                "unshare",
                "--mount",
                "--net",
                "sh",
                "-c",
                PLACE,
                "sh",
                str(resolv),
                *options,
            ]
        )
        #: The words before a command that run it there.
        self.prefix = ("nsenter", f"--target={self._server.pid}", "--mount", "--net")
        try:
            self._wait(next(iter(addresses)))
        except BaseException:
            self._end()
            raise

    def set(self, addresses: Mapping[str, str]) -> None:
        """Change the addresses of the names from now on."""
        self._write(addresses)
        self._server.send_signal(signal.SIGHUP)

    def _write(self, addresses: Mapping[str, str]) -> None:
        self._hosts.write_text("".join(f"{address} {name}\n" for name, address in addresses.items()))

    def _wait(self, name: str) -> None:
        deadline = time.monotonic() + START_S
        while subprocess.run([*self.prefix, "getent", "ahosts", name], capture_output=True).returncode:
            assert self._server.poll() is None, "the name server has ended"
            assert time.monotonic() < deadline, f"no answer for {name} after {START_S:g} s"
            time.sleep(0.1)

    def _end(self) -> None:
        self._server.kill()
        self._server.wait()

    def __enter__(self) -> Names:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
