"""The simulated network, and all-reduces on it."""

import json
import math
from pathlib import Path

import pytest

from benchmarks.lab.traffic import SEGMENT_BYTES, Link
from benchmarks.simulation.against_lab import BUSY_MAX, COLUMNS, Measured, compare, measured
from benchmarks.simulation.figure import any_number, gain
from benchmarks.simulation.network import TIMEOUT_S, Bucket, Clock, Connection, Host
from benchmarks.simulation.world import Setting, World, simulate
from reducer.planner.formulas import OVERHEAD

MIB = 1 << 20
RATE = 1e6


PACKET_BYTES = SEGMENT_BYTES
#: A network that loses nothing.
LONG_QUEUE_MS = 20.0
SHORT = Link(rate_mbit=1000, latency_ms=1)


def host(name, burst=0.0, queue=1e9):
    return Host(name, *(Bucket(RATE, burst, queue) for _ in range(2)), PACKET_BYTES)


def arrivals(connections, nbytes):
    """Let each connection send a message; return the arrival time of each."""
    clock, seen = connections[0]._clock, {}
    for number, connection in enumerate(connections):
        connection.send(nbytes, lambda number=number: seen.__setitem__(number, clock.now))
    while clock.step():
        pass
    return [seen[number] for number in range(len(connections))]


def test_events_happen_in_order_of_time_and_then_of_creation():
    clock, seen = Clock(), []
    for time, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        clock.at(time, lambda name=name: seen.append((clock.now, name)))
    while clock.step():
        pass
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]


def test_a_bucket_lets_bytes_pass_at_its_rate():
    bucket = Bucket(RATE, 0.0, 1e9)
    assert [bucket.pass_at(1000, 5.0) for _ in range(3)] == pytest.approx([5.001, 5.002, 5.003])
    assert bucket.pass_at(1000, 9.0) == pytest.approx(9.001)


def test_a_queue_has_room_again_when_enough_has_passed():
    bucket = Bucket(RATE, 0.0, 3000)
    assert [bucket.pass_at(1000, 5.0) for _ in range(3)]
    assert bucket.room_at(1000) == pytest.approx(5.001)
    assert bucket.room_at(2000) == pytest.approx(5.002)


def test_after_a_pause_a_burst_passes_at_once():
    bucket = Bucket(RATE, 2000, 1e9)
    assert [bucket.pass_at(1000, 5.0) for _ in range(4)] == pytest.approx([5.0, 5.0, 5.001, 5.002])


def test_a_message_takes_the_time_of_the_slower_link_and_one_packet_more():
    fast, slow = host("fast"), host("slow")
    slow.down.rate = RATE / 2
    nbytes = 8 * PACKET_BYTES
    first = PACKET_BYTES * OVERHEAD / RATE
    taken = arrivals([Connection(Clock(), fast, slow)], nbytes)
    assert taken == pytest.approx([first + nbytes * OVERHEAD / (RATE / 2)], abs=1e-3)


def test_the_senders_own_queue_loses_nothing():
    connection = Connection(Clock(), host("a", queue=2 * PACKET_BYTES), host("b"))
    arrivals([connection], 20 * PACKET_BYTES)
    assert connection.sent.lost == 0


def test_packets_dropped_by_a_switch_are_counted_and_arrive_after_a_timeout():
    clock, target = Clock(), host("to", queue=2.2 * PACKET_BYTES)
    crowd = [Connection(clock, host("from"), target) for _ in range(3)]
    packet_s = PACKET_BYTES * OVERHEAD / RATE
    taken = sorted(arrivals(crowd, PACKET_BYTES))
    assert taken == pytest.approx([2 * packet_s, 3 * packet_s, TIMEOUT_S + 2 * packet_s], abs=1e-3)
    assert sorted(each.sent.lost for each in crowd) == [0, 0, 1]
    assert sorted(each.sent.segments for each in crowd) == [1, 1, 2]
    assert {each.sent.acked_bytes for each in crowd} == {PACKET_BYTES}


def test_a_paced_connection_is_no_faster():
    connection = Connection(Clock(), host("a"), host("b"))
    connection.pace = RATE / 4
    nbytes = 20 * PACKET_BYTES
    assert arrivals([connection], nbytes) == pytest.approx([nbytes / (RATE / 4)], rel=0.1)
    assert connection.sent.busy_s == pytest.approx(nbytes / (RATE / 4), rel=0.1)


@pytest.mark.parametrize(("reducers", "best"), [(0, 1.0), (1, 1.125), (2, 1.25), (3, 1.375), (4, 1.5)])
def test_any_number_of_reducers_comes_near_what_the_links_allow(reducers, best):
    setting = Setting(
        workers=4, reducers=reducers, link=Link(rate_mbit=200, latency_ms=LONG_QUEUE_MS), colocated=True
    )
    outcome = simulate(setting, 16 * MIB, 4)
    ring_s = 1.5 * 16 * MIB * OVERHEAD * 8 / 200e6
    assert 0.9 * best < ring_s / outcome.times_s[-1] < 1.02 * best  # a burst passes without delay
    assert not outcome.lost
    assert len(outcome.weights) == reducers + (4 if reducers < 4 else 0)


def test_a_few_reducers_on_separate_hosts_are_slower_than_a_ring():
    outcome = simulate(
        Setting(workers=4, reducers=2, link=Link(rate_mbit=200, latency_ms=LONG_QUEUE_MS)), 16 * MIB, 3
    )
    ring_s = 1.5 * 16 * MIB * OVERHEAD * 8 / 200e6
    assert 0.68 < ring_s / outcome.times_s[-1] < 0.77


def test_a_slow_reducer_costs_little_if_its_rate_is_known():
    setting = Setting(
        workers=4, reducers=4, link=Link(rate_mbit=200, latency_ms=LONG_QUEUE_MS), colocated=True
    )
    slower = Setting(
        workers=4,
        reducers=4,
        link=Link(rate_mbit=200, latency_ms=LONG_QUEUE_MS),
        colocated=True,
        slower=(("r0", 0.5),),
    )
    whole, less = (simulate(each, 16 * MIB, 4).times_s[-1] for each in (setting, slower))
    assert less < 1.2 * whole


def test_the_figure_shows_what_the_links_allow():
    assert gain(4, 2, is_colocated=True) == pytest.approx(1.25)
    assert gain(4, 2, is_colocated=False) == pytest.approx(0.75)
    assert len(any_number().axes[0].get_legend_handles_labels()[0]) == 5


def test_the_same_setting_takes_the_same_time():
    setting = Setting(
        workers=3, reducers=1, link=Link(rate_mbit=100, latency_ms=LONG_QUEUE_MS), colocated=True
    )
    assert simulate(setting, MIB, 3) == simulate(setting, MIB, 3)


def test_a_job_yields_to_another_then_regains_its_links_and_small_sums_are_not_slower():
    world = World(Setting(workers=4, reducers=4, link=SHORT, cpu=0))
    alone = [world.all_reduce(16 * MIB) for _ in range(4)][-1]
    other = World(world.setting, beside=world)
    other.issue(128 * MIB)
    beside = [world.all_reduce(16 * MIB) for _ in range(3)]
    assert all(1.2 * alone < each < 2.5 * alone for each in beside)
    while not other.ranks[0].delivered:
        world.clock.step()
    assert [world.all_reduce(16 * MIB) for _ in range(8)][-1] < 1.2 * alone

    assert not math.isinf(world.ranks[0].core.pacing.rate)
    world.all_reduce(MIB, pause_s=1.0)
    small = world.all_reduce(MIB, pause_s=1.0)
    for reducer in world.reducers:
        for stream in reducer.streams.values():
            stream.pushes.pace = stream.results.pace = math.inf
    assert small < 1.05 * world.all_reduce(MIB)


def test_processes_that_share_cores_wait_for_each_other():
    link = Link(rate_mbit=100_000)
    times = [
        simulate(Setting(workers=4, reducers=4, link=link, cores=cores), 4 * MIB, 2).times_s[1]
        for cores in (0, 8, 2)
    ]
    assert times[0] == pytest.approx(times[1])
    assert times[2] > 3 * times[1], "8 processes, 2 cores"


def lab(name):
    results = Path(__file__).parents[4] / "docs" / "measured" / "shaped"
    return list(measured(json.loads((results / f"{name}.json").read_text())))


@pytest.mark.parametrize("one", [*lab("few-reducers"), lab("paced")[0]])
@pytest.mark.full
def test_it_agrees_with_what_the_lab_has_measured(one):
    row = compare(one)
    assert not row["not_simulated"]
    assert row["simulated_s"] == pytest.approx(row["lab_s"], rel=0.1)


def test_the_lab_measurements_are_complete():
    few, short = lab("few-reducers"), lab("paced")
    assert [(one.setting.workers, one.setting.reducers) for one in few] == [(4, k) for k in range(5)]
    assert [one.busy for one in short] == [0, 0, 0, 1, 1, 1, 1]


def test_unsimulated_effects_are_listed():
    setting = Setting(workers=4, reducers=1, link=SHORT)
    row = compare(Measured(setting, 4 * MIB, 1.0, BUSY_MAX + 0.01))
    assert row["not_simulated"] == ["busy cores"]
    assert COLUMNS["not simulated"](row) == "busy cores"
