"""Write records as files to a directory that other users of the machine may also write to."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

#: Characters that are not allowed in file names here.
_UNSAFE = re.compile(r"[^A-Za-z0-9._@-]")
#: Maximum characters of either part of a name; systems allow 255 bytes.
_PART_MAX = 100


def file_name(job: str, rest: str) -> str:
    """Return the name of a job's file without its extension, unique to the job."""
    safe = _UNSAFE.sub("_", job)[:_PART_MAX]
    if safe != job:
        safe += f"~{hashlib.sha256(job.encode()).hexdigest()[:12]}"
    return safe + _UNSAFE.sub("_", rest)[-_PART_MAX:]


class OwnFile:
    """NAME.json in a directory, or NAME.1.json and so on if that already exists. Only this user may read it.

    It follows no links, and overwrites only files that it has written itself.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self._path: Path | None = None
        #: Device and inode, which tell the file from another one that may have replaced it.
        self._identity = (0, 0)

    def write(self, text: str) -> Path:
        """Write the whole file, creating the directory if necessary, and return its path.

        Raises:
            OSError: the file cannot be written.
        """
        path, descriptor = self._again() or self._new()
        with open(descriptor, "w", encoding="utf-8") as file:
            os.ftruncate(descriptor, 0)
            self._path, self._identity = path, _identity(descriptor)
            file.write(text)
        return path

    def _again(self) -> tuple[Path, int] | None:
        if self._path is None:
            return None
        with suppress(OSError):  # it no longer exists
            descriptor = os.open(self._path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            if _identity(descriptor) == self._identity:
                return self._path, descriptor
            os.close(descriptor)
        return None

    def _new(self) -> tuple[Path, int]:
        self._directory.mkdir(parents=True, exist_ok=True)
        number = 0
        while True:
            path = self._directory / (f"{self._name}.{number}.json" if number else f"{self._name}.json")
            try:
                return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                number += 1


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
