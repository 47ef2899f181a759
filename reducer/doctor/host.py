"""Resources of this host for its processes: cores, the speed of sums, kernel limits."""

from __future__ import annotations

import os
import platform
import resource
import socket
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from reduction.codecs import CODECS
from reduction.model import DType, ReduceOp

from reducer.doctor.facts import Host
from reducer.resources.host_limits import Periods, cores, cpu_periods, memory

#: How long the host's other load is observed, in seconds.
WATCH_S = 0.5
#: CPU seconds for which the sums of a wire dtype are timed.
SUMS_S = 0.05
#: Bytes of a chunk as the layout counts them.
CHUNK_BYTES = 256 << 10
WIRES = {"float32": DType.FLOAT32, "bf16": DType.BFLOAT16, "int8": DType.INT8_BLOCK}


class HostProbe:
    """Probe of this host before and after a measurement.

    Args:
        root: root of the file system with /proc and /sys.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._before = cpu_periods(root)
        self._busy = _busy_cores(root)
        self._sums = {name: sum_rate(dtype) for name, dtype in WIRES.items()}

    def host(self) -> Host:
        """Return the host's facts, observed since construction."""
        affinity = len(os.sched_getaffinity(0))
        return Host(
            name=socket.gethostname(),
            cores=cores(self._root),
            affinity=affinity,
            throttled=_part(self._before, cpu_periods(self._root)),
            busy_cores=self._busy,
            python=platform.python_version(),
            is_optimized=is_optimized(),
            sums=self._sums,
            descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            memory_bytes=memory(self._root),
            receive_buffer=_last(self._root / "proc/sys/net/ipv4/tcp_rmem"),
            send_buffer=_last(self._root / "proc/sys/net/ipv4/tcp_wmem"),
            congestion=_text(self._root / "proc/sys/net/ipv4/tcp_congestion_control"),
            backlog=_last(self._root / "proc/sys/net/core/somaxconn"),
        )


def sum_rate(dtype: DType) -> float:
    """Return the bytes of contributions that one core adds per second of this thread's CPU time."""
    codec = CODECS[dtype]
    contribution = memoryview(bytearray(dtype.format.push_sizes(CHUNK_BYTES)[0]))
    accumulator = np.zeros(codec.elements(CHUNK_BYTES), codec.accumulation)

    def add() -> None:
        codec.add(accumulator, contribution, ReduceOp.SUM)

    return len(contribution) / cpu_seconds(add)


def cpu_seconds(call: Callable[[], None]) -> float:
    """Return the CPU seconds of one call."""
    call()
    began, count = time.thread_time(), 0
    while (taken := time.thread_time() - began) < SUMS_S:
        call()
        count += 1
    return taken / count


def is_optimized() -> bool:
    """Return whether this Python was built with profile-guided optimisation."""
    options = f"{sysconfig.get_config_var('CONFIG_ARGS')} {sysconfig.get_config_var('PY_CORE_CFLAGS')}"
    return "--enable-optimizations" in options or "-fprofile-use" in options


def _busy_cores(root: Path) -> float:
    """Return how many cores are busy while the doctor itself is idle."""
    before = _busy_ticks(root)
    time.sleep(WATCH_S)
    return max(0.0, (_busy_ticks(root) - before) / os.sysconf("SC_CLK_TCK") / WATCH_S)


def _busy_ticks(root: Path) -> int:
    """Return user, nice, system, irq and softirq of proc_stat(5)."""
    numbers = [int(word) for word in _text(root / "proc/stat").partition("\n")[0].split()[1:]]
    return sum(numbers[:3]) + sum(numbers[5:7])


def _part(before: Periods, after: Periods) -> float:
    """Return the fraction of periods that were throttled."""
    periods = after.all - before.all
    return (after.throttled - before.throttled) / periods if periods > 0 else 0.0


def _last(path: Path) -> int:
    """Return the last number of a file, or 0 if there is none."""
    words = _text(path).split()
    return int(words[-1]) if words and words[-1].isdecimal() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
