"""Admission by the first worker: whom it accepts, and when."""

import pytest
import torch
from reduction.errors import ConfigError, WorkerLost

from worker_plugin.elastic.membership.lineage import Generation, Worker
from worker_plugin.elastic.newcomers.admission import Admission
from worker_plugin.elastic.newcomers.training import Training

PRESENT = Generation(3, "x", (Worker(0, "a0"), Worker(2, "a2")))
TRAINING = Training(torch.nn.Linear(1, 1), None, {})
LAST = {"seq": 1}


def new(rank: int, life: str = "b") -> Worker:
    return Worker(rank, f"{life}{rank}")


class FakeDonation:
    def __init__(self, offer, training):
        self.offer = offer
        self.is_ready = self.is_stalled = self.has_ended = False
        self.error = self.abandoned = self.last = None
        self.fails_with = None
        self.training, self.is_recording = training, True

    def is_of(self, training):
        return training is self.training

    def stop_recording(self):
        self.is_recording = False

    def abandon(self, error):
        self.abandoned = error

    def finish(self, last):
        self.last, self.error, self.has_ended = last, self.fails_with, True


class Scene:
    def __init__(self):
        self.donations = []
        self.donating_fails = False
        self.refused = []
        self.admission = Admission(self._donate, lambda *those: self.refused.append(those))

    def _donate(self, offer, training):
        if self.donating_fails:
            raise ConfigError("a function")
        self.donations.append(FakeDonation(offer, training))
        return self.donations[-1]

    def tend(self, *newcomers, present=PRESENT, training=TRAINING):
        return self.admission.tend(present, newcomers, training)

    @property
    def given(self):
        """Return the newcomers that each donation went to."""
        return [list(donation.offer.newcomers) for donation in self.donations]


@pytest.fixture
def scene():
    return Scene()


def test_newcomers_are_taken_in_when_they_have_the_training(scene):
    assert scene.tend() is None
    assert scene.given == []
    assert scene.tend(new(1), new(5)) is None
    assert scene.given == [[new(1), new(5)]]
    offer = scene.donations[0].offer
    assert offer.workers[0] == PRESENT.workers[0]
    assert scene.tend(new(1), new(4), new(5)) is None  # one that arrives meanwhile waits
    scene.donations[0].is_ready = True
    workers = (PRESENT.workers[0], new(1), PRESENT.workers[1], new(5))
    assert scene.tend(new(1), new(4), new(5)) == Generation(4, offer.id, workers, (new(1), new(5)))
    scene.admission.finish(LAST)
    assert scene.donations[0].last == LAST
    assert scene.tend(new(4)) is None
    assert scene.given[1:] == [[new(4)]]


def test_the_present_workers_remain_a_majority(scene):
    assert scene.tend(*map(new, range(4, 10))) is None
    assert scene.given == [[new(4), new(5)]], "with the lowest rank, half are a majority"


BACK = Generation(4, "y", (*PRESENT.workers[:1], Worker(1, "a1"), *PRESENT.workers[1:]))


@pytest.mark.parametrize(
    ("newcomers", "change", "why"),
    [
        (
            (4, 5),
            {"present": Generation(4, "y", PRESENT.workers[1:])},
            "more newcomers than remaining workers",
        ),
        ((1,), {"present": BACK}, "rank is taken"),
        ((1,), {"training": Training(TRAINING.model, None, {})}, "different model or optimizer"),
    ],
)
def test_a_change_in_the_meantime_abandons_the_donation(scene, newcomers, change, why):
    newcomers = [new(rank) for rank in newcomers]
    scene.tend(*newcomers)
    scene.donations[0].is_ready = True
    assert scene.tend(*newcomers, **change) is None
    assert why in str(scene.donations[0].abandoned)


def test_lower_ranks_must_be_fewer_and_a_single_one_may_always_come():
    for present, expected in (((5, 6), [new(1)]), ((5, 6, 7), [new(1), new(2)]), ((5,), [new(1)])):
        scene = Scene()
        generation = Generation(3, "x", tuple(Worker(rank, "a") for rank in present))
        scene.tend(*map(new, range(1, 5)), present=generation)
        assert scene.given == [expected]


def test_a_present_rank_is_not_taken_in_and_of_two_duplicates_only_one_is(scene):
    assert scene.tend(new(2)) is None
    assert scene.given == []
    assert scene.tend(new(1, "c"), new(1, "b")) is None
    assert scene.given == [[new(1, "b")]]


def test_newcomers_that_failed_together_are_tried_one_by_one(scene):
    scene.tend(new(1), new(4))
    scene.donations[0].has_ended, scene.donations[0].error = True, WorkerLost("gone")
    assert scene.refused == []
    for turn, expected in enumerate([new(1), new(4), new(1)], start=1):
        assert scene.tend(new(1), new(4)) is None
        assert scene.given[turn] == [expected]
        scene.donations[turn].has_ended, scene.donations[turn].error = True, WorkerLost("gone")
    # A newcomer that has not failed takes precedence.
    scene.tend(new(1), new(4), new(6))
    assert scene.given[-1] == [new(6)]


def test_newcomers_that_receive_nothing_are_given_up(scene):
    scene.tend(new(1))
    scene.donations[0].is_stalled = True
    assert scene.tend(new(1)) is None
    assert isinstance(scene.donations[0].abandoned, WorkerLost)
    assert len(scene.given) == 1
    scene.donations[0].has_ended, scene.donations[0].error = True, scene.donations[0].abandoned
    scene.tend(new(1))
    assert len(scene.given) == 2


@pytest.mark.parametrize("when", ["begin", "on the way"])
def test_our_own_error_is_logged_and_not_repeated_at_each_step(scene, when, monkeypatch, caplog):
    scene.donating_fails = when == "begin"
    assert scene.tend(new(1)) is None
    if when == "on the way":
        scene.donations[0].has_ended, scene.donations[0].error = True, ConfigError("a function")
        assert scene.tend(new(1)) is None
        assert not scene.donations[0].is_recording
    assert "ranks [1] did not get the training: a function" in caplog.text
    ((newcomers, error),) = scene.refused
    assert list(newcomers) == [new(1)]
    assert str(error) == "a function"
    caplog.clear()
    before = len(scene.donations)
    scene.donating_fails = False
    assert scene.tend(new(1)) is None
    assert len(scene.donations) == before
    assert not caplog.text
    scene.admission._again_at = 0.0
    scene.tend(new(1))
    assert len(scene.donations) == before + 1


def test_a_loss_at_the_very_end_is_retried(scene):
    scene.tend(new(1), new(4))
    scene.donations[0].is_ready = True
    assert scene.tend(new(1), new(4)) is not None
    scene.donations[0].fails_with = WorkerLost("gone")
    scene.admission.finish(LAST)
    scene.tend(new(1), new(4))
    assert scene.given[1:] == [[new(1)]]
