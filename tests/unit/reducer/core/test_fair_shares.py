"""Shares: whatever one job or token takes, something is left for the next one."""

import pytest

from reducer.core.fair_shares import Account, Shares, account_of


def test_rails_count_toward_their_job():
    assert account_of("job@3", "line") == Account("job", "line")
    assert account_of("job") == Account("job")


def test_a_job_gets_three_quarters_of_what_others_leave():
    shares = Shares(1024)
    left = []
    for number in range(6):
        account = Account(f"job {number}")
        left.append(shares.free(account))
        shares.take(account, shares.free(account))
        assert shares.free(account) == 0
    assert left == [768, 192, 48, 12, 3, 0]
    shares.take(Account("job 0"), -768)
    assert shares.taken == 255
    assert shares.free(Account("job 0")) == 576  # of 769


def test_a_job_gets_no_more_by_taking_piece_by_piece():
    shares = Shares(1000)
    for _ in range(5):
        shares.take(Account("job"), min(200, shares.free(Account("job"))))
    assert shares.taken == 750


def test_the_jobs_of_a_token_share_an_account():
    shares = Shares(1024)
    for number in range(20):
        account = Account(f"job {number}", "a")
        shares.take(account, shares.free(account))
    assert shares.taken == 768
    assert shares.free(Account("one more", "a")) == 0
    assert shares.free(Account("of another", "b")) == 192


@pytest.mark.parametrize("limit", [0, 100])
def test_nothing_is_free_if_a_lowered_limit_is_exceeded(limit):
    shares = Shares(1000)
    shares.take(Account("job"), 500)
    shares.limit = limit
    assert shares.free(Account("job")) == 0
    assert shares.free(Account("other")) == 0
