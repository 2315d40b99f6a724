"""The router's journal: what passed Stage 1, on disk, and its way back in.

A file is a header and blocks; every block holds messages, their CRC-32C and one of its own header
(`native`, journal.hpp). A file cut off in its last block has lost that block only, and the reader
says so. Damage anywhere else is refused.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from qts import _native
from qts.domain import OperationError, RefusedError
from qts.router.handlers import MESSAGE, Messages

Fsync = Literal["never", "interval", "always"]

_HEADER = struct.Struct("<8sI52x")
_BLOCK = struct.Struct("<4sIII")
_CHECKED = _BLOCK.size - 4  # of a block's header, by the number after it
_MAGIC, _BLOCK_MAGIC = b"QTSJRNL1", b"QBLK"
_MOST_IN_BLOCK = 1024


class JournalConfig(msgspec.Struct, frozen=True):
    """Where to write, and when what was written is forced onto the disk."""

    path: Path
    fsync: Fsync = "interval"
    interval_ms: int = 100

    def files(self, stage1_routers: int) -> list[Path]:
        """One file for each Stage 1 router: journal, journal.1, journal.2, ..."""
        more = [_part(self.path, number) for number in range(1, stage1_routers)]
        return [self.path, *more]

    def attach(self, native: _native.Router, stage1_routers: int) -> None:
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
    """The end of a file that was cut off while being written."""

    offset: int
    bytes: int


class Contents(msgspec.Struct, frozen=True):
    """What a journal file that was read to its end holds."""

    path: Path
    messages: int
    types: frozenset[int]
    torn: TornTail | None


def journal_files(path: Path) -> list[Path]:
    """The files of a journal: path, path.1, path.2, ... as far as they exist."""
    found = [path]
    while (more := _part(path, len(found))).is_file():
        found.append(more)
    return found


def verify_journal(path: Path) -> Contents:
    """Read a journal file whole; damage is refused here, before anything is done with it."""
    count, types, torn = 0, set[int](), None
    for block in read_journal(path):
        if isinstance(block, TornTail):
            torn = block
        else:
            count += len(block)
            types.update(np.unique(block["msg_type"]).tolist())
    return Contents(path, count, frozenset(types), torn)


def read_journal(path: Path) -> Iterator[Messages | TornTail]:
    """The messages of a journal file, block by block; a torn end is the last thing told."""
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
        sound = magic == _BLOCK_MAGIC and _native.crc32c(header[:_CHECKED]) == header_crc
        # The count is believed only when its checksum holds: it decides what is skipped.
        body = file.read(count * MESSAGE.itemsize) if sound and count <= _MOST_IN_BLOCK else b""
        if sound and len(body) < count * MESSAGE.itemsize and file.tell() >= size:
            yield TornTail(offset, size - offset)
            return
        if not sound or _native.crc32c(body) != crc:
            raise OperationError(
                f"journal {path} is damaged at byte {offset}: its checksum does not hold"
            )
        yield np.frombuffer(body, MESSAGE)
