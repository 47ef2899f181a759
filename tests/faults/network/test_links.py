"""Links that are cut, temporarily or permanently. Every rank and reducer is on its own host (`benchmarks.lab`)."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
from reduction.errors import ReducerUnavailable, WorkerLost
from support.processes.ranks import RankProcess, Ranks
from support.processes.reducers import Reducer

from benchmarks.lab.hosts import Host
from benchmarks.lab.network import Network, NetworkUnavailable
from benchmarks.lab.traffic import Link

#: Time after which a silent host is noticed, in seconds: not before, and not much later.
NOTICED_S = (8.0, 20.0)
SHORT_CUT_S = 3.0


def sum_until_told(rank, reducers, job, settings):
    """Check sums in a loop; return the error that ended it, and the longest time of a successful sum, in seconds."""
    longest_s = 0.0
    with rank.state(reducers, job, chunk_bytes=4096, **settings) as state:
        step = 0
        while not (rank.number == 0 and rank.has_news and rank.hear() == "stop") and step < 1_000_000:
            started = time.monotonic()
            error = rank.error_of(lambda step=step: rank.round(state, 3_000, step))
            if error is not None:
                assert state.error is error, f"a wrong sum, or {error!r}"
                return error, time.monotonic(), longest_s
            longest_s = max(longest_s, time.monotonic() - started)
            step += 1
            if rank.number == 0 and step % 50 == 0:
                rank.tell(step)
            time.sleep(0.005)  # there are few cores
    return None, time.monotonic(), longest_s


class Wires:
    """The network, and its ranks."""

    def __init__(self, network: Network, ranks: Ranks) -> None:
        self.network = network
        self.ranks = ranks

    def plug(self, host: Host, how: str) -> None:
        """Set a host's switch port "up" or "down"."""
        assert host.namespace is not None
        run, _, port = host.namespace.rpartition("-")
        ip("-n", f"{run}-bridge", "link", "set", "dev", port, how)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=20, capture_output=True, text=True)


@pytest.fixture(scope="module")
def wires(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wires]:
    """Yield two ranks and room for two reducers; the processes live for all tests of this module."""
    try:
        network = Network(2, 2, Link(rate_mbit=200))
    except NetworkUnavailable as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("links")
    with network:
        ranks = Ranks(directory)
        try:
            for host in network.workers:
                ranks.processes.append(RankProcess(directory, host))
            yield Wires(network, ranks)
            ranks.check()
        finally:
            ranks.kill()


@pytest.fixture
def serve_there(wires: Wires, tmp_path) -> Iterator[list[Reducer]]:
    """Yield reducers on the reducers' hosts; all ports are plugged in again afterwards."""
    running: list[Reducer] = []
    for host in wires.network.reducers:
        with host.entered():
            running.append(Reducer(tmp_path, "--insecure", bind=f"{host.address}:0"))
    yield running
    for host in wires.network.hosts:
        wires.plug(host, "up")
    try:
        for reducer in running:
            reducer.check()
    finally:
        for reducer in running:
            reducer.kill()


class Course:
    """Two ranks that sum until they are told to stop."""

    def __init__(self, wires: Wires, reducers: list[Reducer], job: str, **settings: float) -> None:
        addresses = [reducer.address for reducer in reducers]
        self._call = wires.ranks.begin(2, sum_until_told, addresses, job, settings, group=False)
        self._call.hear(0)

    def goes_on(self) -> None:
        """Wait until a hundred more sums were right."""
        step = self._call.hear(0)
        while self._call.hear(0) < step + 100:
            pass

    def ends(self):
        """Wait for both ranks to end on their own."""
        return self._call.answers()

    def stop(self):
        """End the sums; return the reports of both ranks. Rank 1 is notified by rank 0's Goodbye."""
        self._call.tell(0, "stop")
        return self._call.answers()


def test_a_cut_shorter_than_the_limit_is_only_a_delay(wires, serve_there, job):
    course = Course(wires, serve_there, job)
    host = wires.network.workers[1]
    wires.plug(host, "down")
    back = threading.Timer(SHORT_CUT_S, wires.plug, (host, "up"))
    back.start()
    back.join()
    course.goes_on()
    (error, _, longest_s), _ = course.stop()
    assert error is None
    assert longest_s >= SHORT_CUT_S - 0.5


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("plane", ["tcp", pytest.param("grpc", marks=pytest.mark.full)], indirect=True)
def test_a_worker_that_is_cut_off_is_named(wires, serve_there, job):
    course = Course(wires, serve_there, job, join_timeout_s=3.0)
    cut_at = time.monotonic()
    wires.plug(wires.network.workers[1], "down")
    (lost, at, _), (alone, _, _) = course.ends()
    assert type(lost) is WorkerLost
    assert "rank 1" in str(lost)
    assert NOTICED_S[0] < at - cut_at < NOTICED_S[1]
    assert type(alone) is ReducerUnavailable


def test_a_reducer_that_is_cut_off_is_left_out(wires, serve_there, job):
    course = Course(wires, serve_there, job)
    wires.plug(wires.network.reducers[1], "down")
    course.goes_on()
    (error, _, longest_s), _ = course.stop()
    assert error is None
    assert longest_s < NOTICED_S[1]


def test_a_reducer_that_one_rank_cannot_reach_is_left_out(wires, serve_there, job):
    """Rank 0 reaches the reducer, but rank 1 does not. The job must do without it, because all ranks have to use it."""
    course = Course(wires, serve_there, job)
    namespace = wires.network.workers[1].namespace
    route = [f"{wires.network.reducers[1].address}/32"]
    ip("-n", namespace, "route", "add", "blackhole", *route)
    try:
        course.goes_on()
        (error, _, longest_s), _ = course.stop()
    finally:
        ip("-n", namespace, "route", "del", *route)
    assert error is None
    assert longest_s < NOTICED_S[1]
