"""The budget's memory on disk: what was granted before a crash counts after it.

A record says how many requests have completed so far, and how many may have been granted before
the next record is written. It is written before the first of those leaves. A process that is
killed leaves the last record's allowance unexplained, and all of it counts as used at the next
start: the count after a crash is too high by a few, never too low.

    wall, monotonic, boot, completed, leased, checksum       48 bytes a record, appended

Within one boot the monotonic clock dates the records, and a changed wall clock moves nothing.
After a reboot the wall clock does; a moment in the future counts as now. Records reach the disk
itself about once a second, so after a reboot the budget adds `LOST_S` seconds' worth.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from qts.domain import Clock, OperationError, RefusedError
from qts.venues.ratelimit.limits import DAY_NS, SECOND_NS

LOST_S = 2
_SYNC_NS = SECOND_NS
_KEEP_NS = DAY_NS + 3600 * SECOND_NS
_BODY = struct.Struct("<qqQQQ")
_SIZE = _BODY.size + 8


class UsageRecord(NamedTuple):
    """Requests that completed by one moment."""

    wall_ns: int
    monotonic_ns: int
    boot: int
    requests: int


class UsageLog:
    """One file per key, held by one process at a time."""

    def __init__(self, path: Path, clock: Clock, boot: str | None = None) -> None:
        self._clock = clock
        known = boot_id() if boot is None else boot
        self._boot = _digest(known)
        self._synced_ns = 0
        self._syncing: Future[None] | None = None
        self._torn = False  # half a record may stand at the end
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _locked(path.with_name(path.name + ".lock"))
        try:
            records = list(_records(path))
            uses = self._uses(records)
            # Where the system does not name its boots, every start may follow a power cut.
            self.rebooted = bool(records) and not (known and records[-1][2] == self._boot)
            self._before = sum(use.requests for use in uses)
            self.past = [(self._age_ns(use), use.requests) for use in uses]
            self._file = self._rewrite(path, uses)
        except OSError as error:
            os.close(self._lock)
            raise _unwritten(error) from None
        except BaseException:
            os.close(self._lock)
            raise
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="budget-ledger")

    def lease(self, completed: int, leased: int) -> None:
        """Write, before they leave, that `leased` requests may go out; counted from the start.

        A disk that failed once to take what was written may say yes the next time and have lost
        it all the same: nothing more is granted.
        """
        synced = self._synced()
        monotonic = self._clock.monotonic_ns()
        record = _record(
            self._wall_ns(), monotonic, self._boot, self._before + completed, self._before + leased
        )
        try:
            if self._torn:
                self._mend()
            if os.write(self._file, record) != _SIZE:
                raise OSError(28, "No space left on device")
        except OSError as error:
            self._torn = True
            with suppress(OSError):  # tried again before the next record
                self._mend()
            raise _unwritten(error) from None
        if synced and monotonic - self._synced_ns >= _SYNC_NS:
            self._synced_ns = monotonic
            self._syncing = self._disk.submit(os.fdatasync, self._file)

    def close(self) -> None:
        self._disk.shutdown()
        os.close(self._file)
        os.close(self._lock)

    def _synced(self) -> bool:
        """Whether the last sync has ended; raises when it failed."""
        if self._syncing is None:
            return True
        if not self._syncing.done():
            return False
        lost = self._syncing.exception()
        if isinstance(lost, OSError):
            raise _unwritten(lost)
        return True

    def _mend(self) -> None:
        """Half a record would hide the next ones."""
        size = os.fstat(self._file).st_size
        os.ftruncate(self._file, size - size % _SIZE)
        self._torn = False

    def _uses(self, records: list[tuple[int, ...]]) -> list[UsageRecord]:
        """What completed by when; whatever is unexplained completed only now."""
        uses: list[UsageRecord] = []
        known = leased = 0
        for wall, monotonic, boot, completed, upto in records:
            if completed > known:
                uses.append(UsageRecord(wall, monotonic, boot, completed - known))
            known, leased = completed, max(upto, completed)
        uses = [use for use in uses if self._age_ns(use) <= _KEEP_NS]
        if leased > known:
            now = self._clock.monotonic_ns()
            uses.append(UsageRecord(self._wall_ns(), now, self._boot, leased - known))
        return uses

    def _rewrite(self, path: Path, uses: list[UsageRecord]) -> int:
        draft = path.with_name(path.name + ".draft")
        draft.unlink(missing_ok=True)
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        total = 0
        for use in uses:
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
    """Names this boot of the machine; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _locked(path: Path) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise RefusedError(
            f"{path}: another process uses this key, and one key has one budget; stop it first"
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


def _unwritten(error: OSError) -> OperationError:
    return OperationError(f"the request budget cannot be written down: {error.strerror}")
