"""Requests of one key granted so far: in sliding windows, and on disk for the next start.

One log of completion times serves all windows: a window of limit L has capacity when the request
L - in_flight places back in the log is older than the window. That is O(1) per window. Lower
priorities have lower limits (`ceilings`), so that higher ones find capacity.

Requests granted before a crash count after it. A record on disk holds the number of requests
completed so far and the lease: how many may be granted before the next record. It is written before
the first of those is sent. After a kill the whole open lease counts as used at the next start: the
count is too high by a few, never too low.

    wall, monotonic, boot, completed, leased, checksum       48 bytes a record, appended

Within one boot the monotonic clock dates the records, so setting the wall clock has no effect.
After a reboot the wall clock dates them; a time in the future counts as now. Records are synced
about once a second, so after a reboot the limiter adds `UNSYNCED_S` seconds of requests.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta, timezone
from pathlib import Path
from typing import NamedTuple

from qts.domain import Clock, OperationError, RefusedError
from qts.venues.config import (
    DAY_NS,
    MINUTE_NS,
    SECOND_NS,
    RateLimitConfig,
    RequestPriority,
    ceilings,
)

NEVER = 1 << 62
SEOUL = timezone(timedelta(hours=9))


class SlidingWindows:
    """Pure counter of granted and completed requests; never waits."""

    def __init__(self, limits: RateLimitConfig, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._size = max(limits.per_second, limits.per_minute, limits.per_day)
        self._log = array("q", bytes(8 * self._size))
        self.done = self.in_flight = 0
        self._day_used, self._day_ends_ns = 0, self._next_midnight_ns()
        self._watched_per_s = 0.0
        self.set_rate(limits.per_second)

    def reserve_watched(self, per_second: float) -> None:
        """Set how much bursts and scans leave to watched symbols."""
        self._watched_per_s = per_second
        self.set_rate(self._per_second)

    def set_rate(self, per_second: int) -> None:
        """Set the limit of the one-second window, which throttling may lower."""
        limits, self._per_second = self._limits, per_second
        spans = [(per_second, SECOND_NS), (limits.per_minute, MINUTE_NS)]
        self._calendar: tuple[int, ...] | None = None
        if limits.day == "rolling":
            spans.append((limits.per_day, DAY_NS))
        else:
            self._calendar = ceilings(limits, limits.per_day, DAY_NS)
        watched = self._watched_per_s
        each = [(ceilings(limits, limit, span, watched), span) for limit, span in spans]
        self._windows = [[(tops[p], span) for tops, span in each] for p in RequestPriority]

    def opens_ns(self, priority: int, now: int) -> int:
        """Return when all windows have capacity; NEVER: not before a request completes."""
        opens = now
        done, size, log, in_flight = self.done, self._size, self._log, self.in_flight
        for ceiling, span in self._windows[priority]:
            back = ceiling - in_flight
            if back <= 0:
                return NEVER
            if back <= done:
                free = log[(done - back) % size] + span
                if free >= opens:
                    opens = free + 1
        if self._calendar is not None:
            self._roll_day(now)
            if self._day_used + in_flight >= self._calendar[priority]:
                opens = max(opens, self._day_ends_ns)
        return opens

    def complete(self, now: int) -> None:
        """Move one request from in flight to the log: its reply came, or never will."""
        self._log[self.done % self._size] = now
        self.done += 1
        self.in_flight -= 1
        self._day_used += 1

    def used(self, span_ns: int, now: int) -> int:
        return self._count_since(now - span_ns) + self.in_flight

    def remaining(self, now: int) -> dict[str, int]:
        """Return the requests left of each window; changes nothing, so any thread may call it."""
        if self._calendar is None:
            day_used = self._count_since(now - DAY_NS)
        else:
            day_used = self._day_used if now < self._day_ends_ns else 0
        used = {
            "second": (self._per_second, self._count_since(now - SECOND_NS)),
            "minute": (self._limits.per_minute, self._count_since(now - MINUTE_NS)),
            "day": (self._limits.per_day, day_used),
        }
        return {name: max(0, top - done - self.in_flight) for name, (top, done) in used.items()}

    def remaining_within(self, seconds: float) -> int:
        """Return how many requests the day allows in the next `seconds`."""
        now = self._clock.monotonic_ns()
        if self._calendar is not None:
            self._roll_day(now)
            used = self._day_used
        else:
            used = self._count_since(now + round(seconds * 1e9) - DAY_NS)
        return max(0, self._limits.per_day - used - self.in_flight)

    def restore(self, history: Iterable[tuple[int, int]]) -> None:
        """Count requests of earlier processes, given as (age in ns, requests)."""
        now = self._clock.monotonic_ns()
        midnight_age = now - (self._day_ends_ns - DAY_NS)
        for age, count in sorted(history, reverse=True):
            for _ in range(min(count, self._size)):
                self._log[self.done % self._size] = now - age
                self.done += 1
            self._day_used += count if age <= midnight_age else 0

    def _count_since(self, moment: int) -> int:
        """Return the completions after a moment, by binary search."""
        low, high = max(0, self.done - self._size), self.done
        while low < high:
            middle = (low + high) // 2
            if self._log[middle % self._size] < moment:
                low = middle + 1
            else:
                high = middle
        return self.done - low

    def _roll_day(self, now: int) -> None:
        if now >= self._day_ends_ns:
            self._day_used = 0
            self._day_ends_ns = self._next_midnight_ns()

    def _next_midnight_ns(self) -> int:
        """Return midnight on the monotonic clock: setting the wall clock must not add a quota."""
        wall = self._clock.now().astimezone(SEOUL)
        passed = timedelta(hours=wall.hour, minutes=wall.minute, seconds=wall.second)
        left = timedelta(days=1) - passed - timedelta(microseconds=wall.microsecond)
        return self._clock.monotonic_ns() + round(left.total_seconds() * 1e9)


UNSYNCED_S = 2
_SYNC_NS = SECOND_NS
_RETENTION_NS = DAY_NS + 3600 * SECOND_NS
_BODY = struct.Struct("<qqQQQ")
_SIZE = _BODY.size + 8


class UsageRecord(NamedTuple):
    """Requests that had completed at one moment."""

    wall_ns: int
    monotonic_ns: int
    boot: int
    requests: int


class UsageLog:
    """One file per key, locked by one process at a time."""

    def __init__(self, path: Path, clock: Clock, boot: str | None = None) -> None:
        self._clock = clock
        boot_name = boot_id() if boot is None else boot
        self._boot = _digest(boot_name)
        self._synced_ns = 0
        self._syncing: Future[None] | None = None
        self._torn = False  # the file may end with half a record
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _lock_file(path.with_name(path.name + ".lock"))
        try:
            records = list(_records(path))
            usage = self._usage(records)
            # Without a boot id every start may follow a power cut.
            self.rebooted = bool(records) and not (boot_name and records[-1][2] == self._boot)
            self._before = sum(use.requests for use in usage)
            self.history = [(self._age_ns(use), use.requests) for use in usage]
            self._file = self._rewrite(path, usage)
        except OSError as error:
            os.close(self._lock)
            raise _write_error(error) from None
        except BaseException:
            os.close(self._lock)
            raise
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="usage-log")

    def lease(self, completed: int, leased: int) -> None:
        """Write, before they are sent, that up to `leased` requests in total may be granted.

        Raises OperationError after any failed sync: a later sync may succeed although the data
        is lost.
        """
        synced = self._synced()
        monotonic = self._clock.monotonic_ns()
        record = _record(
            self._wall_ns(), monotonic, self._boot, self._before + completed, self._before + leased
        )
        try:
            if self._torn:
                self._truncate_torn()
            if os.write(self._file, record) != _SIZE:
                raise OSError(28, "No space left on device")
        except OSError as error:
            self._torn = True
            with suppress(OSError):  # retried before the next record
                self._truncate_torn()
            raise _write_error(error) from None
        if synced and monotonic - self._synced_ns >= _SYNC_NS:
            self._synced_ns = monotonic
            self._syncing = self._disk.submit(os.fdatasync, self._file)

    def close(self) -> None:
        self._disk.shutdown()
        os.close(self._file)
        os.close(self._lock)

    def _synced(self) -> bool:
        """Return whether the last sync has finished; raise OperationError if it failed."""
        if self._syncing is None:
            return True
        if not self._syncing.done():
            return False
        error = self._syncing.exception()
        if isinstance(error, OSError):
            raise _write_error(error)
        return True

    def _truncate_torn(self) -> None:
        """Cut off half a record: it would misalign the next ones."""
        size = os.fstat(self._file).st_size
        os.ftruncate(self._file, size - size % _SIZE)
        self._torn = False

    def _usage(self, records: list[tuple[int, ...]]) -> list[UsageRecord]:
        """Return when how many requests completed; an open lease counts as completed now."""
        usage: list[UsageRecord] = []
        known = leased = 0
        for wall, monotonic, boot, completed, upto in records:
            if completed > known:
                usage.append(UsageRecord(wall, monotonic, boot, completed - known))
            known, leased = completed, max(upto, completed)
        usage = [use for use in usage if self._age_ns(use) <= _RETENTION_NS]
        if leased > known:
            now = self._clock.monotonic_ns()
            usage.append(UsageRecord(self._wall_ns(), now, self._boot, leased - known))
        return usage

    def _rewrite(self, path: Path, usage: list[UsageRecord]) -> int:
        draft = path.with_name(path.name + ".draft")
        draft.unlink(missing_ok=True)
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        total = 0
        for use in usage:
            total += use.requests
            os.write(file, _record(use.wall_ns, use.monotonic_ns, use.boot, total, total))
        os.fsync(file)
        draft.rename(path)
        return file

    def _age_ns(self, use: UsageRecord) -> int:
        if use.boot == self._boot:
            return max(0, self._clock.monotonic_ns() - use.monotonic_ns)
        return max(0, self._wall_ns() - use.wall_ns)

    def _wall_ns(self) -> int:
        return round(self._clock.now().timestamp() * 1e9)


def boot_id() -> str:
    """Return the id of this boot of the machine; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _lock_file(path: Path) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise RefusedError(
            f"{path}: another process uses this key, and rate limits are per key; stop it first"
        ) from None
    return file


def _records(path: Path) -> Iterator[tuple[int, ...]]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    for start in range(0, len(data) - _SIZE + 1, _SIZE):
        body, check = data[start : start + _BODY.size], data[start + _BODY.size : start + _SIZE]
        if check == _checksum(body):
            yield _BODY.unpack(body)


def _record(wall: int, monotonic: int, boot: int, completed: int, leased: int) -> bytes:
    body = _BODY.pack(wall, monotonic, boot, completed, leased)
    return body + _checksum(body)


def _checksum(body: bytes) -> bytes:
    return struct.pack("<Q", zlib.crc32(body))


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _write_error(error: OSError) -> OperationError:
    return OperationError(f"cannot write the usage log of the rate limiter: {error.strerror}")
