"""The doctor's judgement: each fault alone is found and named, and the worst one is listed first."""

from dataclasses import asdict, replace

import pytest
from support.fakes.doctor_facts import PATH, RATE, healthy, reducer, worker

from reducer.doctor.facts import Facts, Rate, from_json
from reducer.doctor.findings import Level, first, verdict
from reducer.doctor.judge import judge

NOTE, SLOW, BROKEN = Level
FOUR = healthy(4, 4)
LAST = "10.0.1.3:50051"
BUSY = {"busy_cores": 8.4}


def with_worker(number: int, facts: Facts | None = None, **changes) -> Facts:
    """Return facts in which one worker is replaced."""
    facts = facts or healthy()
    workers = list(facts.workers)
    workers[number] = worker(number, **changes)
    return replace(facts, workers=workers)


def reaches(number: int, **changes) -> Facts:
    """Return facts in which one worker's view of the second reducer is replaced."""
    return with_worker(number, reducers=[reducer(0), reducer(1, **changes)])


def slower(facts: Facts, name: str, part: float, **which) -> Facts:
    """Return facts in which some rates are slower by a factor."""
    rates = [
        replace(rate, bytes_per_s=rate.bytes_per_s * part)
        if all(getattr(rate, field) == value for field, value in which.items())
        else rate
        for rate in getattr(facts, name)
    ]
    return replace(facts, **{name: rates})


def lossy(resent, name: str = "incast", facts: Facts | None = None) -> Facts:
    """Return facts in which this fraction of a rank's segments to a reducer was retransmitted."""
    facts = facts or healthy()
    return replace(facts, **{name: [replace(rate, resent=resent(rate)) for rate in getattr(facts, name)]})


def only(facts: Facts, level: Level):
    """Return the only finding, which must have this level."""
    found = judge(facts)
    assert [finding.level for finding in found] == [level], found
    assert first(found) == (None if level is Level.NOTE else found[0])
    assert found[0].explains == ()
    assert verdict(found) is level
    return found[0]


@pytest.mark.parametrize(
    "facts",
    [
        healthy(),
        healthy(2, 3),
        healthy(1, 1, expected_mbit=850.0),
        with_worker(1, clock_s=3.0, clock_error_s=3.0),
        with_worker(1, host={"cores": 2.0}),  # a quota that never bites
        # With half as many reducers as workers, half the rate is the maximum.
        healthy(4, 2, together=[Rate(rank=0, reducer="", bytes_per_s=RATE / 2)]),
        # One of many has lost a little by chance.
        lossy(lambda rate: 0.06 if (rate.rank, rate.reducer) == (1, "10.0.1.1:50051") else 0.01, facts=FOUR),
    ],
)
def test_good_facts_give_no_findings(facts):
    found = judge(facts)
    assert (found, verdict(found), first(found)) == ([], Level.NOTE, None)


def test_facts_survive_a_json_round_trip():
    assert from_json(asdict(healthy())) == healthy()


LOST = "% of what was sent was lost and retransmitted"
FAULTS = {
    "other addresses": (
        with_worker(2, addresses=["10.0.1.7:1"], source="file"),
        BROKEN,
        "rank 2 (host-2)",
        "it finds 10.0.1.7:1 (file), and rank 0 (host-0) finds 10.0.1.0:50051,",
    ),
    "draining": (reaches(0, is_draining=True), BROKEN, "10.0.1.1:50051 from rank 0 (host-0)", "draining"),
    "little memory": (reaches(0, free_bytes=10 << 20), SLOW, "10.0.1.1:50051 from", "only 10 MiB are free"),
    "versions": (reaches(0, version="1.1"), NOTE, "the reducers", "1.0, 1.1"),
    "not asked to measure": (healthy(unmeasured="--no-rates"), NOTE, "", "nothing was measured: --no-rates"),
    "did not measure": (healthy(failure="rank 1 (b)"), BROKEN, "", "measuring failed: rank 1 (b)"),
    "slow card": (
        with_worker(3, reducers=[reducer(number, path=replace(PATH, link_mbit=100)) for number in range(2)]),
        SLOW,
        "rank 3 (host-3)",
        "eth0 has negotiated 100 Mbit/s, but another host's card 1000",
    ),
    "clock": (with_worker(1, clock_s=3.0), NOTE, "rank 1 (host-1)", "+3.00 s"),
    "small packets": (reaches(1, path=replace(PATH, mss=536)), SLOW, "rank 1 (host-1) to ", "only 536 bytes"),
    "long path": (
        reaches(1, path=replace(PATH, answer_s=0.2, answer_p99_s=0.2)),
        SLOW,
        "rank 1 (host-1) to ",
        "an empty sum takes 200.0 ms",
    ),
    "some late": (reaches(1, path=replace(PATH, answer_p99_s=0.4)), SLOW, "", "one of 50 takes 400 ms"),
    "slow worker": (
        slower(FOUR, "alone", 0.4, rank=2),
        SLOW,
        "the link of rank 2 (host-2)",
        "it carries 320 Mbit/s, while other workers' links carry 800 Mbit/s",
    ),
    "one of two slow": (slower(healthy(2, 2), "alone", 0.5, rank=0), SLOW, "the link of rank 0 (host-0)", ""),
    "slow reducer": (
        slower(slower(FOUR, "alone", 0.4, reducer=LAST), "incast", 0.4, reducer=LAST),
        SLOW,
        f"the link of reducer {LAST}",
        "",
    ),
    "slow pair": (
        slower(FOUR, "alone", 0.4, rank=1, reducer=LAST),
        SLOW,
        f"the path from rank 1 (host-1) to {LAST}",
        "",
    ),
    "less than expected": (
        healthy(1, 1, expected_mbit=2000.0),
        SLOW,
        "the link of host-0",
        "it carries 800 Mbit/s, but --link says 2 Gbit/s",
    ),
    "loss of a rank": (
        lossy(lambda rate: 0.07 if rate.rank == 1 else 0.001),
        SLOW,
        "rank 1 (host-1) to all reducers",
        f"7.0{LOST}",
    ),
    "loss of a rank alone": (
        lossy(lambda rate: 0.04 if rate.rank == 1 else 0.0, "alone"),
        SLOW,
        "rank 1 (host-1) to reducer 10.0.1.0:50051",
        f"4.0{LOST}",
    ),
    "loss to a reducer": (
        lossy(lambda rate: 0.05 if rate.reducer == "10.0.1.1:50051" else 0.0),
        SLOW,
        "all workers at once to reducer 10.0.1.1:50051",
        f"5.0{LOST}",
    ),
    # A host that loses everywhere is named, and the reducers are not.
    "much loss of a rank": (
        lossy(lambda rate: 0.2 if rate.rank == 1 else 0.0),
        SLOW,
        "rank 1 (host-1) to all reducers",
        f"20.0{LOST}",
    ),
    "incast": (
        slower(healthy(), "incast", 0.3, reducer="10.0.1.1:50051"),
        SLOW,
        "reducer 10.0.1.1:50051",
        "receives 240 Mbit/s from all workers together, but 800 Mbit/s from one",
    ),
    "all to all": (slower(healthy(2, 2), "together", 0.4), SLOW, "all to all", ""),
    "quota": (
        with_worker(1, host={"cores": 2.0, "throttled": 0.3}),
        SLOW,
        "rank 1 (host-1)",
        "its cgroup allows 2 of 8 cores (cpu.max), and stopped processes in 30% of",
    ),
    "half a core": (with_worker(1, host={"cores": 0.5}), SLOW, "rank 1 (host-1)", "allows 0.5 of 8 cores"),
    "busy": (with_worker(1, host={"busy_cores": 7.4}), SLOW, "rank 1 (host-1)", "7 of 8 cores busy"),
    "slow python": (with_worker(1, host={"is_optimized": False}), NOTE, "rank 1", "without optimisations"),
    "descriptors": (with_worker(1, host={"descriptors": 60}), BROKEN, "rank 1", "may have 60 descriptors"),
    "buffers": (
        with_worker(
            1,
            reducers=[reducer(number, path=replace(PATH, rtt_s=0.04)) for number in range(2)],
            host={"receive_buffer": 4 << 20},
        ),
        SLOW,
        "rank 1 (host-1)",
        "net.ipv4.tcp_rmem allows 4096 KiB, but this path needs 7812",
    ),
    # Identical findings in several places are reported once.
    "alike": (
        replace(healthy(6, 2), workers=[worker(rank, host={"is_optimized": False}) for rank in range(6)]),
        NOTE,
        "rank 0 (host-0), rank 1 (host-1), rank 2 (host-2), rank 3 (host-3) and 2 more",
        "",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_alone_is_found_and_named(name):
    facts, level, where, what = FAULTS[name]
    found = only(facts, level)
    assert found.where.startswith(where)
    assert what in found.what


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
    found = only(reaches(1, trouble=trouble), Level.BROKEN)
    assert (found.where, found.what) == ("10.0.1.1:50051 from rank 1 (host-1)", trouble)
    assert fix in found.fix


def test_a_data_port_that_is_blocked():
    found = only(reaches(0, plane="grpc", why_not_tcp="data port 7: no answer within 3 s"), Level.SLOW)
    assert "data port 7" in found.what
    assert "open this port" in found.fix


# ---- faults that a lack of cores explains ----


def test_a_slow_link_of_a_busy_host_is_not_a_separate_finding():
    slow_answers = [reducer(number, path=replace(PATH, answer_p99_s=0.4)) for number in range(4)]
    facts = slower(slower(FOUR, "alone", 0.4, rank=2), "together", 0.1)
    [found] = judge(with_worker(2, facts, count=4, host=BUSY, reducers=slow_answers))
    assert found.sentence == "rank 2 (host-2): other programs keep 8 of 8 cores busy"
    answers, link, all_to_all = found.explains
    assert answers.endswith("an empty sum takes 0.3 ms, and one of 50 takes 400 ms")
    assert link.startswith("the link of rank 2 (host-2): it carries 320 Mbit/s, while")
    assert all_to_all.startswith("all to all: each worker gets")
    # Its cost is that of the faults it explains.
    assert found.cost == pytest.approx(0.75)


def test_links_of_hosts_that_are_all_busy_are_compared():
    facts = replace(FOUR, workers=[worker(rank, 4, host=BUSY) for rank in range(4)])
    busy, slow = judge(slower(facts, "alone", 0.4, rank=2))
    assert busy.where == "rank 0 (host-0), rank 1 (host-1), rank 2 (host-2), rank 3 (host-3)"
    assert busy.explains == ()
    assert first([busy, slow]) == slow
    assert (slow.where, slow.cost) == ("the link of rank 2 (host-2)", pytest.approx(0.6))
    # A link rate that the user states is not compared with the rate of another busy host either.
    facts = replace(healthy(1, 1, expected_mbit=2000.0), workers=[worker(0, 1, host=BUSY)])
    assert first(judge(facts)).what == "it carries 800 Mbit/s, but --link says 2 Gbit/s"


def test_within_one_host_there_is_no_cable():
    facts = slower(healthy(2, 2), "alone", 0.4, rank=1)
    near = [reducer(number, is_near=True) for number in range(2)]
    facts = replace(facts, workers=[worker(rank, reducers=near) for rank in range(2)])
    assert only(facts, Level.SLOW).fix == "look for a lack of cores: this is within one host"
    facts = replace(facts, workers=[worker(rank, reducers=near, host=BUSY) for rank in range(2)])
    [busy] = judge(facts)
    assert busy.explains == (
        "the link of rank 1 (host-1): it carries 320 Mbit/s, while other workers' links carry 800 Mbit/s",
    )


def test_broken_parts_come_before_slow_ones_and_then_the_costliest():
    facts = with_worker(3, slower(FOUR, "alone", 0.3, rank=2), count=4, host={"busy_cores": 8.0})
    found = judge(facts)
    assert [finding.check for finding in found if finding.level is Level.SLOW] == ["cpu", "bandwidth"]
    assert first(found).where == "the link of rank 2 (host-2)"
    broken = reducer(0, trouble="nothing listens on port 50051")
    found = judge(with_worker(1, facts, count=4, reducers=[broken]))
    assert first(found).check == "reach"
    assert verdict(found) is Level.BROKEN
    assert only(with_worker(1, host={"cores": 0.5}), Level.SLOW).cost == 0.5
