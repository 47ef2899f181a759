"""One rank's view of one reducer: the stream to it, when it is dialled, and which ranks it sees."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from reduction.errors import ReducerAbsent, ReductionError
from reduction.model import NOWHERE, Peer, Peers, Place, Presence, Waiting, Welcome

from worker_plugin.core.flow.credit import Credit
from worker_plugin.core.flow.lane import Lane

#: Pause before the n-th consecutive dial, in seconds; the last one repeats. A supervisor restarts a killed reducer
#: within a second, and if it is the only one, the job waits for this dial. Later pauses are a fraction of the time
#: already elapsed.
REDIAL_S = (0.0, 0.05, *[0.1] * 10, *[0.2] * 10, 0.4, 0.8, 1.0)

#: How long an available reducer waits for a moment without collectives, in which it can be admitted at no cost. After
#: that it is admitted anyway, and what is under way is pushed again, because some jobs have no such moments.
PATIENCE_S = 10.0


class LinkPhase(enum.Enum):
    """What a link is doing."""

    DOWN = "down"  # waiting for its next dial
    OPENING = "opening"  # Join sent
    UP = "up"  # Welcome received
    RETIRED = "retired"  # another link leads to the same reducer


@dataclass(slots=True)
class Link:
    """State of one address."""

    id: int
    address: str
    phase: LinkPhase = LinkPhase.DOWN
    #: The link whose Welcome named this one as a sibling.
    parent: int | None = None
    #: Whether the address came from a DNS name, a file or a pool. The address may later belong to another process, and
    #: this reducer may get another address.
    is_looked_up: bool = False
    #: Whether the address was named after the start.
    is_added: bool = False
    #: Whether rank 0 announced the address to this rank in a configuration.
    is_announced: bool = False
    #: Whether it leads to the reducer that rank 0 started because no other was left.
    is_fallback: bool = False
    dials: int = 0
    dial_at: float = 0.0
    #: The reason why it is down or was refused.
    error: ReductionError | None = None
    #: Whether the last dial found nothing listening there.
    is_absent: bool = False
    #: Since when every Join has been refused because the job's name is busy.
    busy_since: float | None = None
    incarnation: bytes = b""
    credit_bytes: int = 0
    #: The credit of the last epoch in which the reducer was a member.
    credit_before: Credit | None = None
    #: The reducer's location.
    place: Place = NOWHERE
    #: Whether the reducer offers its data port.
    has_data_port: bool = False
    #: Whether the reducer, if it is not a member, is on standby: ready, but without a share for now.
    is_spare: bool = False
    up_since: float = 0.0
    #: The reducer's last report of each rank. Rank 0 gets reports of all ranks, the other ranks of few.
    peers: dict[int, Peer] = field(default_factory=dict)
    #: The ranks that have a stream there.
    present: set[int] = field(default_factory=set)
    #: Since when each rank that no longer has a stream has been reported lost.
    lost_since: dict[int, float] = field(default_factory=dict)
    #: Ranks that said Goodbye there.
    left: dict[int, Peer] = field(default_factory=dict)
    #: Whether the reducer has reported which ranks it sees.
    has_news: bool = False
    is_draining: bool = False
    #: The last epoch in which this rank said Hello on the present stream.
    hello_epoch: int = 0
    #: The lowest rate that the reducer has reported; infinite: no limit is known.
    rate: float = math.inf
    #: The rate reported to the reducer on the present stream.
    told_rate: float = math.inf
    #: Whether the present stream is paced.
    is_paced: bool = False
    #: The pushes of the epoch; None before its Start and after the end of the epoch or of the stream.
    lane: Lane | None = None
    #: Number of collectives that this rank has acknowledged to the reducer as held.
    acked: int = 0
    #: The reducer's latest report of the ranks it is waiting for.
    waiting: Waiting | None = None

    @property
    def is_up(self) -> bool:
        """Whether a stream is open and was welcomed."""
        return self.phase is LinkPhase.UP

    def has_waited(self, now: float) -> bool:
        """Whether a reducer that is up no longer needs to wait for a moment without collectives."""
        return now >= self.up_since + PATIENCE_S

    def open(self) -> None:
        """Start dialling."""
        self.phase = LinkPhase.OPENING
        self.dials += 1

    def on_welcome(self, welcome: Welcome, now: float) -> None:
        """Record that the Join was accepted."""
        self.phase = LinkPhase.UP
        self.incarnation = welcome.incarnation
        self.hello_epoch = 0
        self.credit_bytes = welcome.credit_bytes
        self.place = welcome.place
        self.has_data_port = welcome.data_port != 0
        self.up_since = now
        self.dials = 0
        self.error = None
        self.is_absent = False
        self.busy_since = None
        self.acked = 0
        self.rate = self.told_rate = math.inf
        self.is_paced = False

    @property
    def reason(self) -> str:
        """Why it is not up, if known. The address, with which such errors begin, is removed."""
        return str(self.error or "no answer").removeprefix(f"{self.address}: ")

    def down(self, error: ReductionError | None, now: float) -> None:
        """Record that the stream ended, and schedule the next dial."""
        self.phase = LinkPhase.DOWN
        self.error = error or self.error
        self.is_absent = isinstance(error, ReducerAbsent)
        self.dial_at = now + REDIAL_S[min(self.dials, len(REDIAL_S) - 1)]
        self.drop_lane()
        self.peers.clear()
        self.present.clear()
        self.lost_since.clear()
        self.left.clear()
        self.has_news = False
        self.is_draining = False
        self.is_spare = False
        self.waiting = None

    def drop_lane(self) -> None:
        """Stop pushing in the present epoch, and remember what was learned about the path."""
        if self.lane is not None:
            self.credit_before = self.lane.credit
        self.lane = None

    @property
    def is_full(self) -> bool:
        """Whether all ranks reported there currently have a stream there."""
        return self.has_news and len(self.present) == len(self.peers)

    def see(self, news: Peers, now: float) -> set[int]:
        """Process a report; return the ranks whose streams have broken since the last one."""
        self.has_news = True
        self.is_draining = news.draining
        return {peer.rank for peer in news.peers if self._note(peer, now)}

    def _note(self, peer: Peer, now: float) -> bool:
        before = self.peers.get(peer.rank)
        self.peers[peer.rank] = peer
        is_present = peer.presence is Presence.PRESENT
        if is_present:
            self.present.add(peer.rank)
        else:
            self.present.discard(peer.rank)
        if peer.presence is Presence.LOST:
            self.lost_since.setdefault(peer.rank, now)
        else:
            self.lost_since.pop(peer.rank, None)
        if peer.presence is Presence.LEFT:
            self.left[peer.rank] = peer
        else:
            self.left.pop(peer.rank, None)
        if before is None or before.presence is not Presence.PRESENT:
            return False
        is_same_stream = (peer.nonce, peer.streams) == (before.nonce, before.streams)
        return peer.presence is Presence.LOST or (is_present and not is_same_stream)

    def departed(self) -> Peer | None:
        """Return a rank that said Goodbye there, if any."""
        return next(iter(self.left.values()), None)

    def sees(self, rank: int) -> bool:
        """Return whether the rank has a stream there."""
        return rank in self.present

    def sees_all(self, world_size: int) -> bool:
        """Return whether the stream is open and every rank has one there too."""
        return self.is_up and len(self.present) >= world_size and self.present.issuperset(range(world_size))
