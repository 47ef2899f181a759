"""Addresses that differ between ranks, are unreachable, or change while a job runs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from reduction.errors import CollectiveMismatch
from support.processes.children import environment
from support.processes.reducers import status_of

from worker_plugin.core.membership import judge, roster

SECONDS = 1.0


def name_server(table: Path):
    """Return a getaddrinfo that resolves the name "reducers" from a file with a HOST PORT in each line."""
    real = socket.getaddrinfo

    def getaddrinfo(host, port, *arguments, **options):
        if host != "reducers":
            return real(host, port, *arguments, **options)
        found = [line.split() for line in table.read_text().splitlines()]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, int(port))) for ip in (one[0] for one in found)
        ]

    return getaddrinfo


def sum_over_a_name(rank, tables, job, settings):
    """Sum with a separate name server per rank; report after each sum, and continue when told to."""
    ask = name_server(Path(tables[rank.number]))
    judge.ABSENT_S, roster.LOOK_UP_S = 0.5, 0.2
    rank.cleanup.callback(setattr, socket, "getaddrinfo", socket.getaddrinfo)
    socket.getaddrinfo = ask
    port = settings.pop("port")
    state = rank.state([f"dns:reducers:{port}"], job, **settings)
    step = 0
    while True:
        rank.round(state, step=step)
        step += 1
        rank.tell(sorted(link.address for link in state._communicator._driver._core.roster if link.is_up))
        if rank.hear() == "stop":
            return None


class Cluster:
    """Reducers on one port of several loopback addresses, and the answers of each rank's name server."""

    def __init__(self, serve, free_port, tmp_path: Path, ranks: int) -> None:
        self._serve = serve
        self.port = free_port()
        self.tables = [tmp_path / f"names-{rank}" for rank in range(ranks)]

    def start(self, number: int):
        return self._serve(bind=f"127.0.0.{number}:{self.port}", leash=True)

    def name(self, *numbers: int, ranks=None) -> None:
        for table in self.tables if ranks is None else [self.tables[rank] for rank in ranks]:
            text = "".join(f"127.0.0.{number} {self.port}\n" for number in numbers)
            temporary = table.with_suffix(".new")
            temporary.write_text(text)
            temporary.rename(table)


@pytest.fixture
def cluster(serve, free_port, tmp_path) -> Cluster:
    return Cluster(serve, free_port, tmp_path, 2)


def begin(ranks, cluster, job, *, has_store=True, **settings):
    settings |= {"port": cluster.port}
    tables = [str(table) for table in cluster.tables]
    return ranks.begin(2, sum_over_a_name, tables, job, settings, group=has_store)


def step(call):
    """Let both ranks continue; return the reducers that each is connected to."""
    for rank in range(2):
        call.tell(rank, "go on")
    return [call.hear(rank) for rank in range(2)]


def stop(call):
    for rank in range(2):
        call.tell(rank, "stop")
    call.answers()


def test_all_ranks_use_the_reducers_rank_0_finds(ranks, cluster, job):
    first, second = cluster.start(2), cluster.start(3)
    cluster.name(2, 3, ranks=[0])
    cluster.name(2, ranks=[1])
    call = begin(ranks, cluster, job)
    assert [call.hear(rank) for rank in range(2)] == [[first.address, second.address]] * 2
    stop(call)


def test_without_a_store_names_are_compared_by_address(ranks, cluster, job):
    """Other ranks may receive them in another order, or under other names."""
    reducers = [cluster.start(2).address, cluster.start(3).address]
    cluster.name(2, 3, ranks=[0])
    cluster.name(3, 2, ranks=[1])
    call = begin(ranks, cluster, job, has_store=False)
    assert [call.hear(rank) for rank in range(2)] == [reducers] * 2
    stop(call)


def fails(rank, lists, job):
    with rank.state(lists[rank.number], job, join_timeout_s=60.0) as state:
        started_at = time.monotonic()
        return rank.error_of(state.connect), time.monotonic() - started_at


def test_without_a_store_differing_reducers_fail_at_once(ranks, cluster, job):
    both, one = cluster.start(2).address, cluster.start(3).address
    answers = ranks.run(2, fails, [[both, one], [both]], job, group=False)
    for error, seconds in answers:
        assert isinstance(error, CollectiveMismatch)
        assert re.search(r"rank \d \(.*\) was given the reducers .*, but rank \d \(.*\) ", str(error))
        assert f"was given the reducers {both}, " in str(error) or f") {both}: give" in str(error)
        assert f"{both}, {one}" in str(error)
        assert seconds < 30.0


def test_without_a_store_names_and_addresses_may_differ(ranks, cluster, job):
    port = cluster.start(1).port
    call = ranks.begin(2, named_otherwise, [f"localhost:{port}", f"127.0.0.1:{port}"], job, group=False)
    assert call.answers() == [1, 1]


def named_otherwise(rank, texts, job):
    with rank.state([texts[rank.number]], job) as state:
        rank.round(state)
        return len(state._communicator._driver._core.epochs.configuration.members)


def test_a_reducer_that_comes_back_with_another_address_is_readmitted(ranks, cluster, job, until):
    stays, goes = cluster.start(2), cluster.start(3)
    cluster.name(2, 3)
    call = begin(ranks, cluster, job)
    for rank in range(2):
        call.hear(rank)
    goes.kill()
    moved = cluster.start(4)
    cluster.name(2, 4)
    deadline = time.monotonic() + 30
    while step(call) != [[stays.address, moved.address]] * 2:
        assert time.monotonic() < deadline
    until(
        lambda: step(call) and status_of(moved.address)["jobs"][0]["epoch"] > 1, "the epoch that takes it in"
    )
    stop(call)


def test_the_only_reducer_comes_back_with_another_address(ranks, cluster, job):
    goes = cluster.start(2)
    cluster.name(2)
    call = begin(ranks, cluster, job)
    for rank in range(2):
        call.hear(rank)
    goes.kill()
    for rank in range(2):
        call.tell(rank, "go on")
    moved = cluster.start(5)
    cluster.name(5)
    assert [call.hear(rank) for rank in range(2)] == [[moved.address]] * 2
    stop(call)


def left_out(rank, reducers, job):
    with rank.state(reducers, job, join_timeout_s=SECONDS) as state:
        judge.ABSENT_S = 0.5
        rank.round(state)
        rank.tell("there")
        rank.hear()
        for number in range(10):
            rank.round(state, step=number)
            time.sleep(0.05)  # a reducer is taken in between collectives
        return len(state._communicator._driver._core.epochs.configuration.members)


def test_a_reducer_missing_at_the_start_is_left_out_and_added_later(ranks, serve, free_port, job, until):
    there, address = serve(), f"127.0.0.1:{free_port()}"
    call = ranks.begin(2, left_out, [there.address, address], job)
    assert [call.hear(rank) for rank in range(2)] == ["there"] * 2
    late = serve(bind=address)
    until(
        lambda: len([peer for job in status_of(late.address)["jobs"] for peer in job["peers"]]) == 2, "them"
    )
    for rank in range(2):
        call.tell(rank, "go on")
    assert call.answers() == [2, 2]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for an /etc/hosts of its own")
def test_a_name_that_changes_its_address_is_resolved_again_before_join_timeout_s(free_port, tmp_path):
    (tmp_path / "hosts").touch()
    script = Path(__file__).with_name("renamed_host.py")
    command = ["unshare", "--mount", sys.executable, str(script), str(free_port()), str(tmp_path / "hosts")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
    assert done.stdout.endswith("both sums are right\n"), done.stdout + done.stderr
