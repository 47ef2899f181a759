"""Destinations of one stream's results, which come back in the order of the pushes they answer."""

from __future__ import annotations

from collections import deque


class Destinations:
    """Memory for the outstanding results of a stream, in the order of its pushes. For the loop thread.

    Writing to memory that is in use for something else would change a sum that is already complete. So a payload
    has a destination only if it is the very next result, and has the expected size. All others are received
    elsewhere.
    """

    def __init__(self) -> None:
        #: Pushes whose results have not begun to arrive: epoch, collective, chunk and the memory for the result.
        self._expected: deque[tuple[int, int, int, memoryview | None]] = deque()

    def expect(self, epoch: int, seq: int, chunk: int, memory: memoryview | None) -> None:
        """Add the next push to be sent. `memory` is None if its result is not needed or has no known size."""
        self._expected.append((epoch, seq, chunk, memory))

    def take(self, epoch: int, seq: int, chunk: int, nbytes: int) -> memoryview | None:
        """Return the memory for a result that begins to arrive, once, or None if it has none."""
        if not self._expected or self._expected[0][:3] != (epoch, seq, chunk):
            return None
        memory = self._expected.popleft()[3]
        return memory if memory is not None and memory.nbytes == nbytes else None

    def clear(self) -> None:
        """Forget all of them, because the epoch of these pushes or their stream has ended."""
        self._expected.clear()
