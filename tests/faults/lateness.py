"""What a test may demand of time: the promise, and how late this machine is."""

from __future__ import annotations

import threading
import time

#: From the death of a rank to the error on every survivor, in seconds. docs/failures.md promises it.
PROMISED_S = 2.0


class Lateness:
    """How much later than asked this machine lets a thread go on, at worst: no promise of ours can be better."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Lateness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ends.is_set():
            asked = time.monotonic() + 0.01
            time.sleep(0.01)
            self.worst_s = max(self.worst_s, time.monotonic() - asked)
