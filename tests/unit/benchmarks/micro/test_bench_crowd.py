"""Many ranks and many reducers: the frames sent to rank 0, and its handling of more reducers than the limit."""

import pytest
from reduction import limits

from benchmarks.micro import crowd
from worker_plugin.core import leader
from worker_plugin.core.membership import judge


@pytest.mark.parametrize(("ranks", "reducers"), [(1, 1), (48, 3), (200, 2)])
def test_every_reducer_notifies_rank_0_of_every_rank_once(ranks, reducers):
    tally = crowd.Crowd(ranks, reducers).run()
    assert (tally.epochs, tally.members) == (1, reducers)
    # In addition to the news: Welcome, the first report, Start.
    assert tally.rank_0_frames <= ranks + 2
    assert tally.rank_0_bytes <= 200 + 70 * ranks


def test_surplus_reducers_are_left_out_of_the_configuration(monkeypatch):
    for module in (limits, leader, judge):  # the product's limit takes 10 s
        monkeypatch.setattr(module, "MEMBERS_MAX", 24)
    tally = crowd.Crowd(2, 40).run()
    assert (tally.epochs, tally.members) == (1, 24)


def test_the_command_reports_the_cost(capsys):
    crowd.main(["--ranks", "3", "--reducers", "2"])
    assert "3 ranks, 2 reducers: " in capsys.readouterr().out
