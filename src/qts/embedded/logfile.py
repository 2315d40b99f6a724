"""The log a server writes: bounded at each start, quoted when a start fails."""

from __future__ import annotations

from pathlib import Path

_LIMIT_BYTES = 10 * 1024 * 1024
_QUOTED_BYTES = 4096


class LogFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark = 0

    def bound(self) -> None:
        """Put a large log aside, over the one put aside before."""
        if self._size() > _LIMIT_BYTES:
            self.path.replace(self.path.with_suffix(".log.1"))

    def mark(self) -> None:
        """What follows belongs to the attempt that begins now."""
        self._mark = self._size()

    def since_mark(self) -> str:
        if not self.path.exists():
            return ""
        with self.path.open("rb") as file:
            file.seek(max(self._mark, self._size() - _QUOTED_BYTES))
            return file.read().decode(errors="replace")

    def last_lines(self, count: int = 5) -> str:
        """The end of the attempt's log in one line."""
        lines = [line.strip() for line in self.since_mark().splitlines() if line.strip()]
        return " | ".join(lines[-count:]) or "nothing"

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0
