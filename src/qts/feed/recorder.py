"""Recorder of every record as a line of JSON: append-only, a new file each day.

    2026-11-16.0001.jsonl ── day over, or full ──▶ 2026-11-16.0001.jsonl.zst ── keep_days ──▶ gone

A line is one write, so a killed process leaves whole lines and at most one torn at the end of its
last file; a restart starts a new file. Lines reach the disk within about a second (fdatasync in a
thread), which is what a power cut can lose. Recording stops while the disk is short of space, and
resumes when there is room again. Secrets are masked.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from qts import telemetry
from qts.domain import Clock, RefusedError, Secret
from qts.feed.calendar import SEOUL
from qts.feed.ingest import ENCODER, PatternRecord
from qts.machine import DiskGuard

MASK = "***"
_SYNC_NS = 1_000_000_000
_MIN_TIME = datetime.min.replace(tzinfo=UTC)
_NAME = re.compile(r"(\d{4}-\d\d-\d\d)\.\d+\.jsonl(?:\.zst)?", re.ASCII)

# A search for secrets takes 80 us per line. Venues send few sets of field names, so each set is
# checked once, and values are searched only if they contain one of these.
_HINTS = (":", "=", "bearer", "eyj", "/bot")
_MAX_FORMS = 256

log = telemetry.logger("feed")
_STOPPED = telemetry.gauge(
    "qts_recording_stopped", "1 while the disk is too full to record quotes, else 0."
)
_SKIPPED = telemetry.counter("qts_records_skipped_total", "quotes not recorded: the disk is full")


class Recorder:
    """Single writer of a folder; `write` is called on one thread."""

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        rotate_mb: float = 256,
        secrets: Iterable[Secret] = (),
        keep_days: int = 0,
        guard: DiskGuard | None = None,
    ) -> None:
        """Lock the folder; records are deleted after `keep_days`, with 0 never."""
        self._folder = folder
        self._clock = clock
        self._rotate_bytes = round(rotate_mb * 1_000_000)
        self._secrets = [secret.reveal().encode() for secret in secrets if secret]
        self._safe_forms: set[tuple[str, ...]] = set()
        self._file: int | None = None
        self._path = folder
        self._day = (_MIN_TIME, _MIN_TIME)
        self._bytes = self._synced_ns = 0
        self._keep_days = keep_days
        self._guard = guard
        self.written = self.lost = self.skipped = 0
        self.stopped = ""  # why, while the disk is short of space
        self._lock = _lock_folder(folder)
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="recorder")
        self._delete_old(clock.now().astimezone(SEOUL).date())
        for unfinished in sorted(folder.glob("*.jsonl")):
            self._disk.submit(compress, unfinished).add_done_callback(self._on_disk)

    def write(self, record: PatternRecord) -> None:
        if not self._has_space():
            return
        line = self._line(record)
        try:
            file = self._open(record.snapshot.meta.time)
            if os.write(file, line) != len(line):
                raise OSError(28, "No space left on device")
        except OSError as error:
            self.lost += 1
            self._truncate()
            if due := telemetry.log_every(10.0, "recorder"):
                log.error("record lost; write failed", error=error.strerror, **due)
            return
        self.written += 1
        self._bytes += len(line)
        now = self._clock.monotonic_ns()
        if now - self._synced_ns >= _SYNC_NS:
            self._synced_ns = now
            synced = self._disk.submit(os.fdatasync, file)  # one thread: runs before the close
            synced.add_done_callback(self._on_disk)

    def close(self) -> None:
        """Close and compress the file, and wait for the disk."""
        self._close()
        self._disk.shutdown()
        os.close(self._lock)

    def _has_space(self) -> bool:
        if self._guard is None or self._guard.check(self._clock.monotonic_ns()):
            if self.stopped:
                self.stopped = ""
                _STOPPED.set(0)
                log.info("recording resumed", skipped=self.skipped)
            return True
        self.skipped += 1
        _SKIPPED.inc()
        if not self.stopped:
            free, least = self._guard.free_bytes, self._guard.min_free_bytes
            self.stopped = f"{free // 10**6:,} MB free, feed.min_free_mb is {least // 10**6:,}"
            _STOPPED.set(1)
            log.error("recording stopped; the disk is short of space", disk=self.stopped)
            self._close()  # compressed, the file takes a tenth of the space
        return False

    def _delete_old(self, today: date) -> None:
        if self._keep_days:
            deleted = self._disk.submit(delete_old, self._folder, today, self._keep_days)
            deleted.add_done_callback(self._on_disk)

    def _open(self, time: datetime) -> int:
        day_start, day_end = self._day
        if (
            self._file is not None
            and day_start <= time < day_end
            and self._bytes < self._rotate_bytes
        ):
            return self._file
        self._close()
        midnight = datetime.combine(time.astimezone(SEOUL), clock_time(), SEOUL)
        if midnight != day_start:
            self._delete_old(midnight.date())
        self._path = self._next_path(midnight.date())
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._day, self._bytes = (midnight, midnight + timedelta(days=1)), 0
        return self._file

    def _truncate(self) -> None:
        """Remove a torn line; if that fails, leave it as the end of its file."""
        if self._file is None:
            return
        try:
            os.ftruncate(self._file, self._bytes)
        except OSError:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            self._disk.submit(_finish, file, self._path).add_done_callback(self._on_disk)

    def _on_disk(self, done: Future[None]) -> None:
        error = done.exception()
        if error is not None and (due := telemetry.log_every(10.0, "recorder's disk")):
            log.error("record sync failed; records may be lost", error=str(error), **due)

    def _next_path(self, day: date) -> Path:
        numbers = [int(path.name.split(".")[1]) for path in self._folder.glob(f"{day}.*.jsonl*")]
        return self._folder / f"{day}.{max(numbers, default=0) + 1:04}.jsonl"

    def _line(self, record: PatternRecord) -> bytes:
        """Encode the record; only the venue's message can hold secrets."""
        line = ENCODER.encode(record)
        if self._may_hold_secret(record.snapshot.observation.inputs.kis_raw):
            plain = msgspec.to_builtins(record)
            inputs = plain["snapshot"]["observation"]["inputs"]
            inputs["kis_raw"] = _masked(inputs["kis_raw"])
            line = ENCODER.encode(plain)
        for secret in self._secrets:
            if secret in line:
                line = line.replace(secret, MASK.encode())
        return line + b"\n"

    def _may_hold_secret(self, raw: dict[str, Any]) -> bool:
        form = tuple(raw)
        if form not in self._safe_forms:
            plain = dict.fromkeys(form, "x")
            if len(self._safe_forms) >= _MAX_FORMS or _masked(plain) != plain:
                return True
            self._safe_forms.add(form)
        try:
            values = "\n".join(raw.values()).lower()  # KIS sends strings only
        except TypeError:
            if any(isinstance(value, dict | list) for value in raw.values()):
                return True
            values = "\n".join(v for v in raw.values() if isinstance(v, str)).lower()
        return any(hint in values for hint in _HINTS)


def compress(path: Path) -> None:
    """Replace a closed file by a compressed copy, which is renamed once complete."""
    draft = path.with_name(path.name + ".draft")
    try:
        with path.open("rb") as plain, draft.open("wb") as packed:
            zstandard.ZstdCompressor(level=6).copy_stream(plain, packed)
            os.fchmod(packed.fileno(), 0o600)
            packed.flush()
            os.fsync(packed.fileno())
    except OSError:
        draft.unlink(missing_ok=True)  # a full disk: the plain file stays
        raise
    draft.rename(path.with_name(path.name + ".zst"))
    path.unlink()


def delete_old(folder: Path, today: date, keep_days: int) -> None:
    """Delete what is `keep_days` older than the newest day before today.

    Counted from what was recorded, a clock that jumps ahead deletes nothing on that day.
    """
    days = {path: day for path in folder.iterdir() if (day := day_of(path))}
    newest = max((day for day in days.values() if day < today), default=today)
    old = [path for path, day in days.items() if day <= newest - timedelta(days=keep_days)]
    for path in old:
        path.unlink(missing_ok=True)
    if old:
        log.info("old records deleted", files=len(old), keep_days=keep_days, newest=str(newest))


def day_of(path: Path) -> date | None:
    """Return the day of a recorded file, by its name."""
    name = _NAME.fullmatch(path.name)
    try:
        return date.fromisoformat(name.group(1)) if name else None
    except ValueError:
        return None


def _finish(file: int, path: Path) -> None:
    try:
        os.fdatasync(file)
    finally:
        os.close(file)
    compress(path)


def _lock_folder(folder: Path) -> int:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise RefusedError(
            f"feed.record_dir {folder} cannot be written: {error.strerror}; choose another"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise RefusedError(
            f"feed.record_dir {folder} is written by another process; choose another"
        ) from None
    for draft in folder.glob("*.draft"):
        draft.unlink()
    return lock


def _masked(value: Any, name: str = "") -> Any:
    """Return the value with everything masked that is named or looks like a secret."""
    if isinstance(value, dict):
        return {key: _masked(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, name) for item in value]
    if value is None or isinstance(value, bool):
        return value
    text = f"{name}={value}"
    return MASK if telemetry.redact_text(text) != text else value
