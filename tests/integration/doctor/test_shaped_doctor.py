"""The doctor on links of a known rate, in network namespaces: what it measures, predicts and finds.

Rates are low, so that the links are the bottleneck and not the cores of this machine.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing

import pytest
from support.processes.doctors import Doctors

from benchmarks.lab.cluster import Cluster, Shape, running
from benchmarks.lab.goodput import goodput_mbit
from benchmarks.lab.hosts import Host
from benchmarks.lab.network import Network, NetworkUnavailable
from benchmarks.lab.reducers import Reducers
from benchmarks.lab.traffic import Link
from benchmarks.loads.ddp_step import DdpStep, gradient_bytes
from benchmarks.method.paired import Effort, compare

pytestmark = pytest.mark.timeout(400)

#: Mbit/s of the links.
RATE = 60.0
#: Tolerance of a measured rate against iperf3, and of a predicted step time against a measured one.
RATE_ERROR, STEP_ERROR = 0.05, 0.10
#: The model whose steps are timed, which has 8 MB of gradients.
WIDTH, BATCH = 720, 4
STEPS = Effort(rounds=5, rounds_min=5, budget_s=0.0, warmup_rounds=2)


@pytest.fixture
def network() -> Iterator[Callable[..., tuple[Network, Reducers]]]:
    """Return a function that creates a network and starts its reducers."""
    with ExitStack() as stack:

        def make(
            workers: int, reducers: int, link: Link | None = None, slower: dict[str, float] | None = None
        ) -> tuple[Network, Reducers]:
            try:
                hosts = stack.enter_context(
                    Network(workers, reducers, link or Link(rate_mbit=RATE), slower or {})
                )
            except NetworkUnavailable as error:
                pytest.skip(str(error))
            return hosts, stack.enter_context(closing(Reducers(reducers, hosts.reducers)))

        yield make


def findings(document, check: str = "bandwidth") -> list[dict]:
    return [finding for finding in document["findings"] if finding["check"] == check]


def mbit(rate: dict) -> float:
    return rate["bytes_per_s"] * 8 / 1e6


def test_measured_rates_match_the_links_and_a_slow_link_is_named(network):
    if shutil.which("iperf3") is None:
        pytest.skip("iperf3 is not installed")
    hosts, reducers = network(2, 2, slower={"w1": 0.5})
    whole, half = (goodput_mbit(worker, hosts.reducers[0]) for worker in hosts.workers)
    document = Doctors(hosts.workers, reducers.addresses, "--json").document()
    facts = document["facts"]
    best = {rank: max(mbit(rate) for rate in facts["alone"] if rate["rank"] == rank) for rank in (0, 1)}
    print(f"Mbit/s by iperf3 {whole:.1f} and {half:.1f}, by the doctor {best[0]:.1f} and {best[1]:.1f}")
    assert best == {0: pytest.approx(whole, rel=RATE_ERROR), 1: pytest.approx(half, rel=RATE_ERROR)}
    assert len(facts["alone"]) == len(facts["incast"]) == 4
    assert len(facts["together"]) == len(facts["ring"]) == 2
    # Both ranks have the clock of this machine.
    assert abs(facts["workers"][1]["clock_s"]) < 0.5
    assert {path["interface"] for path in paths(facts)} == {"eth0"}
    assert {path["mss"] for path in paths(facts)} == {1448}
    worst = document["fix_first"]
    assert worst["where"].startswith("the link of rank 1"), document["findings"]
    assert "other workers' links carry" in worst["what"]
    assert len([finding for finding in findings(document) if "the link of" in finding["where"]]) == 1


def paths(facts) -> Iterator[dict]:
    for worker in facts["workers"]:
        for reducer in worker["reducers"]:
            yield reducer["path"]


#: Fills the link of a host in bursts, which no sender can predict.
BURSTS = """
import socket, sys, time
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    end = time.monotonic() + 0.03
    while time.monotonic() < end:
        sock.sendto(bytes(1400), (sys.argv[1], 9))
    time.sleep(0.03)
"""


def test_lost_packets_are_found(network):
    # A queue of a few packets, like a port of a cheap switch, and other traffic on the reducer's link. Without that
    # traffic, pacing would keep the queue short.
    link = Link(rate_mbit=RATE, latency_ms=1.0, burst_bytes=16 << 10)
    hosts, reducers = network(3, 1, link)
    *workers, other = hosts.workers
    command = [*other.prefix, sys.executable, "-c", BURSTS, hosts.reducers[0].address]
    with subprocess.Popen(command) as bursts:
        try:
            document = Doctors(workers, reducers.addresses, "--json").document()
        finally:
            bursts.kill()
    lost = [finding for finding in findings(document) if "lost and retransmitted" in finding["what"]]
    assert lost, document["facts"]
    assert all(finding["level"] == "slow" for finding in lost)
    assert any(hosts_name in lost[0]["where"] for hosts_name in ("rank 0", "rank 1"))


def test_one_host_finds_a_slow_link_on_its_own(network):
    hosts, reducers = network(1, 1, slower={"r0": 0.5})
    code, output = alone(hosts.workers[0], *reducers.addresses, "--link", f"{RATE:g}M")
    assert code == 1
    assert "--link says" in output
    assert "fix first: the link of" in output


@pytest.mark.skipif(shutil.which("nft") is None, reason="nft is not installed")
def test_a_blocked_data_port_is_found(network):
    hosts, reducers = network(1, 1)
    [reducer] = hosts.reducers
    control = reducers.addresses[0].rpartition(":")[2]
    rules = f"""
        table inet doctor {{
            chain input {{
                type filter hook input priority 0; policy accept;
                tcp dport {control} accept
                tcp flags & (syn | ack) == syn drop
            }}
        }}
    """
    blocked = subprocess.run(
        [*reducer.prefix, "nft", "-f", "-"],
        input=rules,
        text=True,
        capture_output=True,
        timeout=20,
        check=False,
    )
    if blocked.returncode:
        pytest.skip(f"nft does not work here: {blocked.stderr.strip()}")
    code, output = alone(hosts.workers[0], *reducers.addresses)
    assert code == 1
    assert "no answer within 3 s" in output
    assert "fix first" in output
    assert "open this port between the hosts" in output.partition("fix first")[2]


def alone(host: Host, *arguments: str) -> tuple[int, str]:
    """Return the exit code and the output of `reducer doctor` on a host, with all whitespace collapsed."""
    command = [sys.executable, "-m", "reducer", "doctor", *arguments]
    done = subprocess.run([*host.prefix, *command], capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def shape_of(workers: int, reducers: int, rate: float) -> Shape:
    return Shape(workers=workers, reducers=reducers, link=Link(rate_mbit=rate))


#: Workers, reducers and link rates. `DdpStep` compares exact gradients, so the number of workers is a power of two.
SHAPES = [shape_of(*numbers) for numbers in [(2, 1, 30), (2, 2, 30), (4, 2, 30), (4, 4, 30), (4, 4, 60)]]


@pytest.mark.full
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_steps_take_as_long_as_predicted(shape):
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(running(shape, with_goodput=False))
        except NetworkUnavailable as error:
            pytest.skip(str(error))
        compute_s, step_s = steps(cluster)
        assert cluster.network is not None
        hosts: Sequence[Host] = cluster.network.workers
        numbers = f"{gradient_bytes(WIDTH) // 4}"
        # The ranks whose steps were measured are still there but idle.
        options = ("--parameters", numbers, "--compute", f"{compute_s:.3f}", "--anyway")
        document = Doctors(hosts, cluster.reducers.addresses, *options, "--json").document()
    predicted_s = document["forecast"]["now"]["total_s"]
    print(f"{shape.name}: predicted {predicted_s:.3f} s, measured {step_s:.3f} s, {time.strftime('%H:%M')}")
    assert predicted_s == pytest.approx(step_s, rel=STEP_ERROR)


def steps(cluster: Cluster) -> tuple[float, float]:
    """Return the seconds per step without communication, and with our hook."""
    contenders = ["tcp", "noop"]
    cluster.ranks.load(DdpStep, WIDTH, BATCH)
    measured = compare(cluster, contenders, STEPS)
    return measured["noop"].p50_s, measured["tcp"].p50_s
