"""Find environment variables that look like our settings but are not, probably because of a typing error."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator

#: A known name that is at least this similar to an unknown one, as measured by `difflib`, is suggested.
SIMILARITY_MIN = 0.6


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that the user probably meant, or None."""
    matches = difflib.get_close_matches(name, known, n=1, cutoff=SIMILARITY_MIN)
    return matches[0] if matches else None


def unknown(prefix: str, known: Collection[str], given: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each unknown given name with the prefix, in order, and a warning about it."""
    # All names have the prefix, so it says nothing about their similarity.
    ends = [name.removeprefix(prefix) for name in sorted(known)]
    for name in sorted(given):
        if not name.startswith(prefix) or name in known:
            continue
        meant = nearest(name.removeprefix(prefix), ends)
        if meant is None:
            yield name, f"{name} is not a setting and has no effect"
        else:
            yield name, f"{name} is not a setting; did you mean {prefix}{meant}?"
