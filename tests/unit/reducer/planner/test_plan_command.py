"""`reducer plan`: its advice, and its answers to invalid input."""

import json

import pytest
from click.testing import CliRunner

from reducer.commands.main import main

EIGHT = ("--workers", "8", "--link", "10G", "--parameters", "340M", "--compute", "0.41")


def answer(*options):
    """Return the command's output as one line of words."""
    result = CliRunner().invoke(main, ["plan", *options], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    return " ".join(result.output.split())


def document(*options):
    result = CliRunner().invoke(main, ["plan", *options, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_without_prices_it_takes_the_fewest_of_the_fastest():
    assert "take 8 reducers: steps are 1.67 times as fast" in answer(*EIGHT)
    plans = document(*EIGHT, "--reducers", "8,16,4,8")["plans"]
    assert [plan["reducers"] for plan in plans] == [None, 4, 8, 16]
    assert document(*EIGHT, "--reducers", "4,8,16")["best"]["reducers"] == 8


def test_with_prices_it_takes_the_cheapest():
    prices = ("--worker-price", "1.408", "--reducer-price", "0.816")
    assert 'take 6 reducers, with colocated="auto"' in answer(*EIGHT, *prices)
    dear = document(*EIGHT, "--worker-price", "1", "--reducer-price", "2")
    assert dear["best"]["reducers"] is None
    assert "8 reducers make steps 1.67 times as fast, but cost more than that" in dear["reason"]
    # The limit in the table is the break-even price. Just below it reducers are worth it.
    limit = next(plan["price_limit"] for plan in dear["plans"] if plan["reducers"] == 8)
    costs = [
        document(*EIGHT, "--worker-price", "1", "--reducer-price", str(limit * factor), "--reducers", "8")[
            "plans"
        ]
        for factor in (0.99, 1.01)
    ]
    assert costs[0][1]["cost"] < costs[0][0]["cost"]
    assert costs[1][1]["cost"] > costs[1][0]["cost"]


def test_the_cost_is_for_the_requested_steps():
    prices = ("--worker-price", "1.408", "--reducer-price", "0.816")
    thousand, epoch = document(*EIGHT, *prices), document(*EIGHT, *prices, "--steps", "5000")
    assert epoch["best"]["cost"] == pytest.approx(5 * thousand["best"]["cost"])
    assert epoch["best"]["reducers"] == thousand["best"]["reducers"] == 6
    text = answer(*EIGHT, *prices, "--steps", "5000")
    assert "5000 steps" in text
    assert f"and 5000 of them cost {epoch['best']['cost']:.2f} instead of" in text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            ("--workers", "2", "--link", "10G", "--parameters", "340M"),
            "keep the ring: with two workers it sends every byte once",
        ),
        ((*EIGHT[:6], "--compute", "999"), "keep the ring: steps hardly wait for the network"),
        (("--workers", "8", "--link", "100G", "--parameters", "340M"), "the sums are bound by a rank's CPU"),
    ],
)
def test_it_explains_a_negative_answer(options, reason):
    assert reason in answer(*options)
    assert document(*options)["best"]["reducers"] is None


def test_a_node_counts_once_however_many_ranks_it_has():
    fast = ("--workers", "8", "--link", "100G", "--parameters", "340M", "--ranks", "8")
    assert document(*fast)["best"]["speedup"] > 1.5


def test_doubtful_settings_are_noted():
    assert "note: a round trip of 40 ms is long" in answer(*EIGHT, "--round-trip", "40")
    assert "note: buckets of 1 MiB are small" in answer(*EIGHT, "--bucket", "1M")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--workers", "1"), "1 is not in the range 2<=x<=10000"),
        (("--link", "fast"), "--link is 'fast'; it must be the rate"),
        (("--reducer-link", "0"), "--reducer-link is '0'; it must be the rate"),
        (("--parameters", "many"), "'many' is not a number of parameters: write such as 25600000"),
        (("--parameters", "0"), "'0' is not a number of parameters"),
        (("--reducers", "1,-2"), "'1,-2' is not a list of numbers up to 10000"),
        (("--bucket", "0"), "0 is not a size of a bucket: it must be at least 1 byte"),
        (("--worker-price", "1"), "give both --worker-price and --reducer-price"),
        (("--steps", "5"), "--steps 5 is for what they cost: give --worker-price and --reducer-price too"),
    ],
)
def test_invalid_options_are_an_error(options, error):
    result = CliRunner().invoke(main, ["plan", *EIGHT, *options])
    assert result.exit_code == 2
    assert error in " ".join(result.output.split())
