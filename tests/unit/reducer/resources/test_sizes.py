"""Byte counts on the command line and in tables."""

import click
import pytest

from reducer.resources.sizes import size, size_text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("4294967296", 4 << 30),
        ("4G", 4 << 30),
        ("4g", 4 << 30),
        ("4 GiB", 4 << 30),
        ("512M", 512 << 20),
        ("512mib", 512 << 20),
        ("16K", 16 << 10),
        ("16KiB", 16 << 10),
        ("1.5G", 3 << 29),
        ("2T", 2 << 40),
    ],
)
def test_sizes(text, count):
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "G", "4GB", "4X", "-1", "4 G G", "1e9", "0x10", "1.G"])
def test_invalid_sizes(text):
    with pytest.raises(click.BadParameter, match="is not a size: write bytes, or a number with K, M, G"):
        size(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (64 << 20, "64.0 MiB"),
        (3 << 29, "1.5 GiB"),
        (5 << 40, "5120.0 GiB"),
    ],
)
def test_as_text(count, text):
    assert size_text(count) == text
