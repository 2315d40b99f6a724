"""The router's journal: what passed Stage 1, on disk, and its way back in.

A file is a header and blocks; every block holds messages and their CRC-32C (`native`, journal.hpp).
A file cut off in its last block has lost that block only, and the reader says so. Damage anywhere
else is refused.
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
from qts.domain import Failed, Refused
from qts.router.handlers import MESSAGE, Messages

_HEADER = struct.Struct("<8sI52x")
_BLOCK = struct.Struct("<4sIII")
_MAGIC, _BLOCK_MAGIC = b"QTSJRNL1", b"QBLK"


class JournalConfig(msgspec.Struct, frozen=True):
    """Where to write, and when what was written is forced onto the disk."""

    path: Path
    fsync: Literal["never", "interval", "always"] = "interval"
    interval_ms: int = 100

    def files(self, stage1_routers: int) -> list[Path]:
        """One file for each Stage 1 router: journal, journal.1, journal.2, ..."""
        more = [self.path.with_name(f"{self.path.name}.{n}") for n in range(1, stage1_routers)]
        return [self.path, *more]

    def attach(self, native: _native.Router, stage1_routers: int) -> None:
        for number, file in enumerate(self.files(stage1_routers)):
            try:
                native.set_journal(number, os.fspath(file), self.fsync, self.interval_ms)
            except FileExistsError:
                raise Refused(f"journal {file} exists and is never written over") from None
            except OSError as error:
                raise Refused(f"cannot write journal {file}: {error.strerror}") from None


class Torn(msgspec.Struct, frozen=True):
    """The end of a file that was cut off while being written."""

    offset: int
    bytes: int


def read(path: Path) -> Iterator[Messages | Torn]:
    """The messages of a journal, block by block; a torn end is the last thing told."""
    try:
        with path.open("rb") as file:
            yield from _blocks(path, file)
    except OSError as error:
        raise Refused(f"cannot read journal {path}: {error.strerror}") from None


def _blocks(path: Path, file: Any) -> Iterator[Messages | Torn]:
    head = file.read(_HEADER.size)
    if len(head) < _HEADER.size or _HEADER.unpack(head) != (_MAGIC, MESSAGE.itemsize):
        raise Refused(f"{path} is not a journal of this version of QTS")
    size = os.fstat(file.fileno()).st_size
    while (offset := file.tell()) < size:
        header = file.read(_BLOCK.size)
        if len(header) < _BLOCK.size:
            yield Torn(offset, size - offset)
            return
        magic, count, crc, _ = _BLOCK.unpack(header)
        body = file.read(count * MESSAGE.itemsize) if magic == _BLOCK_MAGIC else b""
        whole = magic == _BLOCK_MAGIC and len(body) == count * MESSAGE.itemsize
        if whole and _native.crc32c(body) == crc:
            yield np.frombuffer(body, MESSAGE)
        elif magic == _BLOCK_MAGIC and not whole:
            yield Torn(offset, size - offset)
            return
        else:
            raise Failed(f"journal {path} is damaged at byte {offset}: its checksum does not hold")
