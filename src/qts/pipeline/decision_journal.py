"""Journal of the inputs and results of every decision of a run, in order, for replay.

    portfolio  ticks; fills, owners and orders: numbered changes    ─┐
    strategy   its inputs (ticks, the portfolio after change n)      ├─▶ one file, frame by frame
    steps      their inputs and decisions; refusals of PreCheck      │
    gate       its risk snapshot and its answer                     ─┘

Ticks come from one thread, the other changes from others; views are taken on any. `append` never
blocks: a separate thread encodes and writes. A journal that cannot be written, has its full size
or finds too little disk space ends; trading continues.
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
from uuid import UUID

import msgspec

from qts import telemetry
from qts.domain import Instrument, OrderSnapshot, Position, RefusedError
from qts.machine import DiskGuard
from qts.pipeline.cycle import Decision
from qts.pipeline.steps import DecisionPolicy
from qts.pipeline.strategy_call import BarInput, Instructions, Moment, StrategyUpdate
from qts.pipeline.strategy_config import StrategyConfig
from qts.risk import OrderProposal, RiskLimits, RiskSnapshot
from qts.strategies import Signal

log = telemetry.logger("pipeline")

SUFFIX = ".journal"
MAGIC = b"qts journal 4\n"
_EARLIER = (
    b"qts journal 1\n",  # ticks and account changes were numbered together
    b"qts journal 2\n",  # open orders were not recorded
    b"qts journal 3\n",  # a class ran once, without a name of its own
)
_LENGTH = struct.Struct("<I")
_MAX_ENTRY_BYTES = 64 * 2**20


class JournalHeader(msgspec.Struct, frozen=True, tag="h", array_like=True):
    """Settings of the run: the first entry."""

    began: datetime
    strategies: tuple[StrategyConfig, ...]
    limits: RiskLimits
    accounts: int = 1
    account_keys: tuple[str, ...] = ()
    settings: dict[str, Any] = {}  # of the backtest of this run
    sources: dict[str, str] = {}  # by instance, a digest of the file of its class


class TickEntry(msgspec.Struct, frozen=True, tag="t", array_like=True):
    symbol: str
    price: float
    volume: float
    bid: float
    ask: float
    at: float
    venue_at: float = 0.0  # journals of earlier versions have none


class FillEntry(msgspec.Struct, frozen=True, tag="f", array_like=True):
    """Position and cash after the fill."""

    symbol: str
    quantity: Decimal
    average_price: Decimal
    cash: Decimal
    account: int = 0  # its number in the run


class StartEntry(msgspec.Struct, frozen=True, tag="b", array_like=True):
    cash: Decimal
    positions: tuple[Position, ...]
    account: int = 0


class OwnerEntry(msgspec.Struct, frozen=True, tag="o", array_like=True):
    symbol: str
    strategy_key: str
    account: int = 0


class OrderEntry(msgspec.Struct, frozen=True, tag="i", array_like=True):
    """An order of a strategy after a change; `is_open`: it may still be filled."""

    order: OrderSnapshot
    is_open: bool
    account: int = 0


class ParamsEntry(msgspec.Struct, frozen=True, tag="p", array_like=True):
    strategy_key: str
    params: dict[str, Any]


class RestartEntry(msgspec.Struct, frozen=True, tag="n", array_like=True):
    """The strategy's process ended, and its state with it."""

    strategy_key: str


class StateEntry(msgspec.Struct, frozen=True, tag="s", array_like=True):
    """The stored state that a strategy, or its new process, continues with."""

    strategy_key: str
    state: bytes


class StrategyCallEntry(msgspec.Struct, frozen=True, tag="c", array_like=True):
    """Calls of a strategy with one view: its updates, its bars and ticks, then evaluations.

    A `moment` is a call of on_start, on_timer or on_stop, and the only one of its entry.
    """

    strategy_key: str
    version: int
    now: datetime
    ticks: tuple[tuple[Any, ...], ...]  # fields of each Tick, in their order
    on_tick: Instructions  # and on_bar
    evaluated: tuple[Instructions, ...]
    updates: tuple[StrategyUpdate, ...] = ()
    on_update: Instructions = ()
    bars: tuple[BarInput, ...] = ()
    moment: Moment | None = None


class ExtractEntry(msgspec.Struct, frozen=True, tag="x", array_like=True):
    number: int
    strategy_key: str
    started_at: datetime
    version: int
    now: datetime
    account: int = 0


class DecideEntry(msgspec.Struct, frozen=True, tag="d", array_like=True):
    number: int
    version: int
    signals: tuple[Signal, ...]
    policy: DecisionPolicy
    decisions: tuple[Decision, ...]
    code: str  # of the step that failed
    instruments: tuple[Instrument, ...] | None = None  # of the signals; None: not recorded


class GateEntry(msgspec.Struct, frozen=True, tag="g", array_like=True):
    proposal: OrderProposal
    snapshot: RiskSnapshot
    codes: tuple[str, ...]  # none: approved


class PreCheckEntry(msgspec.Struct, frozen=True, tag="r", array_like=True):
    """Refusal of a proposal by what the cache held."""

    signal_id: UUID
    codes: tuple[str, ...]


Change = TickEntry | FillEntry | StartEntry | OwnerEntry | OrderEntry
Entry = (
    JournalHeader
    | Change
    | ParamsEntry
    | RestartEntry
    | StateEntry
    | StrategyCallEntry
    | ExtractEntry
    | DecideEntry
    | GateEntry
    | PreCheckEntry
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
            magic = file.read(len(MAGIC))
            if magic in _EARLIER:
                raise RefusedError(
                    f"{path} was written by an earlier version of QTS; that version can replay it"
                )
            if magic != MAGIC:
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
