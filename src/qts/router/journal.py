"""Journal of the router: every message that passed Stage 1, on disk; its reader and its replay.

A file is a header and blocks; a block holds messages, their CRC-32C and the CRC-32C of its header
(`native`, journal.hpp). A file that ends within a block has lost only that block, which the reader
reports as a `TornTail`. Damage anywhere else raises an error.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from qts import _native
from qts.domain import OperationError, QtsError, RefusedError
from qts.router.handlers import MESSAGE, Messages

if TYPE_CHECKING:
    from qts.router.progress import RunSnapshot
    from qts.router.report import RouterReport
    from qts.router.router import Router

Fsync = Literal["never", "interval", "always"]

_HEADER = struct.Struct("<8sI52x")
_BLOCK = struct.Struct("<4sIII")
_CHECKED = _BLOCK.size - 4  # bytes of a block's header that its CRC covers
_MAGIC, _BLOCK_MAGIC = b"QTSJRNL1", b"QBLK"
_MAX_BLOCK = 1024
_PUSH_SECONDS = 0.2  # latency of the end of a run


class JournalConfig(msgspec.Struct, frozen=True):
    """Path of a journal, and when it is synced to disk."""

    path: Path
    fsync: Fsync = "interval"
    interval_ms: int = 100

    def files(self, stage1_routers: int) -> list[Path]:
        """Return a file for each Stage 1 router: journal, journal.1, journal.2, ..."""
        return [self.path, *(_part(self.path, number) for number in range(1, stage1_routers))]

    def attach(self, native: _native.Router, stage1_routers: int) -> None:
        """Create the files; raise RefusedError if one exists or cannot be written."""
        files = self.files(stage1_routers)
        for file in files:
            if os.path.lexists(file):
                raise RefusedError(f"journal {file} exists and is never written over")
        for number, file in enumerate(files):
            try:
                native.set_journal(number, os.fspath(file), self.fsync, self.interval_ms)
            except FileExistsError:
                raise RefusedError(f"journal {file} exists and is never written over") from None
            except OSError as error:
                raise RefusedError(f"cannot write journal {file}: {error.strerror}") from None


class TornTail(msgspec.Struct, frozen=True):
    """Incomplete block at the end of a file that was cut off while being written."""

    offset: int
    bytes: int


class Contents(msgspec.Struct, frozen=True):
    """Summary of a verified journal file."""

    path: Path
    messages: int
    types: frozenset[int]
    torn: TornTail | None


class JournalReplay:
    """Run for `watch_run` over a router that is live, keeps numbers, and is not started.

    verified ── start ──▶ feeding ── end of the last file, or stop ──▶ draining ──▶ report

    The router gets the same messages, numbers and order as in the journal, without pauses. Every
    file is verified before anything is sent, so a damaged journal is never half replayed.
    """

    def __init__(self, router: Router, path: Path) -> None:
        if not router.options.keep_numbers:
            raise RefusedError(
                "a replay needs a router with live=True and Options(keep_numbers=True)"
            )
        self._router = router
        self._files = [verify_journal(part) for part in journal_files(path)]
        for file in self._files:
            if unrouted := file.types - router.scenario.stage1.keys():
                raise RefusedError(
                    f"journal {file.path} holds messages of type {min(unrouted)}, which no rule of"
                    f" scenario {router.scenario.scenario} routes"
                )
        self._ending = threading.Event()
        self._failure: str | None = None
        self._feeder = threading.Thread(target=self._feed, name="qts replay", daemon=True)

    @property
    def messages(self) -> int:
        return sum(file.messages for file in self._files)

    def run(self) -> RouterReport:
        """Start, run to the end and report."""
        self.start()
        while not self.wait(_PUSH_SECONDS):
            pass
        return self.report

    def start(self) -> None:
        self._router.start()
        self._feeder.start()

    def snapshot(self) -> RunSnapshot:
        return self._router.snapshot()

    def stop(self) -> None:
        self._ending.set()
        self._router.stop()

    def abort(self) -> None:
        self._ending.set()
        self._router.abort()

    def wait(self, timeout: float) -> bool:
        if not self._router.wait(timeout):
            return False
        self._ending.set()
        self._feeder.join()
        return True

    @property
    def report(self) -> RouterReport:
        self.abort()
        self._feeder.join()
        report = self._router.report
        failed = () if self._failure is None else (self._failure,)
        return msgspec.structs.replace(
            report,
            offered=self.messages,
            failures=report.failures + failed,
            notes=(*self._notes(report), *report.notes),
        )

    def _feed(self) -> None:
        try:
            for number, file in enumerate(self._files):
                self._feed_file(number % self._router.scenario.stage1_routers, file)
        except QtsError as error:  # the file changed after it was verified
            self._failure = str(error)
        finally:
            self._router.stop()

    def _feed_file(self, source: int, file: Contents) -> None:
        for block in read_journal(file.path):
            if isinstance(block, TornTail):
                return
            sent = 0
            while sent < len(block):
                if self._ending.is_set():
                    return
                sent += self._router.push_many(block[sent:], source=source, timeout=_PUSH_SECONDS)

    def _notes(self, report: RouterReport) -> Iterator[str]:
        for file in self._files:
            yield f"replayed {file.path}: {file.messages:,} messages"
            if file.torn is not None:
                yield (
                    f"the end of {file.path} is torn: {file.torn.bytes:,} bytes from byte"
                    f" {file.torn.offset:,} on are part of a block and were skipped"
                )
        if report.produced < self.messages:
            yield f"{self.messages - report.produced:,} messages of the journal were never sent"


def journal_files(path: Path) -> list[Path]:
    """Return the files of a journal: path, path.1, path.2, ... as far as they exist."""
    found = [path]
    while (more := _part(path, len(found))).is_file():
        found.append(more)
    return found


def verify_journal(path: Path) -> Contents:
    """Read a whole journal file and return its summary; raise OperationError if it is damaged."""
    count, types, torn = 0, set[int](), None
    for block in read_journal(path):
        if isinstance(block, TornTail):
            torn = block
        else:
            count += len(block)
            types.update(np.unique(block["msg_type"]).tolist())
    return Contents(path, count, frozenset(types), torn)


def read_journal(path: Path) -> Iterator[Messages | TornTail]:
    """Yield the messages of a journal file block by block, and a torn tail at the end."""
    if path.exists() and not path.is_file():
        raise RefusedError(f"cannot read journal {path}: not a regular file")
    try:
        with path.open("rb") as file:
            yield from _blocks(path, file)
    except OSError as error:
        raise RefusedError(f"cannot read journal {path}: {error.strerror}") from None


def _part(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _blocks(path: Path, file: Any) -> Iterator[Messages | TornTail]:
    head = file.read(_HEADER.size)
    if len(head) < _HEADER.size or _HEADER.unpack(head) != (_MAGIC, MESSAGE.itemsize):
        raise RefusedError(f"{path} is not a journal of this version of QTS")
    size = os.fstat(file.fileno()).st_size
    while (offset := file.tell()) < size:
        header = file.read(_BLOCK.size)
        if len(header) < _BLOCK.size:
            yield TornTail(offset, size - offset)
            return
        magic, count, crc, header_crc = _BLOCK.unpack(header)
        valid = magic == _BLOCK_MAGIC and _native.crc32c(header[:_CHECKED]) == header_crc
        # The count decides how much is read, so it is used only if its checksum matches.
        body = file.read(count * MESSAGE.itemsize) if valid and count <= _MAX_BLOCK else b""
        if valid and len(body) < count * MESSAGE.itemsize and file.tell() >= size:
            yield TornTail(offset, size - offset)
            return
        if not valid or _native.crc32c(body) != crc:
            raise OperationError(
                f"journal {path} is damaged at byte {offset}: its checksum does not match"
            )
        yield np.frombuffer(body, MESSAGE)
