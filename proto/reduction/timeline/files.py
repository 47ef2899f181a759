"""Write records as files to a directory that other users of the machine may also write to."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
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

        Its former text remains until the new one is complete, so that nobody reads half of it.

        Raises:
            OSError: the file cannot be written.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(".part", dir=self._directory)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                identity = _identity(os.fstat(descriptor))
                file.write(text)
            path = self._own() or self._new()
            os.replace(part, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part)
        self._path, self._identity = path, identity
        return path

    def _own(self) -> Path | None:
        """Return the path if the file that this object has written is still there."""
        if self._path is None:
            return None
        with suppress(OSError):  # it no longer exists
            if _identity(self._path.lstat()) == self._identity:
                return self._path
        return None

    def _new(self) -> Path:
        """Return the path of a new, empty file."""
        number = 0
        while True:
            path = self._directory / (f"{self._name}.{number}.json" if number else f"{self._name}.json")
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
                return path
            except FileExistsError:
                number += 1


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
