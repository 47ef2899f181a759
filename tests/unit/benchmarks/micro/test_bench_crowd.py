"""Many ranks and many reducers: the frames sent to rank 0, and its handling of more reducers than the limit."""

import pytest
from reduction import limits

from benchmarks.micro import crowd
from worker_plugin.core import leader
from worker_plugin.core.membership import judge


@pytest.mark.parametrize(("ranks", "reducers"), [(1, 1), (48, 3), (200, 2)])
def test_rank_0_hears_of_every_rank_once_from_every_reducer(ranks, reducers):
    tally = crowd.Crowd(ranks, reducers).run()
    assert (tally.epochs, tally.members) == (1, reducers)
    # In addition to the news: Welcome, the first report, Start.
    assert tally.rank_0_frames <= ranks + 2
    assert tally.rank_0_bytes <= 200 + 70 * ranks


def test_more_reducers_than_a_configuration_can_name_are_a_choice(monkeypatch):
    for module in (limits, leader, judge):  # the product's limit takes 10 s
        monkeypatch.setattr(module, "MEMBERS_MAX", 24)
    tally = crowd.Crowd(2, 40).run()
    assert (tally.epochs, tally.members) == (1, 24)


def test_the_command_says_what_it_took(capsys):
    crowd.main(["--ranks", "3", "--reducers", "2"])
    assert "3 ranks, 2 reducers: " in capsys.readouterr().out
