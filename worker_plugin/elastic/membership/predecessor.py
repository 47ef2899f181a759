"""The record that a worker leaves on its host for the process started in its place.

A worker that dies may have joined a generation that the remaining workers know nothing about. To continue as
if it had never existed, it is not enough for them to know that it has ended (lineage.py): they must also know
the highest number of a generation that it joined. Each worker writes that number into a file before it joins,
and holds a lock on the file for as long as it can join anything. A process that gets the lock can state both facts.

The file is in /dev/shm, which no two hosts share and which is emptied when a host restarts. So a process on
another host can state nothing, nor can one in another container with its own /dev/shm. A worker that lives on
behind a cut link is therefore never taken for one that has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import sys
from pathlib import Path

from worker_plugin.elastic.membership.lineage import Worker
from worker_plugin.process import fork

FOLDER = Path("/dev/shm")
#: Size of the record, which is written in a single call: a process that is killed leaves all of it or nothing.
_RECORD_BYTES = 128


class HostRecord:
    """The file of one worker. Without access to it, nothing is remembered. For the elastic thread; `erase` for any.

    Args:
        job: the job's name.
        own: this worker.
    """

    def __init__(self, job: str, own: Worker) -> None:
        self._own = own
        digest = hashlib.sha256(f"{own.rank} {job}".encode()).hexdigest()[:32]
        self._path = FOLDER / f"reduction-{os.geteuid()}-{digest}"
        self._file: int | None = None

    def former(self) -> tuple[str, int] | None:
        """Return the nonce of the process that this one replaces, and the highest generation number that it joined.

        Return None if there is none, or if it has not ended yet; ask again in that case.
        """
        if self._file is not None or sys.platform != "linux":
            return None
        with contextlib.suppress(OSError):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            file = os.open(self._path, flags, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                about = os.fstat(file)
                # Another user may have made it, and it may have been erased at this very moment.
                if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or not about.st_nlink:
                    raise PermissionError(self._path)
                record = os.pread(file, _RECORD_BYTES, 0)
            except OSError:
                os.close(file)
                raise
            self._file = file
            fork.register(self)
            with contextlib.suppress(ValueError):
                nonce, number = record.decode("ascii").split()
                return nonce, int(number)
        return None

    def keep(self, number: int) -> None:
        """Remember that this worker joins a generation. Call this before it does."""
        if self._file is None:
            return
        record = f"{self._own.nonce} {number}\n".ljust(_RECORD_BYTES).encode()
        try:
            os.pwrite(self._file, record, 0)
        except OSError:  # a partial record must not be taken for a complete one
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, 0)
            self.release()

    def erase(self) -> None:
        """Leave no record behind."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def release(self) -> None:
        """Release the lock: this worker joins nothing more."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def inherited(self) -> tuple[set[tuple[str, int]], list[int]]:
        """See `DescriptorOwner`. A forked child does not hold the lock."""
        return set(), [] if self._file is None else [self._file]
