"""The kernel's share of the cost of loopback: everything arrives, whatever the chunk size."""

import pytest

from benchmarks.method.experiment import table
from benchmarks.micro import floor


@pytest.mark.parametrize(("nbytes", "chunk"), [(1 << 20, 1 << 16), (100_001, 4096), (10, 4096)])
def test_all_bytes_arrive_and_both_sides_are_measured(nbytes, chunk):
    """The receiver answers only after it has received everything."""
    assert all(seconds >= 0 for seconds in floor.move(nbytes, chunk))


def test_a_row_for_each_chunk_size():
    rows = floor.measure(1 << 22, [1 << 16, 1 << 20], rounds=1)
    assert [row["chunk_bytes"] for row in rows] == [1 << 16, 1 << 20]
    assert table(floor.COLUMNS, rows)[-1].startswith("| 1024 KiB | ")
