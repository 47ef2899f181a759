"""One reducer process's record of a job's collectives, as a value and as a JSON file.

Times are seconds of the host's monotonic clock, as in record.py.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from reduction.timeline.record import FORMAT, read


@dataclass(slots=True)
class ReducerSpan:
    """The chunks of one collective at one reducer process."""

    seq: int
    first_push: float
    #: When the latest of its results was published.
    published: float
    #: CPU time of the summing thread at the first push and when the latest result was published.
    cpu_at_first_push: float
    cpu_at_published: float
    #: Chunks that were published.
    chunks: int = 0
    #: When each rank's first push arrived, and for how many chunks its push was the last one.
    begun: dict[int, float] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    #: For each rank, how long those chunks had waited since their first push, and since all ranks had begun,
    #: in seconds: the sum of all, and the longest.
    waited: dict[int, float] = field(default_factory=dict)
    longest: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReducerRecord:
    """The latest collectives of a job at one reducer process."""

    job: str
    world_size: int
    #: Address at which the process listens.
    address: str
    host: str
    #: As in `Record`.
    clock: str
    unix_offset: float
    spans: tuple[ReducerSpan, ...]

    def to_json(self) -> str:
        """Return the file's text."""
        return json.dumps({"format": FORMAT, **asdict(self)})


def from_json(text: str, source: str) -> ReducerRecord:
    """Return the record of a file, which errors call `source`.

    Raises:
        ConfigError: `text` is not a record.
    """
    return read(text, source, "a reducer", ReducerRecord)
