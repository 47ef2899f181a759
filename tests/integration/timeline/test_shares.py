"""On links of a known rate, lost time is attributed to its cause: a slow link, a stopped rank, or a late one."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from reduction.timeline.clocks import offsets
from reduction.timeline.loss import loss
from reduction.timeline.record import from_json
from reduction.timeline.reducer_record import from_json as reducer_from_json
from support.processes.children import environment
from support.processes.forks import Fork
from support.processes.reducers import Reducer

from benchmarks.lab.network import Network, NetworkUnavailable, check_network
from benchmarks.lab.traffic import Link

RANKS, RATE_MBIT = 3, 100.0
#: Elements of a sum, which takes 84 ms on such a link.
NUMEL = 262_144
ROUNDS = 12
STOPPED_S = 0.6


def sum_rounds(rank: int, reducer: str, late_s: float) -> None:
    """Run one rank of the job, late before each round, and print each round on stdout."""
    import torch

    from worker_plugin import ReductionState

    torch.set_num_threads(1)
    with ReductionState([reducer], job="shares", rank=rank, world_size=RANKS) as state:
        state.connect()
        for number in range(ROUNDS):
            time.sleep(late_s)
            state.all_reduce(torch.ones(NUMEL)).wait()
            print(f"round {number}", flush=True)


class Job:
    """Ranks and a reducer, each on its own host."""

    def __init__(self, network: Network, directory: Path) -> None:
        self.directory, self.network = directory, network
        self.ranks: list[Fork] = []
        [host] = network.reducers
        options = "--insecure", "--processes", "1", "--trace", str(directory)
        with host.entered():
            self.reducer = Reducer(directory, *options, bind=f"{host.address}:0")

    def _start(self, rank: int, late_s: float) -> Fork:
        log = self.directory / f"log-{rank}"
        variables = environment(REDUCTION_TRACE=str(self.directory))
        host, arguments = self.network.workers[rank], (rank, self.reducer.address, late_s)
        return Fork(sum_rounds, *arguments, out=self._said_by(rank), log=log, variables=variables, host=host)

    def _said_by(self, rank: int) -> Path:
        return self.directory / f"out-{rank}"

    def run(self, *, late: tuple[int, float] | None = None, stopped: int | None = None, into_s: float = 0.0):
        """Sum ROUNDS times; one rank may be late in every round, or stopped for a while in every third one.

        It is stopped `into_s` after the start of the round, or later on a busy machine.
        """
        self.ranks = [
            self._start(rank, late[1] if late and late[0] == rank else 0.0) for rank in range(RANKS)
        ]
        if stopped is not None:
            said = self._said_by(stopped)
            for number in range(1, ROUNDS, 3):
                while f"round {number}\n" not in said.read_text():
                    assert self.ranks[stopped].poll() is None
                    time.sleep(0.002)
                time.sleep(into_s)
                self.ranks[stopped].send_signal(signal.SIGSTOP)
                time.sleep(STOPPED_S)
                self.ranks[stopped].send_signal(signal.SIGCONT)
        for number, rank in enumerate(self.ranks):
            assert rank.wait(60) == 0, (self.directory / f"log-{number}").read_text()
        assert self.reducer.stop()[0] == 0
        records = [
            from_json(path.read_text(), path.name) for path in sorted(self.directory.glob("*-rank*.json"))
        ]
        (theirs,) = self.directory.glob("*-reducer-*.json")
        reducers = [reducer_from_json(theirs.read_text(), theirs.name)]
        assert [record.rank for record in records] == list(range(RANKS))
        return loss(records, offsets(records), reducers, RATE_MBIT * 1e6 / 8)

    def close(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait(30)
        self.reducer.kill()


@pytest.fixture
def job(request, tmp_path):
    try:
        check_network()
        network = Network(RANKS, 1, Link(rate_mbit=RATE_MBIT), getattr(request, "param", {}))
    except NetworkUnavailable as error:
        pytest.skip(str(error))
    with network:
        one = Job(network, tmp_path)
        yield one
        one.close()


def check_sum(found) -> float:
    """Check that the shares add up to the lost time within 2 %, and return the lost time."""
    lost = found.parts.measured - found.ideal
    print(found.straggler, dict(found.parts.ranks), dict(found.slow), found.shares, lost)
    assert found.parts.rounds == RANKS * (ROUNDS - 1)
    assert sum(found.shares.values()) == pytest.approx(lost, rel=0.02)
    assert all(seconds >= 0 for seconds in found.shares.values())
    # The link also carries the headers of packets and frames, so no round is faster than the ideal.
    best = NUMEL * 4 / (RATE_MBIT * 1e6 / 8) * found.parts.rounds
    assert found.ideal == pytest.approx(best, rel=0.02)
    return lost


@pytest.mark.parametrize("job", [{"r0": RANKS}], indirect=True)
def test_on_good_links_shares_add_up_and_most_time_is_ideal_or_network(job):
    lost = check_sum(found := job.run())
    assert found.ideal + found.shares["link"] >= 0.5 * (found.ideal + lost)


@pytest.mark.parametrize("job", [{"r0": RANKS, "w1": 0.25}], indirect=True)
def test_a_slow_link_of_one_rank_is_attributed_to_it(job):
    lost = check_sum(found := job.run())
    assert found.slow[1] >= 0.7 * lost
    assert lost >= 2 * found.ideal  # a round takes four times the ideal, so three times the ideal is lost


@pytest.mark.parametrize("job", [{"r0": 0.75}], indirect=True)
def test_a_slow_reducer_link_is_attributed_to_the_transfer(job):
    lost = check_sum(found := job.run())
    # The last flow on a shared link is not random, so one rank may be considered slow.
    assert found.link + sum(found.slow.values()) >= 0.7 * lost
    assert lost >= 2 * found.ideal


@pytest.mark.parametrize("job", [{"r0": RANKS}], indirect=True)
def test_a_late_rank_is_named(job):
    lost = check_sum(found := job.run(late=(2, 0.2)))
    assert found.parts.ranks[2] + found.slow[2] >= 0.7 * lost
    # On a busy machine the late rank may be later still, and an early one a little late itself.
    assert found.parts.ranks[2] >= 0.7 * 0.2 * (RANKS - 1) * (ROUNDS - 1)


@pytest.mark.parametrize("job", [{"r0": RANKS}], indirect=True)
@pytest.mark.parametrize("into_s", [0.0, 0.04], ids=["at the start", "in a transfer"])
def test_a_stopped_rank_is_named(job, into_s):
    lost = check_sum(found := job.run(stopped=1, into_s=into_s))
    stops = ROUNDS // 3
    waited = found.parts.ranks[1] + found.slow[1]
    assert waited >= 0.7 * STOPPED_S * (RANKS - 1) * (stops - 1)
    assert waited >= 0.5 * lost
