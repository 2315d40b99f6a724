"""Journal of the inputs and results of every decision of a run, in order, for replay.

    portfolio  ticks, fills, owners: numbered changes               ─┐
    strategy   its inputs (ticks, the portfolio after change n)      ├─▶ one file, frame by frame
    steps      their inputs and decisions                            │
    gate       its risk snapshot and its answer                     ─┘

Changes come from one thread; views are taken on any. `append` never blocks: a separate thread
encodes and writes. A journal that cannot be written, has its full size or finds too little disk
space ends; trading continues.
"""

from __future__ import annotations

import queue
import struct
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import msgspec

from qts import telemetry
from qts.domain import Position, RefusedError, Tick
from qts.machine import DiskGuard
from qts.pipeline.cycle import Decision
from qts.pipeline.decide import DecisionPolicy
from qts.pipeline.process_protocol import Signals
from qts.risk import OrderProposal, RiskLimits, RiskSnapshot

log = telemetry.logger("pipeline")

SUFFIX = ".journal"
MAGIC = b"qts journal 1\n"
_LENGTH = struct.Struct("<I")
_MAX_ENTRY_BYTES = 64 * 2**20


class JournalHeader(msgspec.Struct, frozen=True, tag="h", array_like=True):
    """Settings of the run: the first entry."""

    began: datetime
    strategies: dict[str, dict[str, str]]  # module:Class to its parameters as written
    limits: RiskLimits


class TickEntry(msgspec.Struct, frozen=True, tag="t", array_like=True):
    symbol: str
    price: float
    volume: float
    bid: float
    ask: float
    at: float


class FillEntry(msgspec.Struct, frozen=True, tag="f", array_like=True):
    """Position and cash after the fill."""

    symbol: str
    quantity: Decimal
    average_price: Decimal
    cash: Decimal


class StartEntry(msgspec.Struct, frozen=True, tag="b", array_like=True):
    cash: Decimal
    positions: tuple[Position, ...]


class OwnerEntry(msgspec.Struct, frozen=True, tag="o", array_like=True):
    symbol: str
    strategy_key: str


class ParamsEntry(msgspec.Struct, frozen=True, tag="p", array_like=True):
    strategy_key: str
    params: dict[str, Any]


class RestartEntry(msgspec.Struct, frozen=True, tag="n", array_like=True):
    """The strategy's process ended, and its state with it."""

    strategy_key: str


class StrategyCallEntry(msgspec.Struct, frozen=True, tag="c", array_like=True):
    """Calls of a strategy with one view: on_tick for each tick, then evaluations."""

    strategy_key: str
    version: int
    now: datetime
    ticks: tuple[Tick, ...]
    on_tick: Signals
    evaluated: tuple[Signals, ...]


class ExtractEntry(msgspec.Struct, frozen=True, tag="x", array_like=True):
    number: int
    strategy_key: str
    started_at: datetime
    version: int
    now: datetime


class DecideEntry(msgspec.Struct, frozen=True, tag="d", array_like=True):
    number: int
    version: int
    signals: Signals
    policy: DecisionPolicy
    decisions: tuple[Decision, ...]
    code: str  # of the step that failed


class GateEntry(msgspec.Struct, frozen=True, tag="g", array_like=True):
    proposal: OrderProposal
    snapshot: RiskSnapshot
    codes: tuple[str, ...]  # none: approved


Change = TickEntry | FillEntry | StartEntry | OwnerEntry
Entry = (
    JournalHeader
    | Change
    | ParamsEntry
    | RestartEntry
    | StrategyCallEntry
    | ExtractEntry
    | DecideEntry
    | GateEntry
)
_encoder = msgspec.msgpack.Encoder(enc_hook=repr)
_decoder: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)
encode = _encoder.encode


class DecisionJournal:
    """Context manager; `append` may be called from any thread."""

    def __init__(self, path: Path, header: JournalHeader, max_bytes: int | None = None) -> None:
        self.path = path
        self._header = header
        self._max_bytes = max_bytes
        self._guard = DiskGuard(path.parent)
        self._entries: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._broken = False
        self._thread = threading.Thread(target=self._write, name="qts-journal", daemon=True)

    def append(self, entry: Entry) -> None:
        if not self._broken:
            self._entries.put(entry)

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file: BinaryIO = self.path.open("xb")
            self._file.write(MAGIC)
        except OSError as error:
            raise RefusedError(
                f"the journal {self.path} cannot be created: {error.strerror}"
            ) from None
        self._entries.put(self._header)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._entries.put(None)
        self._thread.join()
        self._file.close()

    def _write(self) -> None:
        try:
            while (entry := self._entries.get()) is not None:
                data = encode(entry)
                if self._is_full(_LENGTH.size + len(data)):
                    break
                self._file.write(_LENGTH.pack(len(data)) + data)
                if self._entries.empty():
                    self._file.flush()
            self._file.flush()
        except (OSError, TypeError, ValueError, OverflowError) as error:
            self._broken = True
            log.error("journal write failed; journal closed", error=repr(error))

    def _is_full(self, more: int) -> bool:
        """Return whether the journal must end before `more` bytes; log why."""
        size = self._file.tell()
        if self._max_bytes is not None and size + more > self._max_bytes:
            log.warning("journal has its full size; journal closed", bytes=size)
        elif not self._guard.check(time.monotonic_ns()):
            free = self._guard.free_bytes
            log.warning("disk space is short; journal closed", bytes=size, free_bytes=free)
        else:
            return False
        self._broken = True
        return True


def read_journal(path: Path) -> Iterator[Entry]:
    """Yield every entry; a torn last one, of a killed run, is skipped."""
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise RefusedError(f"{path} is not a decision journal")
            while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
                (length,) = _LENGTH.unpack(head)
                if length > _MAX_ENTRY_BYTES:
                    raise RefusedError(f"{path} is damaged: an entry of {length} bytes")
                data = file.read(length)
                if len(data) < length:
                    return
                yield _decoder.decode(data)
    except OSError as error:
        raise RefusedError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RefusedError(f"{path} is damaged: {error}") from None
