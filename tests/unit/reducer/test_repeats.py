"""What repeats is said once in a while, and then how often it came again."""

import pytest

from reducer.repeats import KEYS_MAX, REPEAT_S, Repeats


@pytest.fixture
def summed():
    return []


@pytest.fixture
def repeats(summed):
    return Repeats(lambda key, times: summed.append((key, times)))


def test_the_same_is_said_once_in_a_while(repeats, summed):
    assert [repeats.admits("a", now) for now in (0.0, 1.0, 2.0, REPEAT_S - 0.1)] == [
        True,
        False,
        False,
        False,
    ]
    assert repeats.admits("b", 3.0)
    assert summed == []
    assert repeats.admits("a", REPEAT_S)
    assert summed == [("a", 3)]


def test_the_count_comes_although_nothing_follows(repeats, summed):
    for _ in range(3):
        repeats.admits("a", 0.0)
    repeats.expire(REPEAT_S - 0.1)
    assert summed == []
    repeats.expire(REPEAT_S)
    assert summed == [("a", 2)]
    repeats.expire(3 * REPEAT_S)
    assert summed == [("a", 2)]


def test_what_came_once_has_no_count(repeats, summed):
    repeats.admits("a", 0.0)
    repeats.close()
    assert summed == []


def test_memory_is_bounded(repeats, summed):
    repeats.admits("first", 0.0)
    repeats.admits("first", 0.0)
    for number in range(KEYS_MAX):
        assert repeats.admits(str(number), 1.0)
    assert summed == [("first", 1)]
    assert len(repeats._said) == KEYS_MAX
