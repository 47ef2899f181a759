"""The grid and the dealing of chunks: pure arithmetic on which every rank and reducer must agree."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reduction import layout, limits

WEIGHTS = st.lists(st.integers(1, limits.WEIGHT_MAX), min_size=1, max_size=40).map(tuple)


@pytest.mark.parametrize(
    ("numel", "itemsize", "chunk_bytes", "chunks"),
    [
        (0, 4, 1024, 1),  # an empty collective still has its header to send
        (1, 1, 1024, 1),
        (256, 4, 1024, 1),
        (257, 4, 1024, 2),
        (512, 4, 1024, 2),
        (128, 8, 1024, 1),
        (129, 8, 1024, 2),
        (limits.NUMEL_MAX, 8, limits.CHUNK_BYTES_MIN, 1 << 32),
    ],
)
def test_chunk_count(numel, itemsize, chunk_bytes, chunks):
    assert layout.chunk_count(numel, itemsize, chunk_bytes) == chunks


def test_span_of_full_last_and_empty_chunks_and_beyond_the_end():
    assert layout.chunk_range(0, 600, 4, 1024) == (0, 1024)
    assert layout.chunk_range(1, 600, 4, 1024) == (1024, 2048)
    assert layout.chunk_range(2, 600, 4, 1024) == (2048, 2400)
    assert layout.chunk_range(7, 600, 4, 1024) == (2400, 2400)
    assert layout.chunk_range(0, 0, 4, 1024) == (0, 0)


@given(numel=st.integers(0, 1 << 20), itemsize=st.sampled_from([2, 4, 8]), kib=st.integers(1, 4096))
def test_spans_follow_each_other_and_cover_everything(numel, itemsize, kib):
    chunk_bytes = kib * limits.CHUNK_BYTES_MULTIPLE
    count = layout.chunk_count(numel, itemsize, chunk_bytes)
    some = range(count) if count < 50 else (*range(25), *range(count - 25, count))
    spans = [layout.chunk_range(chunk, numel, itemsize, chunk_bytes) for chunk in some]
    assert spans[0][0] == 0
    assert spans[-1][1] == numel * itemsize
    size = layout.grid_bytes(numel * itemsize, chunk_bytes)
    assert all(stop - start == size for start, stop in spans[:-1])
    assert 0 <= spans[-1][1] - spans[-1][0] <= size
    assert count > 50 or all(left[1] == right[0] for left, right in pairwise(spans))


KIB = limits.KIB


@pytest.mark.parametrize(
    ("nbytes", "chunk_bytes", "size"),
    [
        (32 * 64 * KIB, 64 * KIB, 64 * KIB),  # enough chunks
        (32 * 64 * KIB - 1, 64 * KIB, 64 * KIB),  # 32 of them, the last one shorter
        (1024 * KIB, 64 * KIB, 32 * KIB),  # 32 pieces
        (1023 * KIB, 64 * KIB, 32 * KIB),  # whole KiB
        (64 * KIB, 64 * KIB, 16 * KIB),
        (63 * KIB, 64 * KIB, 21 * KIB),  # three equal ones, because four would be smaller than 16 KiB
        (31 * KIB, 64 * KIB, 31 * KIB),
        (100, 64 * KIB, KIB),
        (0, 64 * KIB, KIB),
        (512 * KIB, 1024 * KIB, 256 * KIB),  # no finer than a quarter of a chunk
        (511 * KIB, 1024 * KIB, 511 * KIB),
        (2048 * KIB, 1024 * KIB, 512 * KIB),  # 4 pieces
        (2048 * KIB, 256 * KIB, 256 * KIB),
        (1024 * KIB, 256 * KIB, 128 * KIB),  # 8 pieces
        (64 * KIB, 9 * KIB, 9 * KIB),  # a grid that is already fine
        (160 * KIB, 72 * KIB, 20 * KIB),  # no smaller than 18 KiB, eight equal ones
    ],
)
def test_small_collectives_are_cut_finer(nbytes, chunk_bytes, size):
    assert layout.grid_bytes(nbytes, chunk_bytes) == size


@given(nbytes=st.integers(0, 1 << 24), kib=st.integers(1, 4096))
def test_the_grid_of_a_collective_is_valid(nbytes, kib):
    chunk_bytes = kib * KIB
    size = layout.grid_bytes(nbytes, chunk_bytes)
    assert limits.CHUNK_BYTES_MIN <= size <= chunk_bytes
    assert size % limits.CHUNK_BYTES_MULTIPLE == 0
    most = max(layout.SMALL_CHUNKS, -(-max(nbytes, layout.SMALL_BYTES) // chunk_bytes))
    assert layout.chunk_count(nbytes, 1, chunk_bytes) <= most


@pytest.mark.parametrize(
    ("chunks", "weights", "seq", "runs"),
    [
        (1, (1,), 5, (range(0, 1),)),
        (4, (1, 1), 0, (range(0, 2), range(2, 4))),
        (4, (1, 1), 1, (range(2, 4), range(0, 2))),
        (5, (1, 1), 0, (range(0, 3), range(3, 5))),
        (1, (1, 1, 1), 4, (range(1, 1), range(0, 1), range(1, 1))),
        (8, (3, 1), 0, (range(0, 6), range(6, 8))),
        (8, (3, 1), 1, (range(2, 8), range(0, 2))),
    ],
)
def test_deal(chunks, weights, seq, runs):
    assert layout.deal(chunks, weights, seq) == runs


@given(chunks=st.integers(1, 1 << 32), weights=WEIGHTS, seq=st.integers(0, 1 << 63))
def test_runs_are_contiguous_from_a_member_chosen_by_seq_alone(chunks, weights, seq):
    k = len(weights)
    runs = layout.deal(chunks, weights, seq)
    (first,) = (member for member, run in enumerate(layout.deal(1, weights, seq)) if run)
    in_order = [runs[(first + step) % k] for step in range(k)]
    assert in_order[0].start == 0
    assert in_order[-1].stop == chunks
    assert all(left.stop == right.start for left, right in pairwise(in_order))
    assert len(in_order[0]) >= 1, "ranks that disagree on the size must meet at chunk 0"


@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_with_equal_weights_collectives_begin_at_each_member_in_turn(k):
    for seq in range(20):
        assert 0 in layout.deal(5, (3,) * k, seq)[seq % k]


@pytest.mark.parametrize("chunks", [1, 4, 33])
@pytest.mark.parametrize("weights", [(14, 4), (1000, 377, 377, 377, 377), (1000, 1000, 66, 66, 66), (7, 1)])
def test_over_many_collectives_every_member_gets_its_share(chunks, weights):
    dealt = [0] * len(weights)
    for seq in range(2 * sum(weights)):
        for member, run in enumerate(layout.deal(chunks, weights, seq)):
            dealt[member] += len(run)
    for count, weight in zip(dealt, weights, strict=True):
        assert count == pytest.approx(sum(dealt) * weight / sum(weights), rel=0.01)


@given(chunks=st.integers(1, 1 << 32), weights=WEIGHTS, seq=st.integers(0, 100))
def test_run_sizes_follow_the_weights_to_within_one_chunk(chunks, weights, seq):
    for run, weight in zip(layout.deal(chunks, weights, seq), weights, strict=True):
        share = chunks * weight / sum(weights)
        assert abs((run.stop - run.start) - share) <= 1 + share * 1e-9


def test_every_push_costs_something():
    assert layout.charge(0) == limits.CHARGE_BYTES_MIN
    assert layout.charge(limits.CHARGE_BYTES_MIN) == limits.CHARGE_BYTES_MIN
    assert layout.charge(limits.CHARGE_BYTES_MIN + 1) == limits.CHARGE_BYTES_MIN + 1


def test_fingerprint_is_the_same_in_every_process_and_version():
    # Literal values, because ranks of different releases compare these numbers.
    assert layout.fingerprint([]) == 0xB4B2797457A0A6E4
    assert layout.fingerprint(iter([0, 12, 34])) == 0xA48EE29D7441BDF9


def test_fingerprint_tells_layouts_apart():
    layouts = [(), (0,), (1,), (12,), (1, 2), (2, 1), (1, 2, 0), (0, 1, 2), (121,), (1, 21)]
    assert len({layout.fingerprint(numbers) for numbers in layouts}) == len(layouts)
    assert all(0 <= layout.fingerprint(numbers) < 1 << 64 for numbers in layouts)


def test_limits_fit_together():
    assert limits.CHUNK_BYTES_MIN % limits.CHUNK_BYTES_MULTIPLE == 0
    assert limits.CHUNK_BYTES_MULTIPLE % 8 == 0, "a chunk border is an element border of every dtype"
    assert limits.CHUNK_BYTES_MIN <= limits.CHUNK_BYTES_MAX <= limits.CREDIT_BYTES_ASKED
    assert limits.CREDIT_BYTES_ASKED <= limits.CREDIT_BYTES_MAX
