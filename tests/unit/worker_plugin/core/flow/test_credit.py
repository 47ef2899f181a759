"""The credit by rate, and the chunk size: how they adapt to different paths."""

import pytest
from reduction.limits import CREDIT_BYTES_USUAL
from reduction.model import Collective, Configuration, DType, Member, ReduceOp
from support.scenes.rank_scene import INSTANCE, incarnation

from worker_plugin.core.flow import credit
from worker_plugin.core.flow.credit import GRPC, TCP, Credit, chunk_bytes_for
from worker_plugin.core.flow.lane import Lane
from worker_plugin.core.window import Window

KIB, MIB = 1024, 1 << 20
CHUNK = 64 * KIB


class Path:
    """Takes `delay_s` each way and carries `rate` bytes a second. Excess waits, and beyond the buffer it is lost."""

    def __init__(self, rate, delay_s=0.0, buffer_bytes=1 << 40):
        self.rate, self.delay_s, self.buffer_bytes = rate, delay_s, buffer_bytes

    def latency_s(self, under_way):
        if under_way > self.buffer_bytes:
            return 0.25  # a retransmission timer
        return max(2 * self.delay_s, under_way / self.rate)

    def drive(self, subject, chunk_bytes=CHUNK, seconds=20.0):
        """Deliver results, with as many chunks in flight as the credit allows; return the final (credit, rate)."""
        now = 0.0
        while now < seconds:
            under_way = max(1, int(subject.credit_bytes / chunk_bytes + 0.5)) * chunk_bytes
            latency_s = self.latency_s(under_way)
            for _ in range(under_way // chunk_bytes):
                now += latency_s * chunk_bytes / under_way
                subject.on_result(chunk_bytes, latency_s, now)
        return subject.credit_bytes, under_way / latency_s


def paced(granted=4 * MIB, chunk=CHUNK):
    return Credit(chunk, granted, TCP)


def test_it_begins_with_one_chunk():
    assert paced().credit_bytes == CHUNK


@pytest.mark.parametrize("rate", [5e6, 15e6, 60e6, 200e6])
def test_the_credit_is_rate_times_target(rate):
    credit, reached = Path(rate, delay_s=0.001).drive(paced())
    assert credit == pytest.approx(rate * TCP.target_s, rel=0.5)
    assert reached >= 0.99 * rate


def test_a_long_path_is_filled_although_the_target_is_shorter():
    _, reached = Path(50e6, delay_s=0.04).drive(paced())
    assert reached >= 0.9 * 50e6


def test_a_long_path_keeps_its_credit_in_the_next_epoch_and_a_short_one_begins_with_a_chunk():
    long, short = paced(), paced()
    credit, _ = Path(50e6, delay_s=0.04).drive(long)
    Path(50e6, delay_s=0.001).drive(short)
    assert Credit(CHUNK, 4 * MIB, TCP, long).credit_bytes == credit > 16 * CHUNK
    assert Credit(CHUNK, MIB, TCP, long).credit_bytes == MIB < credit
    assert Credit(CHUNK, 4 * MIB, TCP, short).credit_bytes == CHUNK


def test_a_path_that_is_long_and_fast_gets_more_than_the_usual_credit():
    """100 ms and 1 Gbit/s: 4 MiB would carry a third of it."""
    credit, reached = Path(125e6, delay_s=0.05).drive(paced(granted=32 * MIB))
    assert credit > CREDIT_BYTES_USUAL
    assert reached >= 0.95 * 125e6


@pytest.mark.parametrize(
    ("rate", "delay_s", "granted", "least", "most"),
    [
        (2e9, 0.0002, 32 * MIB, CREDIT_BYTES_USUAL, CREDIT_BYTES_USUAL),
        (1e9, 0.001, 2 * MIB, 2 * MIB, 2 * MIB),
        (1e5, 1.0, 4 * MIB, CHUNK, 4 * MIB),
    ],
    ids=[
        "a path that is only fast gets the usual credit",
        "never more than was granted",
        "nor less than a chunk",
    ],
)
def test_bounds_of_the_credit(rate, delay_s, granted, least, most):
    credit, _ = Path(rate, delay_s).drive(paced(granted))
    assert least <= credit <= most


def test_a_path_that_drops_excess_data_gets_less_credit():
    subject = paced()
    Path(60e6, delay_s=0.001).drive(subject)
    assert subject.credit_bytes > 600 * KIB
    Path(60e6, delay_s=0.001, buffer_bytes=400 * KIB).drive(subject, seconds=1.0)
    assert subject.credit_bytes <= 500 * KIB  # it tries repeatedly, a quarter more each time


def test_pushes_that_no_result_triggered_say_nothing_of_the_path():
    subject = paced()
    for step in range(100):
        subject.on_result(CHUNK, None, float(step))
    assert subject.credit_bytes == CHUNK


def test_large_chunks_are_never_alone_in_flight():
    """Alone, a chunk of 1 MiB takes 13 to 18 ms on a path of 125 MB/s, which is as long as the target."""
    subject = Credit(MIB, 32 * MIB, TCP)
    for step in range(50):
        subject.on_result(MIB, 0.013 if step % 10 == 0 else 0.018, 0.018 * step)
    assert subject.credit_bytes >= 2 * MIB


@pytest.mark.parametrize("kind", ["short", "paced", "long"])
def test_after_a_pause_a_lane_begins_with_part_of_its_credit_and_each_result_adds_two_chunks(kind):
    subject = paced()
    subject.on_idle()  # before anything is known about the path
    if kind == "long":
        Path(50e6, delay_s=0.04).drive(subject)
    subject.is_paced = kind == "paced"
    subject.credit_bytes = 8 * CHUNK
    window = Window()
    window.regrid(CHUNK)
    configuration = Configuration(INSTANCE, 1, CHUNK, (Member("a:1", incarnation("a")),))
    lane = Lane(configuration, 0, 4 * MIB, 0, subject)

    def in_flight():
        while lane.next_push(window) is not None:
            pass
        return lane.in_flight // CHUNK

    for seq in (0, 1):
        window.issue(Collective(ReduceOp.SUM, DType.FLOAT32, 40 * CHUNK // 4, 7))
        first = in_flight()
        assert first == (6 if kind == "short" else 8)
        for chunk in range(40):
            lane.on_result(seq, chunk, 0.001 * chunk)
            assert in_flight() == min(first + 2 * (chunk + 1), 8, 39 - chunk)


@pytest.mark.parametrize(
    ("rate", "kib"),
    [
        *((4.1e6, 32), (15.6e6, 64), (60e6, 256), (150e6, 512), (1e12, 1024)),
        # Two of 32 KiB would exceed the credit, and those of many ranks together exceed a queue.
        *((1e3, 16), (1.46e6, 16), (1.56e6, 24), (2.93e6, 40), (4e6, 56)),
    ],
)
def test_the_chunk_size_follows_the_rate_in_powers_of_two_and_is_the_credit_on_slow_links(rate, kib):
    assert chunk_bytes_for([rate] * credit.RATES_NEEDED, TCP) == kib * KIB
    assert chunk_bytes_for([rate] * (credit.RATES_NEEDED - 1), TCP) is None


def test_grpc_has_no_small_chunks():
    assert chunk_bytes_for([1e3] * credit.RATES_NEEDED, GRPC) == GRPC.least_chunk_bytes


@pytest.mark.parametrize(("world_size", "size"), [(1, 64), (4, 64), (5, 48), (8, 32), (16, 16), (1024, 16)])
def test_many_ranks_begin_with_smaller_chunks(world_size, size):
    assert credit.target_for(TCP, None, world_size).first_chunk_bytes == size * KIB


def test_a_lane_rounds_the_pace_to_whole_chunks_and_never_passes_what_was_granted():
    def in_flight(paced_bytes, granted):
        window = Window()
        window.regrid(CHUNK)
        window.issue(Collective(ReduceOp.SUM, DType.FLOAT32, 100 * CHUNK // 4, 7))
        subject = Credit(CHUNK, granted, TCP)
        subject.credit_bytes = paced_bytes
        subject.is_paced = True  # or it would begin with a part
        configuration = Configuration(INSTANCE, 1, CHUNK, (Member("a:1", incarnation("a")),))
        lane = Lane(configuration, 0, granted, 0, subject)
        while lane.next_push(window) is not None:
            pass
        return lane.in_flight / CHUNK

    assert [in_flight(int(share * CHUNK), 10 * CHUNK) for share in (0.3, 1.4, 1.5, 2.4, 2.6)] == [
        1,
        1,
        2,
        2,
        3,
    ]
    assert in_flight(3 * CHUNK, 2 * CHUNK) == 2


@pytest.mark.parametrize("target", [TCP, GRPC])
def test_compressed_chunks_have_more_elements(target):
    assert credit.target_for(target, None, 4) == credit.target_for(target, DType.BFLOAT16, 4) == target
    assert credit.target_for(target, DType.INT8_BLOCK, 4).least_chunk_bytes == 2 * target.least_chunk_bytes
    topk = credit.target_for(target, DType.TOPK, 4)
    assert (
        topk.finest_chunk_bytes
        <= topk.least_chunk_bytes
        <= topk.first_chunk_bytes
        <= credit.CHUNK_BYTES_USEFUL
    )
    assert topk.least_chunk_bytes > target.least_chunk_bytes
    assert topk.target_s == target.target_s
