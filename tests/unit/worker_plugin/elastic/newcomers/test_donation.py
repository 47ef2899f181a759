"""Transfer of a training state to newcomers, while its donor keeps training."""

import copy
import gc
import re
import threading
import time
import weakref

import pytest
import torch
from reduction.errors import ConfigError, LocalProtocolError, WorkerLost
from support.fakes.fake_sums import FakeSums
from torch import nn

from worker_plugin.elastic.membership.entries import Offer
from worker_plugin.elastic.membership.lineage import Worker
from worker_plugin.elastic.newcomers import donation as module
from worker_plugin.elastic.newcomers.donation import Donation, follow
from worker_plugin.elastic.newcomers.training import Training

OFFER = Offer("id", (Worker(0, "a"), Worker(1, "b")))
LAST = {"seq": 7, "extra": {"step": 5}}


class FakeClient:
    """The donor's communicator with one newcomer."""

    def __init__(self, sums: FakeSums) -> None:
        self._sums, self._submit = sums, sums.member()
        self.is_closed = False

    def submit(self, request):
        return self._submit(request.tensor)

    def abandon(self, error):
        self._sums.break_off(error)

    def begin_close(self):
        self.is_closed = True


class Newcomer:
    """Follows a donation on a thread."""

    def __init__(
        self, sums: FakeSums, wait_for: threading.Event | None = None, training: Training | None = None
    ) -> None:
        self.training = training or make(1)
        self.last = self.error = None
        self._submit, self._wait_for = sums.member(), wait_for
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        if self._wait_for is not None:
            self._wait_for.wait(30)
        try:
            self.last = follow(self.training, self._submit)
        except (ConfigError, WorkerLost) as error:
            self.error = error

    def end(self):
        self._thread.join(30)
        assert not self._thread.is_alive()


def make(seed: int) -> Training:
    torch.manual_seed(seed)
    net = nn.Linear(6, 3)
    return Training(net, torch.optim.Adam(net.parameters(), 0.01), {})


def train(training: Training, steps: int, **options: object) -> None:
    for _ in range(steps):
        training.optimizer.zero_grad()
        training.model(torch.randn(4, 6)).pow(2).mean().backward()
        training.optimizer.step(**options)


def wait_until(ready) -> None:
    deadline = time.monotonic() + 30
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def donate(training: Training, sums: FakeSums) -> tuple[Donation, FakeClient]:
    client = FakeClient(sums)
    return Donation(OFFER, training, lambda donation: client), client


def assert_equal(ours: Training, theirs: Training) -> None:
    theirs.take_rest(ours.rest())
    assert theirs.digest() == ours.digest()
    for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_newcomer_gets_the_donors_bits_while_the_donor_trains_on(steps_before):
    sums, ours = FakeSums(2), make(0)
    train(ours, steps_before)
    donation, client = donate(ours, sums)
    newcomer = Newcomer(sums)
    train(ours, 20)
    wait_until(lambda: donation.is_ready)
    train(ours, 1)
    donation.finish(LAST)
    newcomer.end()
    assert donation.has_ended
    assert donation.error is None
    assert client.is_closed
    assert {name: newcomer.last[name] for name in LAST} == LAST
    assert_equal(ours, newcomer.training)
    left = weakref.ref(donation)
    donation = None
    gc.collect()
    assert left() is None, "the optimizer still has its hook"


def test_steps_are_kept_as_they_were_until_they_are_sent():
    sums, ours = FakeSums(2), make(0)
    start = threading.Event()
    donation, _ = donate(ours, sums)
    newcomer = Newcomer(sums, start)
    train(ours, 5)
    assert not donation.is_ready
    start.set()
    donation.finish(LAST)
    newcomer.end()
    assert_equal(ours, newcomer.training)


def test_a_newcomer_that_is_far_behind_is_taken_in_after_all(monkeypatch):
    monkeypatch.setattr(module, "BACKLOG_BYTES_MIN", 0)
    sums, ours = FakeSums(2), make(0)
    train(ours, 1)
    donation, _ = donate(ours, sums)
    newcomer = Newcomer(sums)
    wait_until(lambda: donation.is_ready)
    # Nothing is received from here on.
    with donation._changed:
        for _ in range(4):
            ours.optimizer.zero_grad()
            ours.model(torch.randn(4, 6)).sum().backward()
            ours.optimizer.step()
        assert len(donation._parts) > 1
        assert donation.is_ready
    donation.finish(LAST)
    newcomer.end()
    assert_equal(ours, newcomer.training)


@pytest.mark.parametrize("why", ["weights", "closure"])
def test_state_that_does_not_follow_from_steps_is_sent_whole(why, caplog):
    sums, ours = FakeSums(2), make(0)
    donation, _ = donate(ours, sums)
    newcomer = Newcomer(sums)
    if why == "closure":
        train(ours, 2, closure=lambda: 0.0)
    else:
        train(ours, 2)
        with torch.no_grad():
            ours.model.weight.clamp_(-0.1, 0.1)
    donation.finish(LAST)
    newcomer.end()
    assert donation.error is None
    assert_equal(ours, newcomer.training)
    assert "get the whole state again" in caplog.text


def test_an_optimizer_that_changes_what_it_loads_is_an_error_of_the_newcomer():
    class Rounds(torch.optim.SGD):
        def load_state_dict(self, state):
            super().load_state_dict(state)
            for one in self.state.values():
                one["momentum_buffer"] += 1

    sums = FakeSums(2)
    ours, theirs = make(0), make(1)
    ours = Training(ours.model, Rounds(ours.model.parameters(), 0.1, momentum=0.9), {})
    train(ours, 1)
    donation, _ = donate(ours, sums)
    newcomer = Newcomer(
        sums, training=Training(theirs.model, Rounds(theirs.model.parameters(), 0.1, momentum=0.9), {})
    )
    donation.finish(LAST)
    newcomer.end()
    assert isinstance(newcomer.error, ConfigError)
    assert "load_state_dict must keep all bits" in str(newcomer.error)


def test_steps_that_need_more_memory_than_the_state_are_given_up(monkeypatch, caplog):
    monkeypatch.setattr(module, "BACKLOG_BYTES_MIN", 0)
    sums, ours = FakeSums(2), make(0)
    start = threading.Event()
    donation, _ = donate(ours, sums)
    size = donation._unsent_bytes
    newcomer = Newcomer(sums, start)
    for _ in range(20):
        train(ours, 1)
        assert donation._unsent_bytes <= 2 * size
    assert not donation._has_steps
    start.set()
    wait_until(lambda: donation.is_ready)
    donation.finish(LAST)
    newcomer.end()
    assert_equal(ours, newcomer.training)
    assert "faster than the newcomers' links" in caplog.text


def test_a_lost_newcomer_ends_only_the_donation():
    """A donation has its own thread, and the optimizer may call its hooks just then, so they stay until removed."""
    sums, ours = FakeSums(2), make(0)
    donation, client = donate(ours, sums)
    train(ours, 3)
    sums.break_off(WorkerLost("it has gone"))
    wait_until(lambda: donation.has_ended)
    assert isinstance(donation.error, WorkerLost)
    assert client.is_closed
    assert not donation.is_ready
    donation.finish(LAST)  # returns
    train(ours, 1)
    donation.stop_recording()
    donation.stop_recording()
    train(ours, 1)


def test_a_donation_that_stalls_is_noticed(monkeypatch):
    ours = make(0)
    donation, _ = donate(ours, FakeSums(2))
    assert donation.is_of(Training(ours.model, ours.optimizer, {"step": 3}))
    assert not donation.is_of(Training(ours.model, None, {}))
    assert not donation.is_stalled
    monkeypatch.setattr(module, "STALL_S", 0.0)
    wait_until(lambda: donation.is_stalled)
    donation.abandon(WorkerLost("too slow"))
    wait_until(lambda: donation.has_ended)
    assert str(donation.error) == "too slow"


def test_a_donation_that_waits_for_steps_is_not_stalled(monkeypatch):
    sums, ours = FakeSums(2), make(0)
    donation, _ = donate(ours, sums)
    newcomer = Newcomer(sums)
    wait_until(lambda: donation.is_ready and not donation._parts)
    monkeypatch.setattr(module, "STALL_S", 0.0)
    assert not donation.is_stalled
    donation.abandon(WorkerLost("the job ends"))
    wait_until(lambda: donation.has_ended)
    sums.break_off(WorkerLost("the job ends"))
    newcomer.end()
    assert newcomer.error is not None


@pytest.mark.parametrize(
    ("error", "kind"),
    [(WorkerLost("rank 1 has gone"), WorkerLost), (KeyError("a mistake of ours"), LocalProtocolError)],
)
def test_newcomers_that_do_not_connect_are_an_error_and_not_a_hang(error, kind):
    def connect(donation):
        raise error

    donation = Donation(OFFER, make(0), connect)
    wait_until(lambda: donation.has_ended)
    assert isinstance(donation.error, kind)


@pytest.mark.parametrize(("is_read", "message"), [(True, "builtin_function"), (False, r"KeyError\('mine'\)")])
def test_a_state_that_cannot_be_read_or_sent_is_an_error_of_the_donor(is_read, message):
    ours = make(0)
    if is_read:
        ours.optimizer.param_groups[0]["call"] = print
    else:
        ours.model.register_state_dict_pre_hook(fail_if(lambda: True))
    with pytest.raises(ConfigError, match=message):
        Donation(OFFER, ours, lambda donation: FakeClient(FakeSums(2)))


def fail_if(ready):
    def hook(*_):
        if ready():
            raise KeyError("mine")

    return hook


@pytest.mark.parametrize("when", ["step", "rest"])
def test_no_error_of_a_donation_reaches_the_donors_training(when):
    sums, ours, is_bad = FakeSums(2), make(0), []
    ours.model.register_state_dict_pre_hook(fail_if(lambda: bool(is_bad)))
    donation, client = donate(ours, sums)
    newcomer = Newcomer(sums)
    train(ours, 2)
    if when == "step":
        ours.optimizer.param_groups[0]["note"] = object()
    train(ours, 1)
    is_bad.append(True)
    donation.finish(LAST)
    newcomer.end()
    assert donation.has_ended
    assert isinstance(donation.error, ConfigError)
    assert ("the state has a object" if when == "step" else "KeyError('mine')") in str(donation.error)
    assert newcomer.last is None
    assert client.is_closed


def other_groups(model):
    return torch.optim.Adam([{"params": [one]} for one in model.parameters()], 0.01)


def swapped(model):
    return torch.optim.Adam(list(model.parameters())[::-1], 0.01)


def more_settings(model):
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    optimizer.param_groups[0]["note"] = 1
    return optimizer


@pytest.mark.parametrize(
    ("make_optimizer", "message"),
    [
        (other_groups, r"groups of \[1, 1\] parameters, and that of the first worker \[2\] parameters"),
        (swapped, "in group 0, at one place, bias, and that of the first worker weight"),
        (more_settings, r"in group 0 the settings \['note'\]"),
        (
            lambda model: torch.optim.SGD(model.parameters(), 0.01),
            "is SGD, and that of the first worker Adam",
        ),
        (lambda model: None, "is none, and that of the first worker Adam"),
    ],
)
def test_another_optimizer_is_an_error_of_the_newcomer(make_optimizer, message):
    sums, ours = FakeSums(2), make(0)
    train(ours, 1)
    donation, _ = donate(ours, sums)
    theirs = make(1).model
    newcomer = Newcomer(sums, training=Training(theirs, make_optimizer(theirs), {}))
    newcomer.end()
    assert isinstance(newcomer.error, ConfigError)
    assert re.search(message, str(newcomer.error))
    donation.abandon(WorkerLost("the newcomer has gone"))


def test_the_trees_are_unaffected_by_further_training():
    ours = make(0)
    sums = FakeSums(2)
    before = copy.deepcopy(ours.state())
    donation, _ = donate(ours, sums)
    train(ours, 3)
    theirs = make(1)
    submit = sums.member()
    theirs.take(module.trees.receive(submit)[0])
    for a, b in zip(before["model"].values(), theirs.state()["model"].values(), strict=True):
        assert torch.equal(a, b)
    donation.abandon(WorkerLost("enough"))
