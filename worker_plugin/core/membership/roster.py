"""All links of a rank: dialling, being welcomed or refused, being cut off. What epochs make of it is elsewhere.

event                      what follows
dial is due                Open with a Join
Welcome                    up, and links to its siblings; another link to the same reducer is retired
refused: busy              the last life of this job may be ending: dial again for BUSY_S, then fail
refused: draining          dial again
refused, while running     no memory or busy: dial again; the reducer is no member
refused: unauthenticated   the same while running and another link is up; otherwise fail
refused otherwise          fail
stream lost                down; dial again after a pause that grows to a second
one of a DNS name's away   look up what the name stands for; dial what is new, give up what it stands for no more
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from reduction.errors import (
    JobBusy,
    ReducerDraining,
    ReductionError,
    ResourceExhausted,
    StaleInstance,
    Unauthenticated,
)
from reduction.limits import LINKS_MAX
from reduction.model import Join, Peer, Welcome

from worker_plugin.core.actions import Action, Log, Open, Shut
from worker_plugin.core.link import Link, LinkPhase

#: How long a Join is repeated when the job's name or rank is still taken by its last life, in seconds.
BUSY_S = 3.0
#: How long a reducer of a DNS name is away before the name is looked up, and between two looks, in seconds.
LOOK_UP_S = 2.0
_INFO, _WARNING = 20, 30


class Roster:
    """The links of a rank, by number.

    Args:
        addresses: of the reducers that the job names.
        actions: those of the core; what follows is added to them.
        looked_up: those of the addresses that DNS names stand for.
    """

    def __init__(
        self, addresses: Iterable[str], actions: list[Action], looked_up: Container[str] = ()
    ) -> None:
        self._actions = actions
        self.links = [
            Link(number, address, is_looked_up=address in looked_up)
            for number, address in enumerate(addresses)
        ]
        #: When to look again what the names stand for, if one of their reducers is away.
        self.look_up_at: float | None = None
        #: Numbers of links whose addresses were given up.
        self._free: set[int] = set()
        #: Since when no reducer is reachable; from the first dial on, before the first one was.
        self.alone_since: float | None = None
        #: Since when all ranks are at some reducer; on ranks other than 0, which do not know all: since when rank 0 is.
        self.met_since: float | None = None

    def __iter__(self) -> Iterator[Link]:
        return iter(self.links)

    def __getitem__(self, number: int) -> Link:
        return self.links[number]

    @property
    def up(self) -> list[Link]:
        """Links whose stream stands."""
        return [link for link in self.links if link.is_up]

    @property
    def is_calm(self) -> bool:
        """Whether time alone changes nothing: no link is down or new, nobody is lost, no reducer drains."""
        return all(
            link.phase is LinkPhase.RETIRED
            or (link.lane is not None and link.is_full and not link.is_draining)
            for link in self.links
        )

    @property
    def left(self) -> Peer | None:
        """A rank that said Goodbye, if one did."""
        return next((peer for link in self.links if (peer := link.has_left()) is not None), None)

    def look_around(self, rank: int, world_size: int, now: float) -> None:
        """Take note of whether the ranks that this one waits for are there."""
        seen: set[int] = set().union(*(link.present for link in self.links))
        if not seen.issuperset(range(world_size) if rank == 0 else (0,)):
            self.met_since = None
        elif self.met_since is None:
            self.met_since = now

    def dial(self, now: float, join: Join) -> None:
        """Open what is due."""
        for link in self.links:
            if link.phase is LinkPhase.DOWN and now >= link.dial_at:
                link.open()
                self._actions.append(Open(link.id, link.address, join))

    def on_welcome(self, link: Link, welcome: Welcome, now: float) -> bool:
        """A Join was accepted; return whether this ended another stream to the same reducer.

        A reducer has one stream per rank, the last one. What led there before is not dialled any more: the two would
        take turns for ever.
        """
        link.welcome(welcome.incarnation, welcome.credit_bytes, now)
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
            self._actions.append(Log(_WARNING, text))
        self.alone_since = None
        self._add_siblings(link, welcome.siblings)
        return stood

    def _add_siblings(self, link: Link, ports: Iterable[int]) -> None:
        """Make links for the other processes behind an address, in place of those of its former life."""
        host = link.address.rpartition(":")[0]
        wanted = {f"{host}:{port}" for port in ports}
        for other in self.links:
            if other.parent == link.id and other.address not in wanted:
                self._retire(other)
        spare = [other.id for other in self.links if other.parent == link.id and other.address not in wanted]
        spare = [number for number in spare if self.links[number].phase is LinkPhase.RETIRED]
        for address in sorted(wanted - {other.address for other in self.links}):
            if spare:
                number = spare.pop()
                self.links[number] = Link(number, address, parent=link.id)
            elif len(self.links) < LINKS_MAX:
                self.links.append(Link(len(self.links), address, parent=link.id))
            else:
                text = f"a rank may have {LINKS_MAX} links: {address} and what else reducers name is left out"
                self._actions.append(Log(_WARNING, text))
                return

    def on_refusal(self, link: Link, error: ReductionError, now: float, *, is_running: bool) -> None:
        """A Join was refused; the stream is about to end.

        Raises:
            ReductionError: `error`, if trying again is of no use.
        """
        link.error = error
        match error:
            case ReducerDraining():
                return
            case ResourceExhausted() | JobBusy() if is_running:
                return
            case Unauthenticated() if is_running and self.up:
                return
            case JobBusy() | StaleInstance() if not is_running:
                link.busy_since = now if link.busy_since is None else link.busy_since
                if now < link.busy_since + BUSY_S:
                    return
        raise error

    def on_lost(self, link: Link, error: ReductionError | None, now: float) -> None:
        """A stream ended."""
        link.down(error, now)
        if self.alone_since is None and not self.up:
            self.alone_since = now

    def wants_look_up(self, now: float) -> bool:
        """Whether it is time to look what DNS names stand for: when one of their reducers is away for a while."""
        if not any(
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

    def on_found(self, addresses: Sequence[str], now: float) -> None:
        """Take note of what the names stand for now; what they stand for no more is given up if it is away."""
        for link in self.links:
            if link.is_looked_up and link.address not in addresses and not link.is_up:
                self._retire(link)
                self._free.add(link.id)
        # Not the second addresses of reducers that are there: dialling those would end their streams.
        known = {link.address for link in self.links if link.id not in self._free}
        for address in addresses:
            if address in known:
                continue
            number = self._free.pop() if self._free else len(self.links)
            link = Link(number, address, is_looked_up=True, dial_at=now)
            if number < len(self.links):
                self.links[number] = link
            elif number < LINKS_MAX:
                self.links.append(link)
            else:
                self._actions.append(
                    Log(_WARNING, f"a rank may have {LINKS_MAX} links: {address} is left out")
                )
                return
            self._actions.append(Log(_INFO, f"dialling {address}, which a DNS name stands for now"))

    def _retire(self, link: Link) -> None:
        """Dial neither this address nor those of its siblings any more."""
        for one in self.links:
            if (one is link or one.parent == link.id) and not one.is_up:
                if one.phase is LinkPhase.OPENING:
                    self._actions.append(Shut(one.id))
                one.phase = LinkPhase.RETIRED

    def add_fallback(self, address: str) -> None:
        """Make a link to the reducer that rank 0 has started because no other is left."""
        self.links.append(Link(len(self.links), address, is_fallback=True))
