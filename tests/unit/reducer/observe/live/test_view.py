"""Rows of jobs and hosts, compared with the previous look."""

import pytest
from reduction.model import Planes, WaitTimes
from support.scenes.looks import MIB, job, process, silent

from reducer.observe.live.view import Watcher

A, SIBLING, B = "10.0.0.1:50051", "10.0.0.1:41001", "10.0.0.2:50051"


def looks(*pairs):
    """Return the view after the last of some looks, one second apart."""
    watcher = Watcher()
    for number, processes in enumerate(pairs):
        view = watcher.take(processes, 1000.0 + number)
    return view


def test_siblings_share_one_row_and_their_cpu_times_are_added():
    def look(up, own, sibling):
        return [
            process(siblings=(41001,), cpu_seconds=own, uptime_seconds=up),
            process(address=SIBLING, life=2, cpu_seconds=sibling, uptime_seconds=up),
            process(address=B, life=3, cpu_seconds=1.0, uptime_seconds=up),
        ]

    first, second = looks(look(10.0, 1.0, 5.0), look(12.0, 1.5, 7.0)).hosts
    assert (first.address, first.processes, first.cores, first.busiest) == (A, 2, 1.25, 1.0)
    assert (second.address, second.processes, second.cores) == (B, 1, 0.0)
    assert first.reserved_bytes == 2 * second.reserved_bytes == 10 * MIB
    assert first.resident_bytes == 122 * MIB


def test_a_partial_answer_of_a_host_is_shown():
    [row] = looks([process(siblings=(41001,)), silent(SIBLING, "refused")]).hosts
    assert (row.state, row.reason) == ("1 of 2", "refused")
    [row] = looks([silent(A, "timed out")]).hosts
    assert (row.state, row.reason, row.cores) == ("no answer", "timed out", None)


def test_a_restarted_process_has_no_rates_yet():
    [row] = looks([process(cpu_seconds=50.0)], [process(life=2, uptime_seconds=1.0)]).hosts
    assert (row.cores, row.received_per_s) == (None, None)


def test_sums_per_second_are_per_job_and_bytes_cover_all_reducers():
    def look(minimum, received, up):
        return [
            process(job(minimum=minimum, received=received), uptime_seconds=up),
            # This process has seen fewer acknowledgements.
            process(job(minimum=minimum // 2, received=received), address=B, life=2, uptime_seconds=up),
        ]

    [row] = looks(look(0, 0, 10.0), look(24, 4 * MIB, 12.0)).jobs
    assert (row.collectives_per_s, row.received_per_s, row.sent_per_s) == (12.0, 4 * MIB, 4 * MIB)
    [row] = looks(look(0, 0, 10.0)).jobs
    assert (row.collectives_per_s, row.received_per_s) == (None, None)


def test_waits_are_those_of_the_slowest_process():
    slow = job(waits=WaitTimes(0.5, 0.6, 0.7, 0.8))
    [row] = looks([process(job()), process(slow, address=B, life=2)]).jobs
    assert (row.wait_p50_s, row.wait_p99_s) == (0.5, 0.7)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ([(0, 20, 1.0), (2, 80, 8.0)], (2, "host-2", 0.8, True)),
        ([(0, 45, 1.0), (2, 55, 1.0)], (2, "host-2", 0.55, False)),
        ([(2, 15, 9.0)], None),  # too few chunks
    ],
)
def test_the_rank_that_is_waited_for(last, expected):
    [row] = looks([process(job(last=last))]).jobs
    found = row.waited_for
    assert (found and (found.rank, found.host, found.share, found.is_straggler)) == expected


@pytest.mark.parametrize(
    ("planes", "text"),
    [(Planes(tcp=3), "tcp"), (Planes(grpc=1, shared=2), "shared+grpc"), (Planes(), "")],
)
def test_planes(planes, text):
    view = looks([process(job(planes=planes))])
    assert view.jobs[0].plane == text
    assert view.hosts[0].streams == planes.grpc + planes.tcp + planes.shared
