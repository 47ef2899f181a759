"""Elastic jobs on separate hosts, whose links are cut temporarily, permanently, or so as to partition the network."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes.elastic_workers import Worker, assert_alike, steps_of
from support.processes.reducers import Reducer

from benchmarks.lab.hosts import Host
from benchmarks.lab.network import Network, NetworkUnavailable
from benchmarks.lab.traffic import Link

pytestmark = pytest.mark.timeout(300)


class Scene:
    """Three workers and three reducers, each on its own host."""

    def __init__(self, folder: Path, network: Network) -> None:
        self._folder, self.network = folder, network
        self.reducers: list[Reducer] = []
        self.workers: list[Worker] = []
        self._stop = folder / "stop"
        for host in network.reducers:
            with host.entered():
                self.reducers.append(Reducer(folder, "--insecure", bind=f"{host.address}:0"))
        self._shared = {
            "REDUCTION_JOB": f"elastic-{uuid.uuid4().hex[:6]}",
            "REDUCTION_REDUCERS": ",".join(reducer.address for reducer in self.reducers),
            "REDUCTION_WORLD_SIZE": "3",
            "REDUCTION_JOIN_TIMEOUT_S": "30",
            "STEPS": "1000000",
            "PAUSE_S": "0.15",
            "STOP": str(self._stop),
        }
        for rank in range(3):
            self.start(rank)
        for worker in self.workers:
            worker.wait_for(lambda line: line["step"] == 5)

    def start(self, rank: int) -> Worker:
        self.workers.append(Worker(self._folder, rank, host=self.network.workers[rank], **self._shared))
        return self.workers[-1]

    def stop(self) -> None:
        self._stop.touch()

    def plug(self, host: Host, *how: str) -> None:
        """Set the switch port of a host."""
        assert host.namespace is not None
        run, _, port = host.namespace.rpartition("-")
        ip("-n", f"{run}-bridge", "link", "set", "dev", port, *how)

    def divide(self, *hosts: Host) -> None:
        """Move these hosts to a separate switch."""
        assert hosts[0].namespace is not None
        switch = f"{hosts[0].namespace.rpartition('-')[0]}-bridge"
        ip("-n", switch, "link", "add", "dev", "other", "type", "bridge")
        ip("-n", switch, "link", "set", "dev", "other", "up")
        for host in hosts:
            self.plug(host, "master", "other")

    def end(self) -> None:
        for process in (*self.workers, *self.reducers):
            process.log.spare()
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()
        for reducer in self.reducers:
            reducer.kill()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=20, capture_output=True, text=True)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    try:
        network = Network(3, 3, Link(rate_mbit=200))
    except NetworkUnavailable as error:
        pytest.skip(str(error))
    with network:
        scene = Scene(tmp_path, network)
        yield scene
        scene.end()


def test_a_brief_cut_is_only_a_delay(scene: Scene) -> None:
    scene.plug(scene.network.workers[1], "down")
    time.sleep(3)
    scene.plug(scene.network.workers[1], "up")
    at = scene.workers[0].lines[-1]["step"]
    scene.workers[0].wait_for(lambda line: line["step"] > at + 20)
    scene.stop()
    said = [worker.end() for worker in scene.workers]
    assert_alike(*said)
    assert all(line["members"] == [0, 1, 2] for lines in said for line in lines)


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.full)])
def test_the_others_continue_without_a_worker_that_is_cut_off(scene: Scene, victim: int) -> None:
    scene.plug(scene.network.workers[victim], "down")
    others = [worker for worker in scene.workers if worker.rank != victim]
    ranks = [worker.rank for worker in others]
    others[0].wait_for(lambda line: line["members"] == ranks)
    scene.plug(scene.network.workers[victim], "up")
    # It cannot return as it was, because the others have continued. A new one takes its rank.
    error = scene.workers[victim].error()
    assert f"the others have continued without rank {victim}" in error or "no other joined" in error
    new = scene.start(victim)
    new.wait_for(lambda line: line["step"] > new.lines[0]["step"] + 5)
    scene.stop()
    said = [worker.end() for worker in (*others, new)]
    assert_alike(*said, scene.workers[victim].lines)
    assert steps_of(said[0]) == list(range(1, len(said[0]) + 1))


@pytest.mark.full
def test_only_one_side_of_a_partition_continues(scene: Scene) -> None:
    """The first worker keeps all reducers but one, and must stop. The others continue with that one."""
    scene.divide(*scene.network.workers[1:], scene.network.reducers[2])
    alone, *others = scene.workers
    others[0].wait_for(lambda line: line["members"] == [1, 2])
    at = others[0].lines[-1]["step"]
    others[0].wait_for(lambda line: line["step"] > at + 20)
    assert "ranks [0] are left of the 3 workers of generation 1 and are not a majority" in alone.error()
    scene.stop()
    said = [worker.end() for worker in others]
    assert_alike(*said, alone.lines)
    assert all(line["members"] != [0] for line in alone.lines)
    assert steps_of(said[0]) == list(range(1, len(said[0]) + 1))
