"""The last lines of the log files: of the run, the dashboard and the embedded servers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from qts import telemetry
from qts.dashboard.pages import LogsParams
from qts.domain import RefusedError

RUN = "run"
MAX_LINES = 300
MAX_BYTES = 1_000_000
_LEVELS = {"debug": 0, "info": 1, "warning": 2, "error": 3, "critical": 4}
_HEAD = ("timestamp", "level", "logger", "event")


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line; a line of another program has its text only."""

    at: str = ""
    level: str = ""
    logger: str = ""
    text: str


class LogsPage(msgspec.Struct, frozen=True, kw_only=True):
    """The logs there are, and lines of one of them, the newest first."""

    files: list[str] = []
    file: str = ""
    lines: list[LogLine] = []
    has_run_log: bool = False


class LogFiles:
    """Reader of the log files of a home; `run_log` is the file of the run, None: it has none."""

    def __init__(self, home: Path, run_log: Path | None) -> None:
        self._folder = home / "log"
        self._run_log = run_log

    def files(self) -> dict[str, Path]:
        """Return the files by name, the one of the run first."""
        found = {} if self._run_log is None else {RUN: self._run_log}
        return found | {path.stem: path for path in sorted(self._folder.glob("*.log"))}

    async def logs(self, params: LogsParams) -> LogsPage:
        """Return the newest lines of a file that have a level and contain a text."""
        files = self.files()
        name = params.file or next(iter(files), "")
        if name not in files:
            if params.file:
                raise RefusedError(f"no log {name[:40]!r}; there are: {', '.join(files) or 'none'}")
            return LogsPage()
        lines = await asyncio.to_thread(tail, files[name], params.level, params.find)
        has_run_log = self._run_log is not None
        return LogsPage(files=[*files], file=name, lines=lines, has_run_log=has_run_log)


def tail(path: Path, level: str = "debug", find: str = "") -> list[LogLine]:
    """Return the newest matching lines of the file's last megabyte, the newest first."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, 2) - MAX_BYTES)
            file.seek(start)
            content = file.read(MAX_BYTES)
    except OSError:
        return []  # rotated, or not written yet
    texts = content.decode("utf-8", "replace").splitlines()[1 if start else 0 :]
    found: list[LogLine] = []
    for text in reversed(texts):
        line = _parse(text)
        is_severe = not line.level or _LEVELS.get(line.level, 1) >= _LEVELS[level]
        if text.strip() and is_severe and find.lower() in text.lower():
            found.append(line)
            if len(found) == MAX_LINES:
                break
    return found


def _parse(text: str) -> LogLine:
    try:
        fields = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return LogLine(text=telemetry.redact_text(text))
    at, level, logger, event = (str(fields.pop(name, "")) for name in _HEAD)
    rest = " ".join(f"{name}={value}" for name, value in fields.items())
    return LogLine(at=at, level=level, logger=logger, text=f"{event} {rest}".strip())
