"""Clean end of a tool that has started processes and hosts, which end with it in any case."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.gpu.nccl_ranks import GpuMissing
from benchmarks.lab.network import NetworkUnavailable
from benchmarks.lab.ranks import RanksFailed

#: Exit status if the machine lacks something. argparse uses the same for wrong usage.
MISSING = 2


@contextmanager
def ending_well(name: str) -> Iterator[None]:
    """Let SIGTERM unwind the body like Ctrl-C, and show failures of its processes without a traceback."""
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    except (GpuMissing, NetworkUnavailable) as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(MISSING)
    except RanksFailed as error:
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, _frame: object) -> None:
    # timeout(1) sends SIGTERM twice, to its child and to the process group. The second one must not
    # interrupt the cleanup.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)
