"""The table "Limits" of proto/README.md matches `reduction/limits.py` and lists all of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from reduction import layout, limits

README = Path(__file__).parents[3] / "proto" / "README.md"
UNITS = {
    "KiB": limits.KIB,
    "MiB": limits.MIB,
    "GiB": 1 << 30,
    "ms": 0.001,
    "s": 1,
    "bytes": 1,
    "characters": 1,
    "": 1,
}
QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(?:\^(\d+))?( - 1)?(?: (KiB|MiB|GiB|ms|s|bytes|characters))?\b")


def rows():
    """Return (limit, names of constants) of each row of the table that names constants."""
    _, _, text = README.read_text().partition("\n## Limits\n")
    table = [
        line.split("|")[1:-1] for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")
    ]
    found = [(cells[1], re.findall(r"`([A-Z_]+)`", cells[2])) for cells in table]
    return [(limit, names) for limit, names in found if names]


def quantities(text):
    return [
        (float(number) if "." in number else int(number)) ** int(power or 1) * UNITS[unit] - bool(less)
        for number, power, less, unit in QUANTITY.findall(text)
    ]


def constants():
    return {name for name in vars(limits) if name.isupper()} - {"KIB", "MIB"}


@pytest.mark.parametrize(
    ("limit", "names"), rows(), ids=lambda cell: cell[0] if isinstance(cell, list) else ""
)
def test_a_row_of_the_table_has_the_values_of_the_constants_it_names(limit, names):
    left = iter(quantities(limit))
    for name in names:
        assert getattr(limits, name) in left, f"{name} is {getattr(limits, name)}; the table says: {limit}"


def test_the_table_names_each_constant_once():
    named = [name for _, names in rows() for name in names]
    assert len(named) == len(set(named))
    assert set(named) == constants()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1 KiB to 4.25 MiB", [1024, 4.25 * 1024 * 1024]),
        ("2^39; 10 ms, 1 s while others wait", [2**39, 0.01, 1]),
        ("2^63 - 1", [float(2**63 - 1)]),
    ],
)
def test_table_quantities_are_parsed(text, numbers):
    assert quantities(text) == pytest.approx(numbers)


def test_indices_of_chunks_fit_32_bits():
    assert layout.chunk_count(limits.NUMEL_MAX, 8, limits.CHUNK_BYTES_MIN) <= 1 << 32
