"""The rate of a job's senders, on links modelled only by their queue and rate."""

import math
import random

import pytest
from reduction.pacing import (
    BACK_OFF,
    BUSY_STEP_S,
    GROWTH_START,
    INTERVALS,
    RATE_LEAST,
    SEGMENTS_MIN,
    SLACK,
    Pacing,
    Sent,
    burst_bytes,
)

#: Payload bytes per second that 1 Gbit/s carries.
GIGABIT = 118e6
TICK_S = 0.04
SEGMENT = 1448
#: A sender hands over this many bytes in one burst, and a full queue drops it whole, as veth does.
PACKET = 16 * SEGMENT


class Port:
    """A switch port where all senders of some jobs meet; it buffers a millisecond of its rate."""

    def __init__(self, jobs: int = 1, senders: int = 4, seed: int = 0) -> None:
        self.jobs = [[Pacing() for _ in range(senders)] for _ in range(jobs)]
        self.sent = [[Sent() for _ in range(senders)] for _ in range(jobs)]
        self.told = [[math.inf] * senders for _ in range(jobs)]
        self.random = random.Random(seed)
        self.now = self.queue = self.lost = self.offered = 0.0

    def run(self, seconds: float, capacity: float, need: float = math.inf) -> list[float]:
        """Let time pass; return the fraction of the port's capacity that each job has used."""
        carried = [0.0] * len(self.jobs)
        steps = round(seconds / TICK_S)
        for _ in range(steps):
            self.now += TICK_S
            rates = [min(min(one.rate for one in job), need, 4 * capacity) for job in self.jobs]
            offered = sum(rates) * TICK_S
            self.queue += offered - capacity * TICK_S
            dropped = max(0.0, self.queue - capacity * 1e-3)
            self.queue = min(max(self.queue, 0.0), capacity * 1e-3)
            self.offered += offered
            self.lost += dropped
            # A lost tail waits for a timeout, and all ranks wait with it.
            passed = max(0.3, 1 - 8 * dropped / offered) * min(1.0, capacity * TICK_S / offered)
            packets = self.random.choices(range(len(rates)), rates, k=math.ceil(dropped / PACKET))
            for number, rate in enumerate(rates):
                carried[number] += rate * passed / capacity / steps
                loss = packets.count(number) * PACKET / (rate * TICK_S)
                self._tell(number, rate, passed, min(loss, 0.9))
        return carried

    def _tell(self, number: int, rate: float, passed: float, loss: float) -> None:
        job, told = self.jobs[number], list(self.told[number])
        unlucky = self.random.randrange(len(job))
        for index, one in enumerate(job):
            old, segments = self.sent[number][index], int(rate * TICK_S / SEGMENT)
            lost = int(segments * loss * len(job)) if index == unlucky else 0
            new = Sent(
                old.acked_bytes + int(rate * passed * TICK_S), old.segments + segments, old.lost + lost
            )
            self.sent[number][index] = new
            one.hear(told[:index] + told[index + 1 :])
            one.look({0: new}, 1.0, self.now)
            self.told[number][index] = one.own


@pytest.mark.parametrize("capacity", [GIGABIT / 10, GIGABIT, 25 * GIGABIT])
@pytest.mark.parametrize("seed", range(3))
def test_a_link_is_filled_without_knowing_its_speed(capacity, seed):
    port = Port(seed=seed)
    port.run(1.5, capacity)
    port.lost = port.offered = 0.0
    assert port.run(4.0, capacity)[0] > 0.95
    assert port.lost < 0.004 * port.offered


@pytest.mark.parametrize("factor", [1 / 3, 3])
def test_a_link_that_changes_is_filled_again(factor):
    port = Port()
    port.run(3.0, GIGABIT)
    port.run(2.0, GIGABIT * factor)
    assert port.run(2.0, GIGABIT * factor)[0] > 0.93


def test_jobs_share_a_link_fairly_and_waste_little():
    port = Port(jobs=2)
    port.run(6.0, GIGABIT)
    first, second = port.run(6.0, GIGABIT)
    assert first + second > 0.93
    assert max(first, second) < 1.15 * min(first, second)


def test_a_job_that_starts_later_gets_its_share():
    port = Port(jobs=2)
    late, port.jobs = port.jobs[1:], port.jobs[:1]
    port.run(3.0, GIGABIT)
    port.jobs += late
    port.run(30.0, GIGABIT)
    first, second = port.run(6.0, GIGABIT)
    assert first + second > 0.93
    assert max(first, second) < 1.5 * min(first, second)


def test_nothing_is_paced_as_long_as_nothing_is_lost():
    port = Port()
    port.run(2.0, GIGABIT, need=0.9 * GIGABIT)
    assert all(math.isinf(one.rate) for one in port.jobs[0])


@pytest.mark.parametrize("wrong", [0.1, 1.0, 10.0])
def test_pacing_begins_at_the_expected_rate(wrong):
    port = Port()
    for one in port.jobs[0]:
        one.expect(wrong * GIGABIT)
    assert port.jobs[0][0].rate == wrong * GIGABIT
    port.run(5.0, GIGABIT)
    assert port.run(2.0, GIGABIT)[0] > 0.93


# ---- one look ----


def look(subject, seconds=TICK_S, acked=10**6, segments=1000, lost=0, share=1.0):
    """Let a connection send this much since the last look."""
    old = subject.history[-1]
    subject.history.append(Sent(old.acked_bytes + acked, old.segments + segments, old.lost + lost))
    subject.now += seconds
    subject.look({0: subject.history[-1]}, share, subject.now)


class Subject(Pacing):
    def __init__(self):
        super().__init__()
        self.now, self.history = 100.0, [Sent()]
        self.look({0: Sent()}, 1.0, self.now)


def test_the_first_losses_set_the_pace_just_below_what_was_carried():
    subject = Subject()
    look(subject, acked=4 * 10**6)
    look(subject, acked=10**6, lost=100)
    assert subject.own == pytest.approx(BACK_OFF * 10**8)


def test_a_rate_refers_to_whole_collectives():
    subject = Subject()
    look(subject, acked=10**6, lost=100, share=0.25)
    assert subject.own == pytest.approx(BACK_OFF * 10**8)


def test_losses_count_once_until_they_have_stopped_for_an_interval():
    subject = Subject()
    look(subject, lost=100)
    once = subject.own
    look(subject, lost=100)
    assert subject.own == once
    look(subject, lost=100)
    assert subject.own < once


def test_few_losses_neither_lower_the_rate_nor_let_it_grow():
    subject = Subject()
    look(subject, lost=100)
    before = subject.own
    look(subject, lost=1)
    assert subject.own == before
    look(subject)
    assert subject.own > before


@pytest.mark.parametrize(
    "change", [{"segments": SEGMENTS_MIN - 1, "lost": 50}, {"seconds": 1.0, "lost": 500}]
)
def test_an_idle_interval_is_ignored(change):
    subject = Subject()
    look(subject, **change)
    assert math.isinf(subject.own)


def test_counts_before_a_connections_first_look_are_ignored():
    subject = Subject()
    subject.look({1: Sent(10**9, 10**6, 10**5)}, 1.0, subject.now + TICK_S)
    assert math.isinf(subject.own)
    subject.look({1: Sent(10, 10, 0)}, 1.0, subject.now + 2 * TICK_S)  # it started over
    assert math.isinf(subject.own)


def test_two_looks_at_one_moment_are_one():
    """A process that was stopped catches up with its ticks. Found by dense simulation, seed 40000032."""
    subject = Subject()
    now = subject.now + TICK_S
    subject.look({0: Sent(10**6, 1000, 0)}, 1.0, now)
    rate = subject.rate
    subject.look({0: Sent(2 * 10**6, 2000, 900), 1: Sent()}, 1.0, now)
    assert subject.rate == rate


def test_without_connections_there_is_no_limit():
    subject = Subject()
    look(subject, lost=100)
    subject.look({}, 0.0, subject.now + TICK_S)
    assert math.isinf(subject.own)


def test_the_lowest_rate_of_all_applies_and_our_own_follows_it():
    subject = Subject()
    look(subject, acked=10**6, lost=100)
    subject.hear([math.inf, 10**6])
    assert subject.rate == 10**6
    look(subject, acked=10**4)
    assert subject.own == GROWTH_START * 10**6
    subject.hear([])
    assert subject.rate == subject.own


def test_our_own_rate_stays_near_the_others_once_links_have_been_full():
    subject = Subject()
    look(subject, lost=100)
    look(subject)
    look(subject, lost=100)
    look(subject)
    subject.hear([subject.own / 2])
    look(subject)
    assert subject.own == SLACK * subject.others


def test_losses_from_before_anybody_was_paced_do_not_lower_the_rate_of_the_others():
    subject = Subject()
    subject.hear([10**7])
    look(subject, acked=10**4, lost=100)
    assert subject.own == 10**7


def test_a_start_that_overshoots_falls_back_to_what_was_carried():
    subject = Subject()
    look(subject, acked=10**5, lost=100)
    for _ in range(3):
        look(subject, acked=10**6)
    too_fast = subject.own
    look(subject, acked=10**5, lost=100)
    for _ in range(INTERVALS):
        look(subject, acked=10**5)
        assert subject.own < too_fast


def test_a_burst_is_judged_by_the_time_that_it_took():
    subject = Subject()
    subject.look({0: Sent(10**6, 1000, 0, busy_s=1.0)}, 1.0, subject.now + TICK_S)
    subject.look({0: Sent(2 * 10**6, 2000, 100, busy_s=1.02)}, 1.0, subject.now + 2 * TICK_S)
    assert subject.own == pytest.approx(BACK_OFF * 10**6 / (0.02 + BUSY_STEP_S))


def test_the_end_of_a_burst_after_a_pause_does_not_pass_for_a_slow_link():
    subject, rate = Subject(), 3e9
    # The burst of 36 ms began after a pause of 0.26 s, and its last 1.3 ms are seen with the losses.
    subject.look({0: Sent(int(rate * 0.0347), 24000, 0, busy_s=0.036)}, 1.0, subject.now + 0.3)
    subject.look({0: Sent(int(rate * 0.036), 25000, 100, busy_s=0.036)}, 1.0, subject.now + 0.34)
    assert 0.8 * rate < subject.own < rate


def test_a_rate_at_which_few_segments_are_sent_grows_all_the_same():
    """Below 0.7 MB/s no interval had enough segments, and the job stayed that slow forever."""
    one, acked, now = Pacing(), 0.0, 0.0
    one.look({1: Sent(0, 0, 0, 0.0)}, 1.0, now)
    one.own = 4e5
    for _ in range(125):
        now += TICK_S
        acked += one.rate * TICK_S
        one.look({1: Sent(int(acked), int(acked / SEGMENT), 0, now)}, 1.0, now)
    assert one.own > 2e7


def test_a_loss_among_few_segments_is_ignored():
    one = Pacing()
    one.look({1: Sent(0, 0, 0, 0.0)}, 1.0, 0.0)
    one.own = 4e5
    one.look({1: Sent(60_000, 41, 1, 0.15)}, 1.0, 0.15)
    assert one.own == 4e5


def test_a_path_with_losses_at_any_rate_does_not_stop_a_job():
    subject = Subject()
    subject.expect(10**8)
    rates = []
    for _ in range(300):
        sent = int(subject.rate * TICK_S)
        look(subject, acked=sent, segments=sent // SEGMENT, lost=sent // SEGMENT // 50)
        rates.append(subject.rate)
    assert min(rates) > 0.6 * 10**8
    assert rates[-1] > 0.9 * 10**8
    for _ in range(3):  # once it loses nothing, a few losses count again
        look(subject, acked=10**6)
    before = subject.rate
    look(subject, acked=int(before * TICK_S), lost=5)
    assert subject.rate < before


@pytest.mark.parametrize(
    ("bytes_per_s", "expected"), [(1, 24 << 10), (20_000_000, 40_000), (25_000_000, 0), (math.inf, 0)]
)
def test_a_packet_is_two_milliseconds_of_the_pace(bytes_per_s, expected):
    assert burst_bytes(bytes_per_s) == expected


def test_a_reported_rate_cannot_stop_a_job():
    subject = Subject()
    subject.hear([1.0])
    assert subject.rate == RATE_LEAST


def test_a_measured_rate_wins_over_an_expected_one():
    subject = Subject()
    look(subject, lost=100)
    before = subject.own
    subject.expect(10**9)
    assert subject.own == before


def test_a_rate_that_is_not_used_does_not_grow_past_the_last_losses():
    subject = Subject()
    subject.expect(10**8)
    for _ in range(100):
        look(subject, acked=10**5)
    assert subject.own < 1.04 * 10**8
