"""Instruments in PostgreSQL and in a catalogue file beside the data, as the venues listed them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from qts.database import Database, Row
from qts.domain import Instrument, RefusedError

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
