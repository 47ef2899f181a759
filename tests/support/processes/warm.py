"""A `python` whose processes are forked from one that has everything imported, because imports take most of their time.

`warm()` returns a command that takes the arguments of `python`, for scripts with torch, which takes three seconds to
load. A process that it starts looks as if started by the real one: its variables, folder, descriptors 0 to 2, signals,
exit code and interpreter shutdown, with none of our code loaded before. Its `sys.executable` is this command too, so
torchrun starts its ranks in the same way.

`warm("reducer")` has loaded everything that `reducer serve` and `reducer status` need, but no torch. Its processes have
the real `sys.executable`. `WarmProcess` starts one without the command, and knows the pid of the process itself.

/proc does not describe such a process correctly (its command, variables, parent, limits), so a test that reads it
starts the real `python`. The command becomes the real `python` itself where it cannot pass everything on: other
options or variables of the interpreter, more descriptors, or another network.

Run as a script, this module is the server, which exits when its stdin closes.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

_PRELOADED = {
    "torch": (
        "multiprocessing.spawn",
        "numpy",
        "torch._dynamo",
        "torch.distributed.run",
        "torch.nn.parallel",
    ),
    "reducer": ("reducer.commands.serve", "reducer.commands.status", "reducer.process.lifecycle", "uvloop"),
}
_CALL_BYTES_MAX = 1 << 17

#: The command. It must start fast: without `site`, and with few modules.
_COMMAND = """#!{python} -IS
import os, sys

def check(holds):
    if not holds:
        os.execv({python!r}, [{python!r}, *sys.argv[1:]])

arguments = sys.argv[1:]
is_unbuffered = arguments[:1] == ["-u"]
arguments = arguments[is_unbuffered:]
check(arguments and (arguments[0][:1] != "-" or arguments[0] in ("-c", "-m")))
variables = {{name for name in os.environ if name.startswith("PYTHON")}}
check(variables <= {{"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}})
check(len(os.listdir("/proc/self/fd")) == 4)  # 0 to 2, and that of the folder
check(os.readlink("/proc/self/ns/net") == {network!r})
import json, signal, socket

server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    server.connect({path!r})
except OSError:
    check(False)
signals = {{signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}}
ignored = [number for number in signals if signal.getsignal(number) == signal.SIG_IGN]
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
for number in signals:
    signal.signal(number, lambda number, _: server.send(bytes([number])))
call = arguments, is_unbuffered, ignored, dict(os.environ), os.getcwd()
socket.send_fds(server, [json.dumps(call).encode()], [0, 1, 2])
server.recv(4)  # its pid
signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
os.closerange(0, 3)
code = int.from_bytes(server.recv(4) or b"\\x01", "big", signed=True)
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class _Call(NamedTuple):
    """Description of the process to start."""

    arguments: list[str]
    is_unbuffered: bool
    ignored: list[int]
    variables: dict[str, str]
    folder: str


def warm(kind: str = "torch") -> str:
    """Return the path of the command; its server starts on the first call.

    In a thread that has entered another network it is the real `python`, because forks would not be in that network.
    """
    return _command(kind) if os.readlink(_OWN_NETWORK) == _NETWORK else sys.executable


_OWN_NETWORK = "/proc/thread-self/ns/net"
_NETWORK = os.readlink(_OWN_NETWORK)


@functools.cache
def _command(kind: str) -> str:
    folder = tempfile.mkdtemp(prefix="warm-")
    command = Path(folder, "python")
    command.write_text(_COMMAND.format(python=sys.executable, network=_NETWORK, path=f"{folder}/socket"))
    command.chmod(stat.S_IRWXU)
    variables = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    variables |= {"GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "ERROR"}  # as `reducer serve` has them
    executable = str(command) if kind == "torch" else sys.executable
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{folder}/socket")
        listener.listen(100)
        server = subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno()), executable, *_PRELOADED[kind]],
            stdin=subprocess.PIPE,
            env=os.environ | variables,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )

    @atexit.register
    def end() -> None:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(30)
        shutil.rmtree(folder)

    return str(command)


class WarmProcess:
    """A process of `warm(kind)`; used like a `subprocess.Popen`. It is killed if this process exits before it."""

    def __init__(
        self, kind: str, arguments: Sequence[str], *, stdin: int, stderr: IO[str], env: dict[str, str]
    ) -> None:
        """Start it, with a pipe for its stdout.

        Args:
            kind: see `warm`.
            arguments: of `python`.
            stdin: PIPE or DEVNULL.
            stderr: a file.
            env: its variables.
        """
        reading, writing = os.pipe()
        #: Its stdout.
        self.stdout: IO[str] = os.fdopen(reading)
        self.stdin: IO[str] | None = None
        if stdin == subprocess.PIPE:
            theirs, ours = os.pipe()
            self.stdin = os.fdopen(ours, "w")
        else:
            theirs = os.open(os.devnull, os.O_RDONLY)
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.connect(str(Path(warm(kind)).with_name("socket")))
        call = _Call(list(arguments), is_unbuffered=False, ignored=[], variables=env, folder=os.getcwd())
        socket.send_fds(self._server, [json.dumps(call).encode()], [theirs, writing, stderr.fileno()])
        os.close(theirs)
        os.close(writing)
        self.args = arguments
        self.pid = int.from_bytes(self._server.recv(4), "big")
        #: None while it runs.
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; return its exit code."""
        if self.returncode is None:
            if not select.select([self._server], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int.from_bytes(self._server.recv(4) or b"\x01", "big", signed=True)
            self._server.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has exited meanwhile
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


# ---- the server ----


def _serve(listener: socket.socket) -> _Call:
    """Fork for each call and return in the fork; exit when stdin closes."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if 0 in select.select([0, listener], [], [])[0]:
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _keep(connection)
        connection.close()


def _keep(connection: socket.socket) -> _Call:
    """Return in the process that runs the call; in its parent, pass on signals and its exit code."""
    data, descriptors, _, _ = socket.recv_fds(connection, _CALL_BYTES_MAX, 3)
    if len(descriptors) < 3:
        os._exit(1)
    pid = os.fork()
    if pid == 0:
        connection.close()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        return _Call(*json.loads(data))
    for descriptor in (*descriptors, 0, 1, 2):
        os.close(descriptor)
    connection.send(pid.to_bytes(4, "big"))
    ended = os.pidfd_open(pid)
    while True:
        if ended in select.select([connection, ended], [], [])[0]:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            connection.send(code.to_bytes(4, "big", signed=True))
            os._exit(0)
        number = connection.recv(1)
        os.kill(pid, number[0] if number else signal.SIGKILL)
        if not number:  # the command was killed
            os._exit(0)


def _become(call: _Call, executable: str, paths: list[str]) -> None:
    """Run what the call asked for, as the interpreter would."""
    first, *rest = call.arguments
    os.chdir(call.folder)
    os.environ.clear()
    os.environ.update(call.variables)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in call.ignored:
        signal.signal(number, signal.SIG_IGN)
    if call.is_unbuffered or "PYTHONUNBUFFERED" in call.variables:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    here = {"-c": "", "-m": call.folder}.get(first, os.path.dirname(os.path.realpath(first)))
    more = filter(None, call.variables.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [here, *more, *paths]
    sys.executable = executable
    np.random.seed()
    torch = sys.modules.get("torch")
    if torch is not None and call.variables.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
        torch._import_device_backends()
    if first == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.argv[:] = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = call.arguments
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    _paths = sys.path[1:]
    for _name in sys.argv[3:]:
        importlib.import_module(_name)
    gc.collect()
    gc.freeze()
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))), sys.argv[2], _paths)
