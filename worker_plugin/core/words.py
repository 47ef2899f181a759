"""Texts shared by errors and warnings: which ranks, which reducers, and what to check."""

from __future__ import annotations

from collections.abc import Sequence

from reduction.text import counted

from worker_plugin.core.link import Link

#: Maximum number of ranks or reducers that a message names.
NAMED_MAX = 8
#: Advice for when ranks do not join.
ADVICE = "check that all ranks have started, have the hook registered, and issue the same collectives"
#: Description of a reducer that wants to end.
DRAINING = "draining and asks its jobs to leave"


def reducers_text(links: Sequence[Link]) -> str:
    """Return the number of reducers at these links and, if it is larger, the number of processes."""
    reducers = len({link.id if link.parent is None else link.parent for link in links})
    processes = f" in {len(links)} processes" if len(links) != reducers else ""
    return counted(reducers, "reducer") + processes


def some_of(names: Sequence[str]) -> list[str]:
    """Return the first NAMED_MAX names and, if there are more, the number of the others."""
    more = len(names) - NAMED_MAX
    return [*names[:NAMED_MAX], *([f"{more} more"] if more > 0 else [])]


def missing_ranks(links: Sequence[Link], world_size: int) -> str:
    """Return a string with the ranks that no reducer has reported, as far as rank 0 knows."""
    seen: set[int] = set().union(*(link.present for link in links))
    names = some_of([str(rank) for rank in range(world_size) if rank not in seen])
    if len(names) < 2:
        return f"rank {''.join(names)}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"


def silent_ranks(links: Sequence[Link], epoch: int) -> str:
    """Return a string with the ranks that have not sent Hello in an epoch, as reported by reducers."""
    news = [link.waiting for link in links if link.waiting is not None and link.waiting.epoch == epoch]
    names = {peer.rank: str(peer) for report in news for peer in report.missing}
    return ", ".join(names[rank] for rank in sorted(names)) or "some rank"


def down_text(links: Sequence[Link]) -> str:
    """Return a string with the addresses of unreachable reducers, each with the reason."""
    return ", ".join(some_of([f"{link.address} ({_reason(link)})" for link in links]))


def _reason(link: Link) -> str:
    return "connection refused" if link.is_absent else link.reason
