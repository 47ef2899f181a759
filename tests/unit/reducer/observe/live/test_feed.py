"""Events of several processes as one list."""

import math

from reduction.limits import EVENTS_MAX
from support.scenes.looks import process, silent

from reducer.observe.live import feed as module
from reducer.observe.live.feed import ENTRIES_MAX, Feed

A, B = "10.0.0.1:50051", "10.0.0.2:50051"
JOINED = (1, 90.0, "JOINED", "job", "rank 0 of 2 joined from a")
EPOCH = (2, 95.0, "EPOCH", "job", "epoch 1 started with 2 ranks")


def told(feed):
    return [(entry.at_s, entry.kind, entry.text, entry.where) for entry in feed.entries]


def test_each_event_is_taken_once_and_dated_by_the_viewers_clock():
    feed = Feed()
    feed.take([process(events=[JOINED])], 1000.0)
    feed.take([process(events=[JOINED, EPOCH], uptime_seconds=102.0)], 1002.0)
    assert told(feed) == [
        (990.0, "joined", "rank 0 of 2 joined from a", A),
        (995.0, "epoch", "epoch 1 started with 2 ranks", A),
    ]


def test_an_event_seen_by_several_processes_is_one_entry_unless_much_later():
    feed = Feed()
    late = (7, 51.0, *JOINED[2:])
    feed.take(
        [process(events=[JOINED]), process(address=B, life=2, uptime_seconds=60.0, events=[late])], 1000.0
    )
    assert told(feed) == [(990.0, "joined", "rank 0 of 2 joined from a", "2 processes")]
    feed = Feed()
    again, much_later = (2, 91.0, *JOINED[2:]), (1, 99.0, *JOINED[2:])
    feed.take([process(events=[JOINED, again]), process(address=B, life=2, events=[much_later])], 1000.0)
    assert [entry.where for entry in feed.entries] == [A, A, B]


def test_a_restarted_process_counts_from_one_again():
    feed = Feed()
    feed.take([process(events=[JOINED, EPOCH])], 1000.0)
    feed.take([process(life=2, events=[(1, 5.0, "JOINED", "job", "back")], uptime_seconds=6.0)], 1010.0)
    assert told(feed)[-1] == (1009.0, "joined", "back", A)


def test_silence_and_its_end_are_events_and_others_are_not_repeated():
    feed = Feed()
    feed.take([process(events=[JOINED]), silent(B)], 10.0)
    feed.take([process(events=[JOINED]), silent(B)], 20.0)
    feed.take([silent(A, "reset"), process(address=B, life=2)], 30.0)
    feed.take([process(events=[JOINED]), process(address=B, life=2)], 40.0)
    assert told(feed) == [
        (0.0, "joined", JOINED[4], A),
        (10.0, "silent", "no answer: refused", B),
        (30.0, "silent", "no answer: reset", A),
        (30.0, "back", "answers again", B),
        (40.0, "back", "answers again", A),
    ]


def test_events_with_impossible_times_are_dated_now():
    feed = Feed()
    for number, uptime in enumerate((math.nan, math.inf, -math.inf, 1e300, 0.0), 1):
        feed.take([process(life=number, uptime_seconds=uptime, events=[JOINED])], 50.0)
    assert {entry.at_s for entry in feed.entries} == {50.0}


def test_only_the_latest_are_kept(monkeypatch):
    monkeypatch.setattr(module, "PROCESSES_REMEMBERED_MAX", 2)
    feed = Feed()
    for life in range(1, 8):
        events = [(n, float(n), "ENDED", f"job-{life}-{n}", "ended") for n in range(1, EVENTS_MAX + 1)]
        feed.take([process(life=life, events=events)], 1000.0 + life)
    assert len(feed.entries) == ENTRIES_MAX
    assert feed.entries[-1].job == f"job-7-{EVENTS_MAX}"
    feed.take([process(life=1, events=[JOINED])], 1010.0)
    assert feed.entries[-1].text == JOINED[4], "its first life was forgotten"


def test_thousands_of_processes_are_taken_at_once():
    # Each event is compared only with identical ones, not with all.
    events = [(n, 10.0, "JOINED", "job", f"rank {n} of 64 joined") for n in range(1, EVENTS_MAX + 1)]
    crowd = [process(address=f"host-{number}:1", life=number + 1, events=events) for number in range(2000)]
    feed = Feed()
    feed.take(crowd, 1000.0)
    assert {entry.where for entry in feed.entries} == {"2000 processes"}
    assert len(feed.entries) == EVENTS_MAX
