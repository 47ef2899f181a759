"""What rank 0 has all ranks do: which reducers take part, how large chunks are, and whom all of them dial.

Each is a configuration with a new epoch. When reducers come or go, membership/judge.py says with which of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from reduction.limits import CHUNK_BYTES_MULTIPLE, MEMBERS_MAX
from reduction.model import Configuration, Member
from reduction.pacing import Pacing

from worker_plugin.core.actions import Action, Log
from worker_plugin.core.epochs import Epochs
from worker_plugin.core.flow.chunk_size import Grid
from worker_plugin.core.identity import Identity
from worker_plugin.core.link import Link
from worker_plugin.core.membership.choice import fair_choice
from worker_plugin.core.membership.roster import Roster
from worker_plugin.core.membership.weights import said_rate, weights
from worker_plugin.core.window import Window
from worker_plugin.core.words import reducers_text

#: How long to wait for a pause in which all ranks have all results before the grid changes all the same, in seconds. A
#: job may have no such pause.
REGRID_S = 1.0
_INFO, _WARNING = 20, 30


class Leader:
    """The part of the core that only rank 0 has.

    Args:
        identity: this rank.
        roster: the reducers that it knows.
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
        #: When the grid changes though other ranks may lack results; None while no change waits for them.
        self._regrid_at: float | None = None
        #: Whether the latest epoch began without reducers that the job was given or has had.
        self._lacks_some = False
        #: How many members there were before some were lacking.
        self._whole = 0

    def configure(self, willing: Sequence[Link], reason: str, *, lacks_some: bool, now: float) -> None:
        """Make a new epoch with these reducers, or as many of them as there may be."""
        epoch = self._epochs.number + 1
        links = fair_choice(willing, MEMBERS_MAX)
        # `judge` has chosen those with a share among all that are there. Among themselves one may have
        # none, if the rates of some links are not known; it would be chosen again and again.
        members = tuple(
            Member(link.address, link.incarnation, max(weight, 1))
            for link, weight in zip(links, weights(links), strict=True)
        )
        lacks_some |= len(links) < len(willing)
        if not self._lacks_some:
            # At first it is not known how many lack, but that at least one does.
            self._whole = self._epochs.size or len(links) + lacks_some
        elif len(links) < self._whole:
            lacks_some = True
        # Whoever was told that something is missing is told when it is back.
        is_news = lacks_some or self._lacks_some or self._epochs.broken_since is not None
        level, self._lacks_some = _WARNING if is_news else _INFO, lacks_some
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
        """Perhaps choose another grid, between collectives.

        That waits until all ranks have all results: those that one of them lacks, all ranks push for again.
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
            Log(_INFO, f"membership epoch {epoch} with chunks of {size} bytes, after measuring")
        )
        self._epochs.enter(replace(configuration, epoch=epoch, chunk_bytes=size), now)

    def announce(self, now: float) -> None:
        """Between collectives, tell the others which reducers this rank has found, so that they dial them too.

        Without such a pause it tells them after `link.PATIENCE_S`. When all ranks are there, `judge` takes them in.
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
                Log(_INFO, f"membership epoch {epoch}: all ranks are told of {', '.join(added) or 'none'}")
            )
            self._epochs.enter(replace(configuration, epoch=epoch, added=added), now)

    def _is_within_host(self, links: Sequence[Link]) -> bool:
        """Whether all ranks and these reducers are on one host, and none of the streams stays on gRPC."""
        own = self._identity.place.host
        places = [link.place for link in links] + [peer.place for peer in links[0].peers.values()]
        can_move = self._identity.uses_data_ports and all(link.has_data_port for link in links)
        return can_move and own != b"" and all(place.host == own for place in places)

    def _chunk_bytes(self, links: Iterable[Link]) -> int:
        """Return the grid that is wanted, or the largest that fits into the credit of these links.

        The first rank that joins a reducer asks for the credit, and may have asked for less than
        this one would.
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
