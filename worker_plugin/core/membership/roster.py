"""All links of a rank: dialling reducers, being welcomed or refused, losing streams. Epochs are elsewhere.

event                      what follows
dial is due                Open with a Join
Welcome                    up, with links to its siblings; another link to the same reducer is retired
refused: busy, or no room  the previous life of this job may be ending: dial again for BUSY_S, then fail
refused: draining          dial again
refused, while running     no memory or busy: dial again; the reducer is not a member
refused: unauthenticated   the same while running and another link is up; otherwise fail
refused otherwise          fail
stream lost                down; dial again after a pause that grows to a second
one of a DNS name's down   look up the name; dial new addresses, give up those it no longer resolves to
all are down               the same, even if rank 0 had found them
rank 0 is at none of ours  the same on other ranks while an epoch waits: it may be at one we have not looked up
REFRESH_S have passed      on rank 0: query all sources again, with the same consequences
rank 0 has found others    dial them; give up those of them that it has given up
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from reduction.errors import (
    JobBusy,
    ReducerDraining,
    ReductionError,
    ResourceExhausted,
    StaleInstance,
    Unauthenticated,
)
from reduction.limits import ADDED_MAX, LINKS_MAX
from reduction.model import Join, Peer, Welcome

from worker_plugin.core.actions import INFO, WARNING, Action, Log, Open, Shut
from worker_plugin.core.link import Link, LinkPhase

#: How long a Join is repeated while an earlier run of this job still has its name, rank or memory, in seconds.
BUSY_S = 3.0
#: How long a reducer of a DNS name must be down before the name is looked up, and the pause between two look-ups. In
#: seconds.
LOOK_UP_S = 2.0
#: Rank 0 queries all sources of addresses again after this many seconds.
REFRESH_S = 30.0


class Roster:
    """The links of a rank, by number.

    Args:
        addresses: of the reducers that the job names.
        actions: the core's list, which resulting actions are appended to.
        looked_up: the addresses that may change later.
    """

    def __init__(
        self, addresses: Iterable[str], actions: list[Action], looked_up: Collection[str] = ()
    ) -> None:
        self._actions = actions
        self.links = [
            Link(number, address, is_looked_up=address in looked_up)
            for number, address in enumerate(addresses)
        ]
        #: When to look the DNS names up again; None if none of their reducers is down.
        self.look_up_at: float | None = None
        #: When to query all sources again; None before the first epoch, and permanently None if no source may change.
        self.refresh_at: float | None = None
        self._may_change = bool(looked_up)
        #: Numbers of links whose addresses were given up, for reuse.
        self._free: set[int] = set()
        #: Since when no reducer has been reachable. Until one has been reached, this counts from the first dial.
        self.alone_since: float | None = None
        #: Since when all ranks have been at some reducer. Ranks other than 0 do not know about all ranks; there it is
        #: since when rank 0 has been.
        self.met_since: float | None = None

    def __iter__(self) -> Iterator[Link]:
        return iter(self.links)

    def __getitem__(self, number: int) -> Link:
        return self.links[number]

    @property
    def up(self) -> list[Link]:
        """The links whose streams are open and were welcomed."""
        return [link for link in self.links if link.is_up]

    @property
    def is_settled(self) -> bool:
        """Whether time alone changes nothing: no link is down or new, no rank is lost, no reducer drains."""
        return all(
            link.phase is LinkPhase.RETIRED
            or ((link.lane is not None or link.is_spare) and link.is_full and not link.is_draining)
            for link in self.links
        )

    @property
    def departed(self) -> Peer | None:
        """A rank that said Goodbye, if one did."""
        return next((peer for link in self.links if (peer := link.departed()) is not None), None)

    def update_met_since(self, rank: int, world_size: int, now: float) -> None:
        """Update `met_since`."""
        seen: set[int] = set().union(*(link.present for link in self.links))
        if not seen.issuperset(range(world_size) if rank == 0 else (0,)):
            self.met_since = None
        elif self.met_since is None:
            self.met_since = now

    def dial(self, now: float, join: Join) -> None:
        """Open a stream on every link whose dial is due."""
        for link in self.links:
            if link.phase is LinkPhase.DOWN and now >= link.dial_at:
                link.open()
                self._actions.append(Open(link.id, link.address, join))

    def on_welcome(self, link: Link, welcome: Welcome, now: float) -> bool:
        """Process a Welcome; return whether the new stream ended another one to the same reducer.

        A reducer keeps only a rank's latest stream. The link that led there before is no longer dialled. Otherwise
        the two would end each other's streams forever.
        """
        link.on_welcome(welcome, now)
        stood = False
        for twin in self.links:
            if twin is link or twin.phase is LinkPhase.RETIRED or twin.incarnation != link.incarnation:
                continue
            stood = stood or twin.is_up
            if twin.phase is not LinkPhase.DOWN:
                self._actions.append(Shut(twin.id))
            twin.down(None, now)
            twin.phase = LinkPhase.RETIRED
            text = f"{twin.address} and {link.address} are the same reducer; using {link.address}"
            self._actions.append(Log(WARNING, text))
        self.alone_since = None
        self._add_siblings(link, welcome.siblings)
        return stood

    def _add_siblings(self, link: Link, ports: Iterable[int]) -> None:
        """Make links for the other processes behind an address, replacing those from before its restart."""
        host = link.address.rpartition(":")[0]
        wanted = {f"{host}:{port}" for port in ports}
        for other in self.links:
            if other.parent == link.id and other.address not in wanted:
                self._retire(other)
        spare = [other.id for other in self.links if other.parent == link.id and other.address not in wanted]
        spare = [number for number in spare if self.links[number].phase is LinkPhase.RETIRED]
        # A link that was given up together with an address is restored together with it. A link whose reducer is
        # reached by another address is not.
        there = {other.incarnation for other in self.links if other.phase is not LinkPhase.RETIRED} - {b""}
        dialled = {
            other.address
            for other in self.links
            if other.phase is not LinkPhase.RETIRED or other.incarnation in there
        }
        numbers = {other.address: other.id for other in self.links}
        for address in sorted(wanted - dialled):
            if address in numbers or spare:
                number = numbers[address] if address in numbers else spare.pop()
                self._free.discard(number)
                self.links[number] = Link(number, address, parent=link.id)
            elif len(self.links) < LINKS_MAX:
                self.links.append(Link(len(self.links), address, parent=link.id))
            else:
                text = (
                    f"a rank may have {LINKS_MAX} links: {address} and others that reducers name are left out"
                )
                self._actions.append(Log(WARNING, text))
                return

    def on_refusal(self, link: Link, error: ReductionError, now: float, *, is_running: bool) -> None:
        """Process a refusal of a Join; the stream is about to end.

        Raises:
            ReductionError: `error`, if dialling again is useless.
        """
        link.error = error
        match error:
            case ReducerDraining():
                return
            case ResourceExhausted() | JobBusy() if is_running:
                return
            case Unauthenticated() if is_running and self.up:
                return
            case JobBusy() | StaleInstance() | ResourceExhausted() if not is_running:
                link.busy_since = now if link.busy_since is None else link.busy_since
                if now < link.busy_since + BUSY_S:
                    return
        raise error

    def on_lost(self, link: Link, error: ReductionError | None, now: float) -> None:
        """Record that a stream has ended, unless this rank has ended it for good."""
        if link.phase is LinkPhase.RETIRED:
            return
        link.down(error, now)
        if self.alone_since is None and not self.up:
            self.alone_since = now

    def wants_look_up(self, now: float, *, may_miss_rank_0: bool, lacks_some: bool) -> bool:
        """Return whether to look up DNS names now: one of their reducers has been down for a while, or all are down.

        If all are down, reducers found by rank 0 may have replaced all those that this rank had looked up. If rank 0 is
        at none of the available ones, it cannot tell this rank what it has found.

        Args:
            now: in seconds.
            may_miss_rank_0: whether this rank is waiting for rank 0 to begin an epoch.
            lacks_some: whether this is rank 0 and it is waiting for reducers.
        """
        is_apart = not self.up or lacks_some or (may_miss_rank_0 and self.met_since is None)
        if not (is_apart and self._may_change) and not any(
            link.is_looked_up and link.phase in (LinkPhase.DOWN, LinkPhase.OPENING) for link in self.links
        ):
            self.look_up_at = None
            return False
        if self.look_up_at is None:
            self.look_up_at = now + LOOK_UP_S
        if now < self.look_up_at:
            return False
        self.look_up_at = now + LOOK_UP_S
        return True

    def wants_refresh(self, now: float) -> bool:
        """Return whether to query all sources now, although none is down: they may name more reducers than before."""
        if not self._may_change:
            return False
        is_due = self.refresh_at is not None and now >= self.refresh_at
        if is_due or self.refresh_at is None:
            self.refresh_at = now + REFRESH_S
        return is_due

    @property
    def added(self) -> tuple[str, ...]:
        """Addresses found by this rank after the start at which there was a reducer."""
        found = [link for link in self.links if link.is_added and link.phase is not LinkPhase.RETIRED]
        return tuple(sorted(link.address for link in found if link.incarnation)[:ADDED_MAX])

    def on_found(self, addresses: Sequence[str], now: float) -> None:
        """Process the addresses found now. Reducers that are down and not among them are given up."""
        self._give_up((one for one in self.links if one.is_looked_up and one.address not in addresses), now)
        self._add(addresses, now, is_announced=False)

    def on_added(self, addresses: Sequence[str], now: float) -> None:
        """Process rank 0's addresses. Those that it has given up are given up here too, unless they are up."""
        self._give_up((one for one in self.links if one.is_announced and one.address not in addresses), now)
        self._add(addresses, now, is_announced=True)

    def _give_up(self, links: Iterable[Link], now: float) -> None:
        for link in links:
            if link.is_up:
                continue
            was_dialled = link.phase is not LinkPhase.RETIRED
            self._retire(link)
            self._free.add(link.id)
            if was_dialled and link.incarnation:
                self._dial_twins(link, now)

    def _dial_twins(self, link: Link, now: float) -> None:
        """Dial the reducer's other addresses, which were no longer dialled because this one led there too."""
        for twin in self.links:
            is_retired = twin.phase is LinkPhase.RETIRED and twin.id not in self._free
            if is_retired and twin.incarnation == link.incarnation:
                twin.phase, twin.dial_at = LinkPhase.DOWN, now

    def _add(self, addresses: Iterable[str], now: float, *, is_announced: bool) -> None:
        """Make links to the addresses that are not yet known."""
        # An address that leads to a reducer which is already connected is not dialled, because that would end its
        # stream.
        known = {link.address for link in self.links if link.id not in self._free}
        for address in addresses:
            if address in known:
                continue
            number = self._free.pop() if self._free else len(self.links)
            link = Link(
                number,
                address,
                is_looked_up=not is_announced,
                is_added=True,
                is_announced=is_announced,
                dial_at=now,
            )
            if number < len(self.links):
                self.links[number] = link
            elif number < LINKS_MAX:
                self.links.append(link)
            else:
                self._actions.append(
                    Log(WARNING, f"a rank may have {LINKS_MAX} links: {address} is left out")
                )
                return
            who = "rank 0 has found" if is_announced else "is named now"
            self._actions.append(Log(INFO, f"dialling {address}, which {who}"))

    def _retire(self, link: Link) -> None:
        """Stop dialling this address and those of its siblings."""
        for other in self.links:
            if (other is link or other.parent == link.id) and not other.is_up:
                if other.phase is LinkPhase.OPENING:
                    self._actions.append(Shut(other.id))
                other.phase = LinkPhase.RETIRED

    def add_fallback(self, address: str) -> None:
        """Make a link to the reducer that rank 0 has started because no other is left."""
        self.links.append(Link(len(self.links), address, is_fallback=True))
