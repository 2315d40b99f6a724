"""Instruments of the venues, in PostgreSQL and in a catalogue file beside the data.

They are refreshed at the start if the stored ones are old, then daily before the open:

start ──▶ stored rows ──due──▶ the venue's lists ──▶ stored ──▶ Instruments replaced
              │                      └─ cannot be had ──▶ the stored rows stay; retried
              └─ none, and no list ──▶ every symbol is unknown: no entries, exits only
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from qts import telemetry
from qts.database import Database, Row
from qts.domain import (
    Clock,
    Instrument,
    Instruments,
    OperationError,
    RefusedError,
    UnreachableError,
)
from qts.feed.calendar import SEOUL
from qts.venues import InstrumentSource

CATALOGUE = "instruments.json"
_SIMULATED_DAYS = 30  # how long unlisted instruments of a simulator are kept

_SAVE = """
INSERT INTO instrument AS i (venue, environment, symbol, market, board, name, name_en, currency,
       class, tick_table, lot, min_order_value, session, sale_tax, base_price, listed_shares,
       halted, administrative, liquidation, caution, first_seen_at, last_seen_at)
SELECT $1, $2, r.symbol, r.market, r.board, r.name, r.name_en, r.currency, r.class, r.tick_table,
       r.lot, r.min_order_value, r.session, r.sale_tax, r.base_price, r.listed_shares, r.halted,
       r.administrative, r.liquidation, r.caution, $3, $3
  FROM jsonb_to_recordset($4::text::jsonb) AS r(symbol text, market text, board text, name text,
       name_en text, currency text, class text, tick_table text, lot numeric,
       min_order_value numeric, session text, sale_tax numeric, base_price numeric,
       listed_shares bigint, halted boolean, administrative boolean, liquidation boolean,
       caution boolean)
    ON CONFLICT (venue, environment, symbol) DO UPDATE SET market = excluded.market,
       board = excluded.board, name = excluded.name, name_en = excluded.name_en,
       currency = excluded.currency, class = excluded.class, tick_table = excluded.tick_table,
       lot = excluded.lot, min_order_value = excluded.min_order_value, session = excluded.session,
       sale_tax = excluded.sale_tax, base_price = excluded.base_price,
       listed_shares = excluded.listed_shares, halted = excluded.halted,
       administrative = excluded.administrative, liquidation = excluded.liquidation,
       caution = excluded.caution, last_seen_at = greatest(i.last_seen_at, excluded.last_seen_at)
"""
_FORGET = "DELETE FROM instrument WHERE environment = 'simulator' AND last_seen_at < $1"
_LOAD = """
SELECT i.*, i.last_seen_at < max(i.last_seen_at) OVER (PARTITION BY venue) AS delisted
  FROM instrument i
 WHERE environment = $1 AND ($2::text IS NULL OR venue = $2)
 ORDER BY last_seen_at, symbol
"""
_NEWEST = """
SELECT environment, max(last_seen_at) AS at FROM instrument WHERE venue = $1
 GROUP BY environment ORDER BY at DESC LIMIT 1
"""

_COLUMNS = [field.encode_name for field in msgspec.structs.fields(Instrument)]


class InstrumentList(msgspec.Struct, frozen=True, kw_only=True):
    """Instruments of a venue and when they were fetched; the content of a catalogue file."""

    venue: str
    environment: str
    refreshed_at: datetime | None
    instruments: list[Instrument]


class InstrumentStore:
    """Table of instruments; those of a simulator and of the real venue are kept apart."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(
        self, venue: str, environment: str, found: Iterable[Instrument], now: datetime
    ) -> None:
        """Store the newest list of a venue; what is missing in it counts as delisted."""
        rows = msgspec.json.encode(list(found)).decode()
        async with self._database.transaction() as tx:
            await tx.execute(_SAVE, venue, environment, now, rows)
            await tx.execute(_FORGET, now - timedelta(days=_SIMULATED_DAYS))

    async def load(self, environment: str) -> list[Instrument]:
        """Return the instruments of all venues, delisted ones first."""
        return [_instrument(row) for row in await self._database.fetch(_LOAD, environment, None)]

    async def newest(self, venue: str) -> InstrumentList:
        """Return the list of a venue that was fetched last, of the venue or of its simulator."""
        row = await self._database.fetchrow(_NEWEST, venue)
        if row is None:
            return InstrumentList(
                venue=venue, environment="real", refreshed_at=None, instruments=[]
            )
        rows = await self._database.fetch(_LOAD, row["environment"], venue)
        return InstrumentList(
            venue=venue,
            environment=row["environment"],
            refreshed_at=row["at"],
            instruments=sorted(map(_instrument, rows), key=lambda each: each.symbol),
        )

    async def refreshed_at(self, venue: str, environment: str) -> datetime | None:
        found: datetime | None = await self._database.fetchval(
            "SELECT max(last_seen_at) FROM instrument WHERE venue = $1 AND environment = $2",
            venue,
            environment,
        )
        return found


def _instrument(row: Row) -> Instrument:
    return msgspec.convert({column: row[column] for column in _COLUMNS}, Instrument)


def write_catalogue(content: InstrumentList, folders: Sequence[Path]) -> None:
    """Write the instruments beside the data; raise OSError if a folder is not writable."""
    data = msgspec.json.encode(content)
    for folder in folders:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = folder / f".{CATALOGUE}.draft"
        draft.write_bytes(data)
        draft.rename(folder / CATALOGUE)


def read_catalogue(path: Path) -> InstrumentList:
    """Read a catalogue file, or the output of `qts data instruments --json`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=InstrumentList)
    except OSError as error:
        raise RefusedError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusedError(
            f"{path} is not a list of instruments: {error}; expected the output of"
            " qts data instruments --json"
        ) from None


log = telemetry.logger("feed")

REFRESH_AFTER = timedelta(hours=7, minutes=50)  # of a day in Seoul: before the first orders
_CHECK_INTERVAL_S = 600.0
_RETRY_S = 2.0  # after a failure, then twice as long each time
_MIN_SHARE = 0.5  # a list that has lost more of its rows is taken as damaged


class InstrumentSync:
    """Keeps `instruments` at the newest list; `folders` get a catalogue file after each change."""

    def __init__(
        self,
        store: InstrumentStore,
        source: InstrumentSource,
        instruments: Instruments,
        clock: Clock,
        folders: Sequence[Path] = (),
    ) -> None:
        self._store = store
        self._source = source
        self._instruments = instruments
        self._clock = clock
        self._folders = folders
        self._failures = 0  # in a row

    async def start(self) -> None:
        """Load the stored instruments, and fetch the lists where they are old or a simulator's."""
        await self._load()
        if self._source.environment == "simulator" or await self._is_due():
            await self._try_refresh()

    async def run(self) -> None:
        """Refresh daily, until cancelled; soon again after a failure."""
        while True:
            pause_s = _RETRY_S * 2.0 ** (self._failures - 1) if self._failures else math.inf
            await self._clock.sleep(min(pause_s, _CHECK_INTERVAL_S))
            if self._failures or await self._is_due():
                await self._try_refresh()

    async def refresh(self) -> int:
        """Fetch and store the lists; return the number of instruments.

        Raises OperationError if they cannot be had.
        """
        venue, environment, fetch = self._source
        found = await fetch()
        listed = sum(not each.delisted for each in self._instruments if each.venue == venue)
        if environment == "real" and len(found) < listed * _MIN_SHARE:
            raise UnreachableError(
                f"the list of {venue} has {len(found)} instruments, and the one before {listed}"
            )
        await self._store.save(venue, environment, found, self._clock.now())
        await self._load()
        return len(found)

    async def _try_refresh(self) -> None:
        try:
            count = await self.refresh()
        except OperationError as error:
            event = (
                "instruments not refreshed; using the stored ones"
                if len(self._instruments)
                else "instruments not available; entries blocked"
            )
            self._failures += 1
            log.warning(event, venue=self._source.venue, error=str(error))
        else:
            self._failures = 0
            log.info("instruments refreshed", venue=self._source.venue, count=count)

    async def _load(self) -> None:
        venue, environment, _ = self._source
        loaded = await self._store.load(environment)
        # A symbol of two venues is this run's.
        self._instruments.replace(sorted(loaded, key=lambda each: each.venue == venue))
        own = [each for each in loaded if each.venue == venue]
        at = await self._store.refreshed_at(venue, environment)
        content = InstrumentList(
            venue=venue, environment=environment, refreshed_at=at, instruments=own
        )
        try:
            write_catalogue(content, self._folders if own else ())
        except OSError as error:
            log.warning("instrument catalogue not written", error=str(error))

    async def _is_due(self) -> bool:
        at = await self._store.refreshed_at(self._source.venue, self._source.environment)
        return at is None or list_day(at) != list_day(self._clock.now())


def list_day(at: datetime) -> int:
    """Return a number of the day whose list was the newest at a time."""
    return (at.astimezone(SEOUL) - REFRESH_AFTER).date().toordinal()
