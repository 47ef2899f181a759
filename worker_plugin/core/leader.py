"""Rank 0's decisions for all ranks: which reducers take part, how large chunks are, and which reducers to dial.

Each decision is a configuration with a new epoch. membership/judge.py decides which reducers are in it when reducers
join or leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from reduction.limits import CHUNK_BYTES_MULTIPLE, MEMBERS_MAX
from reduction.model import Configuration, Member
from reduction.pacing import Pacing

from worker_plugin.core.actions import INFO, WARNING, Action, Log
from worker_plugin.core.epochs import Epochs
from worker_plugin.core.flow.chunk_size import Grid
from worker_plugin.core.identity import Identity
from worker_plugin.core.link import Link
from worker_plugin.core.membership.choice import fair_choice
from worker_plugin.core.membership.roster import Roster
from worker_plugin.core.membership.weights import said_rate, weights
from worker_plugin.core.window import Window
from worker_plugin.core.words import reducers_text

#: How long to wait for a pause in which all ranks have all results before the grid changes anyway, in seconds. A job
#: may have no such pause.
REGRID_S = 1.0


class Leader:
    """The part of the core that exists only on rank 0.

    Args:
        identity: this rank.
        roster: the reducers that this rank knows.
        window: the collectives.
        epochs: the membership that it reconfigures.
        pacing: the rate at which it begins to push.
        actions: the list to which it appends.
    """

    def __init__(
        self,
        identity: Identity,
        roster: Roster,
        window: Window,
        epochs: Epochs,
        pacing: Pacing,
        actions: list[Action],
    ) -> None:
        self._identity = identity
        self._roster = roster
        self._window = window
        self._epochs = epochs
        self._pacing = pacing
        self._actions = actions
        self.grid = Grid(identity.chunk_bytes, identity.target)
        #: When the grid changes even if other ranks lack results; None while no change is pending.
        self._regrid_at: float | None = None
        #: Whether the latest epoch began without reducers that the job was given or has had.
        self._lacks_some = False
        #: Number of members before some were missing.
        self._whole = 0

    def configure(self, willing: Sequence[Link], reason: str, *, lacks_some: bool, now: float) -> None:
        """Make a new epoch with these reducers, or with as many of them as an epoch may have."""
        epoch = self._epochs.number + 1
        links = fair_choice(willing, MEMBERS_MAX)
        # `judge` has chosen the reducers with a share among all that are available. On their own, one of them may get
        # none if the rates of some links are unknown; it would be chosen again and again.
        members = tuple(
            Member(link.address, link.incarnation, max(weight, 1))
            for link, weight in zip(links, weights(links), strict=True)
        )
        lacks_some |= len(links) < len(willing)
        if not self._lacks_some:
            # At first it is only known that at least one is missing, not how many.
            self._whole = self._epochs.size or len(links) + lacks_some
        elif len(links) < self._whole:
            lacks_some = True
        # If the user was told that something is missing, the user is also told when it is back.
        is_news = lacks_some or self._lacks_some or self._epochs.broken_since is not None
        level, self._lacks_some = WARNING if is_news else INFO, lacks_some
        of_all = f" of {len(willing)} processes" if len(links) < len(willing) else ""
        text = f"{reason}: membership epoch {epoch} with {reducers_text(links)}{of_all} ({_where(members)})"
        self._actions.append(Log(level, text))
        for link in self._roster:
            link.is_spare = False
        self.grid.begin(is_within_host=self._is_within_host(links))
        size, checksums = self._chunk_bytes(links), self._identity.checksums
        added = self._roster.added
        self._pacing.expect(said_rate(links))
        self._epochs.enter(Configuration(self._epochs.instance, epoch, size, members, checksums, added), now)

    def tune(self, now: float) -> None:
        """Change the grid between collectives, if another one is better.

        The change waits until all ranks have all results, because all ranks push again for every missing result.
        """
        configuration = self._epochs.configuration
        can_change = self._window.is_idle and self._epochs.is_calm and not self.grid.is_settled
        if configuration is None or not can_change:
            return
        members = [link for link in self._roster if link.lane is not None]
        lanes = [link.lane for link in members if link.lane is not None]
        if self._regrid_at is None and self.grid.look(lanes):
            self._regrid_at = now + REGRID_S
        lacking = self._window.issued - self._window.minimum
        if self._regrid_at is None or (lacking and now < self._regrid_at):
            return
        self._regrid_at = None
        size, epoch = self._chunk_bytes(members), configuration.epoch + 1
        if size == configuration.chunk_bytes:
            return
        self._actions.append(
            Log(INFO, f"membership epoch {epoch} with chunks of {size} bytes, after measuring")
        )
        self._epochs.enter(replace(configuration, epoch=epoch, chunk_bytes=size), now)

    def announce(self, now: float) -> None:
        """Between collectives, tell the other ranks which reducers this rank has found, so that they dial them too.

        Without such a pause it tells them after `link.PATIENCE_S`. Once all ranks are there, `judge` admits the
        reducers.
        """
        configuration = self._epochs.configuration
        if configuration is None or not self._epochs.is_calm:
            return
        added, epoch = self._roster.added, configuration.epoch + 1
        is_time = self._window.is_idle or any(
            link.address in added and link.address not in configuration.added and link.has_waited(now)
            for link in self._roster
        )
        if is_time and self._identity.world_size > 1 and added != configuration.added:
            self._actions.append(
                Log(INFO, f"membership epoch {epoch}: all ranks are notified of {', '.join(added) or 'none'}")
            )
            self._epochs.enter(replace(configuration, epoch=epoch, added=added), now)

    def _is_within_host(self, links: Sequence[Link]) -> bool:
        """Whether all ranks and these reducers are on one host, and none of the streams stays on gRPC."""
        own = self._identity.place.host
        places = [link.place for link in links] + [peer.place for peer in links[0].peers.values()]
        can_move = self._identity.uses_data_ports and all(link.has_data_port for link in links)
        return can_move and own != b"" and all(place.host == own for place in places)

    def _chunk_bytes(self, links: Iterable[Link]) -> int:
        """Return the desired grid, or the largest one that fits into the credit of these links.

        The first rank that joins a reducer asks for the credit, and may have asked for less than this rank would.
        """
        least = min(link.credit_bytes for link in links)
        return min(self.grid.chunk_bytes, max(least // CHUNK_BYTES_MULTIPLE, 1) * CHUNK_BYTES_MULTIPLE)


def _where(members: Sequence[Member]) -> str:
    """Return the members' addresses, with their shares if these differ."""
    total = sum(member.weight for member in members)
    is_equal = len({member.weight for member in members}) == 1
    return ", ".join(
        member.address if is_equal else f"{member.address} {member.weight / total:.1%}" for member in members
    )
