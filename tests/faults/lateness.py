"""The promised time until an error, and this machine's delay in waking threads. Tests allow for both."""

from __future__ import annotations

import threading
import time

#: Time from the death of a rank to the error on every survivor, in seconds, as promised by docs/failures.md.
PROMISED_S = 2.0


class Lateness:
    """Measures this machine's worst delay in waking a thread. No promise can be kept more exactly."""

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
