"""Log file of bounded size: a full file becomes `.1`, older ones `.2`, `.3` …"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TextIO


class RotatingFile(io.TextIOBase):
    """Text stream that rotates its file; not thread-safe."""

    encoding = "utf-8"

    def __init__(self, path: Path, limit_bytes: int, keep: int) -> None:
        super().__init__()
        self._path = path
        self._limit = limit_bytes
        self._keep = keep
        self._file: TextIO = self._open()
        self._size = self._file.tell()

    def write(self, text: str, /) -> int:
        length = len(text.encode())
        if self._size and self._size + length > self._limit:
            self._rotate()
        self._size += length
        return self._file.write(text)

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def close(self) -> None:
        self._file.close()
        super().close()

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._keep - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.replace(self._numbered(number + 1))
        if self._keep:
            self._path.replace(self._numbered(1))
        else:
            self._path.unlink()
        self._file = self._open()
        self._size = 0

    def _open(self) -> TextIO:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
