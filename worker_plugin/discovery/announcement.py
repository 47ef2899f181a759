"""The line that rank 0 shows once a communicator is ready: job, ranks, reducers, data planes."""

from __future__ import annotations

from collections.abc import Sequence

from reduction.text import counted

from worker_plugin.core.words import some_of


def ranks_text(size: int, nodes: int = 1, label: str = "") -> str:
    """Return the number of ranks; `label` names them if they are only some of the job's."""
    ranks_of_job = f" ({label})" if label else ""
    where = f" on {nodes} nodes" if nodes > 1 else ""
    return f"{counted(size, 'rank')}{ranks_of_job}{where}"


def line(
    job: str,
    ranks: str,
    reducers: Sequence[str],
    processes: int,
    planes: Sequence[str],
    *,
    is_private: bool,
    colocated: Sequence[str] = (),
    source: str = "",
) -> str:
    """Return the line.

    Args:
        job: its name.
        ranks: from `ranks_text`.
        reducers: addresses of the reducers with a share, without further processes of the same reducer.
        processes: their total number of processes.
        planes: the planes of the streams.
        is_private: whether the only reducer is rank 0's own.
        colocated: the reducers that ranks have started on their hosts.
        source: who named the reducers, or "" if nobody did.
    """
    kind = "private reducer" if is_private else "reducer"
    count = counted(len(reducers), kind)
    if processes != len(reducers):
        count += f" with {processes} processes"
    if near := len(set(reducers) & set(colocated)):
        count += (
            ", all on the ranks' hosts" if near == len(reducers) else f", {near} of them on the ranks' hosts"
        )
    named = f"{', '.join(some_of(reducers))}" + (f"; from {source}" if source else "")
    return f"reduction-server: job {job}, {ranks}, {count} ({named}), {' and '.join(planes)}"
