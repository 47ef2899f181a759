"""The best split of collectives among machines."""

import math
import random

import pytest
from reduction.shares import Machine, ring_time, split


def machines(n, k, worker=1.0, reducer=1.0):
    """Return n hosts with a rank and a reducer each, and k remote reducers."""
    return [Machine(1, 1, worker)] * n + [Machine(0, 1, reducer)] * k


def time_of(given, shares):
    """Return when the slowest link is done, from the bytes that cross each link."""
    ranks = sum(machine.ranks for machine in given)
    pushed = [machine.ranks * (1 - share) for machine, share in zip(given, shares, strict=True)]
    answered = [(ranks - machine.ranks) * share for machine, share in zip(given, shares, strict=True)]
    sums = zip(given, pushed, answered, strict=True)
    return max((own + others) / machine.rate for machine, own, others in sums)


@pytest.mark.parametrize("n", [2, 4, 8, 64])
@pytest.mark.parametrize("part", [0.0, 0.25, 0.5, 1.0, 2.0])
def test_equal_links_take_the_published_time(n, part):
    k = int(n * part)
    given = machines(n, k)
    best = split(given)
    assert best.seconds_per_byte == pytest.approx(max(1.0, 2 * n * (n - 1) / (n * n + k * n - 2 * k)))
    ring = ring_time(given)
    assert best.seconds_per_byte == pytest.approx(ring) if not k else best.seconds_per_byte <= ring + 1e-12
    if n == 2 and k:
        return
    if k < n:
        d = n * n + k * n - 2 * k
        assert best.shares == pytest.approx([(n - k) / d] * n + [2 * (n - 1) / d] * k)
    else:
        assert best.shares == pytest.approx([0.0] * n + [1 / k] * k)


@pytest.mark.parametrize("given", [[Machine(4, 2)], [Machine(3, 1), Machine(1, 0), Machine(0, 4)]])
def test_a_machine_with_most_of_the_ranks_is_used_alone(given):
    assert split(given).shares == tuple(float(machine is given[0]) for machine in given)


def test_one_machine_needs_no_link():
    assert split([Machine(4, 1)]).seconds_per_byte == 0.0
    assert ring_time([Machine(4, 1)]) == 0.0


def test_a_slow_worker_host_reduces_less_than_the_others():
    given = [Machine(1, 1, 0.5), *[Machine(1, 1)] * 3]
    best = split(given)
    assert best.seconds_per_byte == pytest.approx(2.0)
    assert ring_time(given) == pytest.approx(3.0)
    assert best.shares[0] == pytest.approx(0.0)


def test_a_slow_reducer_gets_less_and_worker_hosts_help_out():
    given = [*machines(8, 7), Machine(0, 1, 0.5)]
    best = split(given)
    assert best.seconds_per_byte == pytest.approx(1.03, abs=0.005)
    assert best.shares[-1] == pytest.approx(best.shares[-2] / 2)


def test_a_machine_with_half_the_ranks_pushes_the_same_whatever_it_reduces():
    best = split([Machine(2, 1), Machine(1, 1), Machine(1, 1)])
    assert best.shares == (1.0, 0.0, 0.0)
    assert best.seconds_per_byte == pytest.approx(2.0)


def test_no_random_change_of_the_shares_is_faster():
    generator = random.Random(7)
    for _ in range(300):
        given = [
            Machine(generator.randint(1, 3), generator.randint(0, 2), generator.uniform(0.2, 3))
            for _ in range(generator.randint(1, 6))
        ]
        given += [Machine(0, 1, generator.uniform(0.2, 3)) for _ in range(generator.randint(0, 5))]
        if not any(machine.reducers for machine in given):
            continue
        best = split(given)
        assert math.isclose(sum(best.shares), 1.0)
        assert all(share >= 0 for share in best.shares)
        assert all(machine.reducers or not share for machine, share in zip(given, best.shares, strict=True))
        assert best.seconds_per_byte == pytest.approx(time_of(given, best.shares))
        able = [index for index, machine in enumerate(given) if machine.reducers]
        for _ in range(
            50
        ):  # the time is a convex function of the shares: no better point nearby means none anywhere
            giver, taker = generator.choice(able), generator.choice(able)
            moved = min(best.shares[giver], generator.choice((1e-3, 1e-2, 0.1)))
            changed = list(best.shares)
            changed[giver] -= moved
            changed[taker] += moved
            assert time_of(given, changed) >= best.seconds_per_byte - 1e-9
