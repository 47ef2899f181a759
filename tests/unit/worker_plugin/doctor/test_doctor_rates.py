"""Repeated measurements: which pairs of ranks and reducers are chosen, and which of their rates counts."""

from worker_plugin.doctor.rates import AGAIN_MOST, better, doubtful


def rounds_of(rates):
    """Return the rounds for equally many ranks and reducers; `rates` are by rank and reducer, 100 by default."""
    count = 4
    return [
        [
            {
                "rank": rank,
                "reducer": f"r{(rank + number) % count}",
                "bytes_per_s": rates.get((rank, (rank + number) % count), 100.0),
            }
            for rank in range(count)
        ]
        for number in range(count)
    ]


def test_nothing_is_measured_again_where_all_pairs_are_alike():
    assert doubtful(rounds_of({})) == []
    assert doubtful(rounds_of({(1, 1): 90.0})) == []
    assert doubtful([[], []]) == []


def test_a_slow_link_is_not_in_doubt():
    assert doubtful(rounds_of({(1, reducer): 50.0 for reducer in range(4)})) == []
    assert doubtful(rounds_of({(rank, 2): 50.0 for rank in range(4)})) == []


def test_a_slow_pair_is_measured_again():
    assert doubtful(rounds_of({(1, 3): 70.0})) == [2]


def test_only_a_few_of_the_worst_rounds_are_measured_again():
    found = doubtful(rounds_of({(0, 0): 70.0, (0, 1): 30.0, (1, 3): 50.0}))
    assert found == [1, 2]
    assert len(found) == AGAIN_MOST


def test_a_rate_of_zero_is_not_in_doubt():
    assert doubtful([[{"rank": 0, "reducer": "r0", "bytes_per_s": 0.0}]]) == []


def test_the_faster_rate_of_a_pair_counts():
    first, second = rounds_of({(1, 3): 70.0})[2], rounds_of({(0, 2): 60.0})[2]
    rows = better(first, second)
    assert [row["bytes_per_s"] for row in rows] == [100.0] * 4
    assert better([], first) == first
