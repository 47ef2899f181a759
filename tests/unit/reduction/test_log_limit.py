"""Messages that peers can cause are logged a few times, and then as a count of repetitions."""

import logging

import pytest
from reduction.log_limit import BURST, KEYS_MAX, REPEAT_S, Repeats

LOG = logging.getLogger("some.module")


class Scene:
    def __init__(self, caplog):
        self.now = 100.0
        self.repeats = Repeats(lambda: self.now)
        self.caplog = caplog

    def say(self, kind="refused", peer="10.0.0.1", text="no", **more):
        self.repeats.log(LOG, logging.WARNING, kind, peer, "%s", text, **more)

    def lines(self):
        """Return and clear the logged lines."""
        lines = [record.getMessage() for record in self.caplog.records]
        self.caplog.clear()
        return lines


@pytest.fixture
def scene(caplog):
    return Scene(caplog)


def test_a_few_lines_are_written_at_once_and_the_rest_is_counted(scene):
    for number in range(BURST + 5):
        scene.say(text=str(number))
    assert scene.lines() == [str(number) for number in range(BURST)]
    scene.now += REPEAT_S
    scene.repeats.expire()
    assert scene.lines() == ["left out kind=refused peer=10.0.0.1 times=5"]
    scene.say(text="the count has taken this line's place")
    assert scene.lines() == []


def test_an_endless_flood_is_one_line_per_interval(scene):
    for _ in range(10 * int(REPEAT_S)):
        scene.say()
        scene.now += 1.0
    counts = scene.lines()[BURST:]
    assert 8 <= len(counts) <= 10
    assert all(line.startswith("left out kind=refused peer=10.0.0.1 times=") for line in counts)


def test_each_kind_peer_level_and_logger_is_limited_separately(scene):
    for _ in range(10):
        scene.say(burst=1)
        scene.say("joined", burst=1)
        scene.say(peer="10.0.0.2", burst=1)
        scene.repeats.log(LOG, logging.ERROR, "refused", "10.0.0.1", "no", burst=1)
        scene.repeats.log(logging.getLogger("other"), logging.WARNING, "refused", "10.0.0.1", "no", burst=1)
    assert len(scene.lines()) == 5


def test_after_a_while_a_full_burst_is_allowed_again(scene):
    for _ in range(3):
        for number in range(BURST):
            scene.say(text=str(number))
        scene.now += BURST * REPEAT_S
    assert scene.lines() == [str(number) for number in range(BURST)] * 3


def test_a_line_keeps_its_level_logger_and_traceback(scene):
    error = ValueError("a bug")
    scene.say(error=error)
    (record,) = scene.caplog.records
    assert (record.name, record.levelno, record.exc_info[1]) == (LOG.name, logging.WARNING, error)


def test_the_counts_are_logged_on_close(scene):
    for _ in range(BURST + 1):
        scene.say(peer="")
    scene.lines()
    scene.repeats.close()
    assert scene.lines() == ["left out kind=refused peer=? times=1"]
    scene.repeats.close()
    assert scene.lines() == []


def test_memory_is_bounded_and_excess_peers_share_their_lines(scene):
    for number in range(KEYS_MAX + 100):
        scene.say(peer=str(number))
    assert len(scene.lines()) == KEYS_MAX + BURST
    scene.repeats.close()
    assert scene.lines() == [f"left out kind=refused peer=others times={100 - BURST}"]


def test_peers_that_fall_silent_are_forgotten(scene):
    for number in range(KEYS_MAX):
        scene.say(peer=str(number))
    scene.now += REPEAT_S
    scene.lines()
    for _ in range(2):
        scene.say(peer="one more")
    scene.repeats.close()
    assert scene.lines() == ["no", "no"], "it has lines of its own"
