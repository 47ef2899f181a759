"""Traffic between the workers of a large job: each receives one entry per worker, and few lists."""

from dataclasses import replace

import pytest
from reduction.limits import LOBBY_BYTES_MAX, LOBBY_ENTRY_BYTES_MAX
from reduction.model import LobbyRequest

from reducer.core.fair_shares import Account
from reducer.core.lobby import Lobby
from worker_plugin.elastic.membership.council import HEARD_S, Hearing, Join, Propose, deliberate, must_tell
from worker_plugin.elastic.membership.entries import Offer, Said, said_from_entry
from worker_plugin.elastic.membership.lineage import Generation, Lineage, Worker

SETTINGS = "world_size=512, wire_dtype=None, a model of " + "x" * 100
#: A worker's entry, without a list.
ENTRY_BYTES = 500


class Member:
    """A worker's decisions about generations. It listens on one stream of the lobby."""

    def __init__(self, lobby: Lobby, rank: int, size: int) -> None:
        self.lobby, self.rank = lobby, rank
        self.own = Worker(rank, f"{rank:032x}")
        self.lineage = Lineage(self.own, size)
        self.said = Said(self.own, f"host-{rank}", SETTINGS)
        self.others: dict[str, Said] = {}
        self.heard_bytes = 0
        self.joined: Generation | None = None

    def say(self, **changes: object) -> None:
        self.said = replace(self.said, **changes, count=self.said.count + 1)
        entry = self.said.to_entry()
        assert len(entry) <= LOBBY_ENTRY_BYTES_MAX
        self.lobby.on_request(
            self.rank, LobbyRequest("job", bytes.fromhex(self.own.nonce), entry), Account("job"), 0.0
        )

    def hear(self) -> None:
        has_more = True
        while has_more:
            news = self.lobby.news(self.rank)
            has_more = news.has_more
            self.heard_bytes += sum(len(one.entry) for one in news.entries)
            for one in news.entries:
                said = said_from_entry(one.entry)
                if said.worker != self.own:
                    self.others[said.worker.nonce] = said

    def act(self) -> None:
        if self.joined is None:
            advice = deliberate(
                Hearing(0.0, self.said, self.others, self.lineage, 0.0, 60.0, "new", -HEARD_S)
            )
            if isinstance(advice, Join | Propose):
                self.joined = advice.generation
                self.lineage.join(self.joined)
                self.say(number=self.joined.number)
        elif self.said.proposal is None and must_tell(self.joined, self.own, self.others.values()):
            self.say(proposal=self.joined)


def begin(size: int) -> list[Member]:
    """Return the workers of a new job when all have joined its first generation."""
    lobby = Lobby(LOBBY_BYTES_MAX)
    members = [Member(lobby, rank, size) for rank in range(size)]
    for member in members:
        member.say()
    for _ in range(6):
        for member in members:
            member.hear()
        for member in members:
            member.act()
    return members


@pytest.mark.parametrize("size", [16, 200])
def test_the_bytes_a_worker_receives_grow_with_the_number_of_workers(size):
    members = begin(size)
    assert len({member.joined for member in members}) == 1
    assert members[0].joined is not None
    assert len(members[0].joined.workers) == size
    assert sum(member.said.proposal is not None for member in members) == 1
    assert max(member.heard_bytes for member in members) <= 4 * size * ENTRY_BYTES


def test_the_message_of_a_donor_of_512_workers_fits_into_an_entry():
    workers = tuple(Worker(rank, f"{rank:032x}") for rank in range(512))
    proposal = Generation(2, "f" * 16, workers, workers[256:])
    said = Said(workers[0], "h" * 255, SETTINGS, 1, proposal=proposal, offer=Offer("f" * 16, workers))
    assert len(said.to_entry()) <= LOBBY_ENTRY_BYTES_MAX
    assert said_from_entry(said.to_entry()) == said
