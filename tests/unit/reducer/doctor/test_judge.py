"""What the doctor makes of facts: each fault alone is found and named, and the worst one comes first."""

from dataclasses import asdict, replace

import pytest
from support.fakes.doctor_facts import PATH, RATE, healthy, reducer, worker

from reducer.doctor.facts import Facts, Rate, from_json
from reducer.doctor.findings import Level, first, verdict
from reducer.doctor.judge import judge


def with_worker(number: int, facts: Facts, **changes) -> Facts:
    """Return facts in which one worker is another."""
    workers = list(facts.workers)
    workers[number] = worker(number, **changes)
    return replace(facts, workers=workers)


def slower(rates, part: float, **which):
    """Return rates of which some are slower by a factor."""
    return [
        replace(rate, bytes_per_s=rate.bytes_per_s * part)
        if all(getattr(rate, name) == value for name, value in which.items())
        else rate
        for rate in rates
    ]


def only(facts: Facts, level: Level):
    """Return the only finding, which has this level."""
    found = judge(facts)
    assert [finding.level for finding in found] == [level], found
    assert first(found) == (None if level is Level.NOTE else found[0])
    assert found[0].explains == ()
    assert verdict(found) is level
    return found[0]


def test_nothing_is_wrong():
    assert judge(healthy()) == judge(healthy(2, 3)) == judge(healthy(1, 1)) == []
    assert verdict([]) is Level.NOTE
    assert first([]) is None


def test_facts_go_through_json():
    facts = healthy()
    assert from_json(asdict(facts)) == facts


# ---- addresses and reach ----


def test_ranks_that_find_different_reducers():
    found = only(with_worker(2, healthy(), addresses=["10.0.1.7:1"], source="file"), Level.BROKEN)
    assert found.check == "addresses"
    assert found.where == "rank 2 (host-2)"
    assert found.what.startswith("it finds 10.0.1.7:1 (file), and rank 0 (host-0) finds 10.0.1.0:50051,")


@pytest.mark.parametrize(
    ("trouble", "fix"),
    [
        ("its certificate is not accepted here: certificate has expired", "renew the certificate"),
        ("its certificate is not accepted here: self-signed", "SECURITY.md"),
        ("Unauthenticated: it shows no token", "the same token"),
        ("UnsupportedVersion: it speaks protocol 4", "the same version"),
        ("nothing listens on port 50051", "start it"),
        ("ResourceExhausted: all memory is reserved: exhausted", "--memory-limit"),
        ("something else", "its log"),
    ],
)
def test_a_reducer_that_cannot_be_used(trouble, fix):
    broken = [reducer(0), reducer(1, trouble=trouble)]
    found = only(with_worker(1, healthy(), reducers=broken), Level.BROKEN)
    assert found.where == "10.0.1.1:50051 from rank 1 (host-1)"
    assert found.what == trouble
    assert fix in found.fix


def test_a_data_port_that_is_blocked():
    blocked = [reducer(0), reducer(1, plane="grpc", why_not_tcp="data port 7: no answer within 3 s")]
    found = only(with_worker(0, healthy(), reducers=blocked), Level.SLOW)
    assert "data port 7" in found.what
    assert "open this port" in found.fix


def test_a_reducer_that_drains_and_one_without_memory():
    assert (
        "draining"
        in only(with_worker(0, healthy(), reducers=[reducer(0, is_draining=True)]), Level.BROKEN).what
    )
    full = [reducer(0, free_bytes=10 << 20), reducer(1)]
    assert "only 10 MiB are free" in only(with_worker(0, healthy(), reducers=full), Level.SLOW).what


def test_versions_that_differ_are_no_fault():
    found = only(with_worker(0, healthy(), reducers=[reducer(0, version="1.1"), reducer(1)]), Level.NOTE)
    assert "1.0, 1.1" in found.what


def test_what_was_not_measured_is_said():
    for reason in ("--no-rates", "job 'x' is running there; --anyway measures"):
        assert only(healthy(unmeasured=reason), Level.NOTE).sentence == f"nothing was measured: {reason}"
    failed = only(healthy(failure="rank 1 (b) has not come"), Level.BROKEN)
    assert failed.sentence == "measuring failed: rank 1 (b) has not come"


# ---- path ----


def test_a_card_that_has_negotiated_less():
    slow = [reducer(number, path=replace(PATH, link_mbit=100)) for number in range(2)]
    found = only(with_worker(3, healthy(), reducers=slow), Level.SLOW)
    assert found.where == "rank 3 (host-3)"
    assert "eth0 has negotiated 100 Mbit/s, and another host's card 1000" in found.what


def test_clocks_packets_and_answers():
    assert "+3.00 s" in only(with_worker(1, healthy(), clock_s=3.0), Level.NOTE).what
    assert not judge(with_worker(1, healthy(), clock_s=3.0, clock_error_s=3.0))
    for change, text in (
        ({"mss": 536}, "only 536 bytes"),
        ({"answer_s": 0.2, "answer_p99_s": 0.2}, "an empty sum takes 200.0 ms"),
        ({"answer_p99_s": 0.4}, "one of 50 takes 400 ms"),
    ):
        odd = [reducer(0, path=replace(PATH, **change)), reducer(1)]
        assert text in only(with_worker(1, healthy(), reducers=odd), Level.SLOW).what


# ---- bandwidth ----


def test_a_slow_worker_a_slow_reducer_and_a_slow_pair():
    facts = healthy(4, 4)
    found = only(replace(facts, alone=slower(facts.alone, 0.4, rank=2)), Level.SLOW)
    assert found.where == "the link of rank 2 (host-2)"
    assert found.what == "it carries 320 Mbit/s, while other workers' links carry 800 Mbit/s"
    assert found.cost == pytest.approx(0.6)
    address = "10.0.1.3:50051"
    incast = slower(facts.incast, 0.4, reducer=address)
    found = only(replace(facts, alone=slower(facts.alone, 0.4, reducer=address), incast=incast), Level.SLOW)
    assert found.where == f"the link of reducer {address}"
    found = only(replace(facts, alone=slower(facts.alone, 0.4, rank=1, reducer=address)), Level.SLOW)
    assert found.where == f"the path from rank 1 (host-1) to {address}"


def test_two_workers_of_which_one_is_slow():
    facts = healthy(2, 2)
    found = only(replace(facts, alone=slower(facts.alone, 0.5, rank=0)), Level.SLOW)
    assert found.where == "the link of rank 0 (host-0)"


def test_a_rate_below_what_the_user_expects():
    assert not judge(healthy(1, 1, expected_mbit=850.0))
    found = only(healthy(1, 1, expected_mbit=2000.0), Level.SLOW)
    assert found.what == "it carries 800 Mbit/s, and --link says 2 Gbit/s"
    assert found.where == "the link of host-0"


def test_lost_packets():
    facts = healthy()
    incast = [replace(rate, resent=0.07 if rate.rank == 1 else 0.001) for rate in facts.incast]
    found = only(replace(facts, incast=incast), Level.SLOW)
    assert found.where == "rank 1 (host-1) to all reducers"
    assert found.what == "7.0% of what was sent was lost and sent again"
    alone = [replace(rate, resent=0.04 if rate.rank == 1 else 0.0) for rate in facts.alone]
    assert only(replace(facts, alone=alone), Level.SLOW).where == "rank 1 (host-1) to reducer 10.0.1.0:50051"


def test_packets_that_are_lost_on_the_way_to_one_reducer():
    facts = healthy()
    incast = [
        replace(rate, resent=0.05 if rate.reducer == "10.0.1.1:50051" else 0.0) for rate in facts.incast
    ]
    found = only(replace(facts, incast=incast), Level.SLOW)
    assert found.where == "all workers at once to reducer 10.0.1.1:50051"
    assert found.what == "5.0% of what was sent was lost and sent again"
    # One that loses everywhere is named, and the reducers are not.
    incast = [replace(rate, resent=0.2 if rate.rank == 1 else 0.0) for rate in facts.incast]
    assert only(replace(facts, incast=incast), Level.SLOW).where == "rank 1 (host-1) to all reducers"


def test_what_one_of_many_loses_by_chance_is_no_fault():
    facts = healthy(4, 4)
    incast = [replace(rate, resent=0.01) for rate in facts.incast]
    incast[5] = replace(incast[5], resent=0.06)
    assert judge(replace(facts, incast=incast)) == []


def test_an_incast_that_collapses():
    facts = healthy()
    found = only(replace(facts, incast=slower(facts.incast, 0.3, reducer="10.0.1.1:50051")), Level.SLOW)
    assert found.where == "reducer 10.0.1.1:50051"
    assert "takes in 240 Mbit/s from all workers at once, and 800 Mbit/s from one" in found.what


def test_less_together_than_the_links_carry():
    facts = healthy(2, 2)
    found = only(replace(facts, together=slower(facts.together, 0.4)), Level.SLOW)
    assert found.where == "all to all"
    # With half as many reducers as workers, half of the rate is all there can be.
    assert not judge(healthy(4, 2, together=[Rate(rank=0, reducer="", bytes_per_s=RATE / 2)]))


# ---- CPU and limits ----


def test_a_quota():
    found = only(with_worker(1, healthy(), host={"cores": 2.0, "throttled": 0.3}), Level.SLOW)
    assert found.check == "cpu"
    assert found.what.startswith("its cgroup allows 2 of 8 cores (cpu.max), and stopped processes in 30% of")
    assert only(with_worker(1, healthy(), host={"cores": 0.5}), Level.SLOW).cost == 0.5
    # A quota that never bites costs nothing.
    assert not judge(with_worker(1, healthy(), host={"cores": 2.0}))


def test_other_load_and_a_slow_python():
    assert "7 of 8 cores busy" in only(with_worker(1, healthy(), host={"busy_cores": 7.4}), Level.SLOW).what
    assert (
        "without optimisations"
        in only(with_worker(1, healthy(), host={"is_optimized": False}), Level.NOTE).what
    )


def test_descriptors_and_buffers():
    assert (
        "may have 60 descriptors"
        in only(with_worker(1, healthy(), host={"descriptors": 60}), Level.BROKEN).what
    )
    long = [reducer(number, path=replace(PATH, rtt_s=0.04)) for number in range(2)]
    facts = with_worker(1, healthy(), reducers=long, host={"receive_buffer": 4 << 20})
    found = only(facts, Level.SLOW)
    assert found.what == "net.ipv4.tcp_rmem allows 4096 KiB, and this path takes 7812"


# ---- what a lack of cores explains ----

BUSY = {"busy_cores": 8.4}


def test_a_slow_link_of_a_busy_host_is_no_finding_of_its_own():
    facts = healthy(4, 4)
    facts = replace(facts, alone=slower(facts.alone, 0.4, rank=2), together=slower(facts.together, 0.1))
    slow_answers = [reducer(number, path=replace(PATH, answer_p99_s=0.4)) for number in range(4)]
    facts = with_worker(2, facts, count=4, host=BUSY, reducers=slow_answers)
    [found] = judge(facts)
    assert found.sentence == "rank 2 (host-2): other programs keep 8 of 8 cores busy"
    answers, link, all_to_all = found.explains
    assert answers.endswith("an empty sum takes 0.3 ms, and one of 50 takes 400 ms")
    assert link.startswith("the link of rank 2 (host-2): it carries 320 Mbit/s, while")
    assert all_to_all.startswith("all to all: each worker gets")
    # It costs what it explains.
    assert found.cost == pytest.approx(0.75)


def test_links_of_hosts_that_are_all_busy_are_compared():
    facts = healthy(4, 4)
    facts = replace(facts, workers=[worker(rank, 4, host=BUSY) for rank in range(4)])
    facts = replace(facts, alone=slower(facts.alone, 0.4, rank=2))
    busy, slow = judge(facts)
    assert busy.where == "rank 0 (host-0), rank 1 (host-1), rank 2 (host-2), rank 3 (host-3)"
    assert busy.explains == ()
    assert first([busy, slow]) == slow
    assert slow.where == "the link of rank 2 (host-2)"
    # What the user says of a link is not compared with that of another busy host, either.
    facts = replace(healthy(1, 1, expected_mbit=2000.0), workers=[worker(0, 1, host=BUSY)])
    assert first(judge(facts)).what == "it carries 800 Mbit/s, and --link says 2 Gbit/s"


def test_within_one_host_there_is_no_cable():
    facts = healthy(2, 2)
    near = [reducer(number, is_near=True) for number in range(2)]
    facts = replace(facts, alone=slower(facts.alone, 0.4, rank=1))
    facts = replace(facts, workers=[worker(rank, reducers=near) for rank in range(2)])
    assert only(facts, Level.SLOW).fix == "look for a lack of cores: this is within one host"
    facts = replace(facts, workers=[worker(rank, reducers=near, host=BUSY) for rank in range(2)])
    [busy] = judge(facts)
    assert busy.explains == (
        "the link of rank 1 (host-1): it carries 320 Mbit/s, while other workers' links carry 800 Mbit/s",
    )


# ---- which one first ----


def test_what_is_the_same_in_several_places_is_said_once():
    facts = healthy(6, 2)
    facts = replace(facts, workers=[worker(rank, host={"is_optimized": False}) for rank in range(6)])
    found = only(facts, Level.NOTE)
    assert found.where == "rank 0 (host-0), rank 1 (host-1), rank 2 (host-2), rank 3 (host-3) and 2 more"


def test_what_is_broken_comes_before_what_is_slow_and_then_what_costs_most():
    facts = healthy(4, 4)
    facts = replace(facts, alone=slower(facts.alone, 0.3, rank=2))
    facts = with_worker(3, facts, count=4, host={"busy_cores": 8.0})
    found = judge(facts)
    assert [finding.check for finding in found if finding.level is Level.SLOW] == ["cpu", "bandwidth"]
    assert first(found).where == "the link of rank 2 (host-2)"
    broken = reducer(0, trouble="nothing listens on port 50051")
    facts = with_worker(1, facts, count=4, reducers=[broken])
    assert first(judge(facts)).check == "reach"
    assert verdict(judge(facts)) is Level.BROKEN
