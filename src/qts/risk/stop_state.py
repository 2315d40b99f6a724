"""State of the stops in the database: what a restart must not lose of a position.

A record belongs to one position, the one that was opened at `opened_at`. The running QTS writes it
behind its changes; `qts positions adopt` writes it with the adoption, which wins over a write that
does not know of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from qts.database import Connection, Database, Row
from qts.domain import AccountKey

# best, worst, trailing, armed, half sold
StopState = tuple[float, float, float, bool, bool]

_FIELDS = (
    "symbol, opened_at, quantity, average, watched, from_market, reference, adopted_at,"
    " best, worst, trail, armed, half_sold, dust"
)
_LOAD = f"SELECT {_FIELDS} FROM position_stop WHERE broker = $1 AND account = $2"  # noqa: S608
_SAVE = f"""
INSERT INTO position_stop AS s (broker, account, {_FIELDS})
SELECT $1, $2, n.*
  FROM unnest($3::text[], $4::timestamptz[], $5::float8[], $6::float8[], $7::boolean[],
              $8::boolean[], $9::float8[], $10::timestamptz[], $11::float8[], $12::float8[],
              $13::float8[], $14::boolean[], $15::boolean[], $16::boolean[])
       AS n ({_FIELDS})
 WHERE lease_holds($1, $2, $17)
ON CONFLICT (broker, account, symbol) DO UPDATE
   SET opened_at = EXCLUDED.opened_at, quantity = EXCLUDED.quantity, average = EXCLUDED.average,
       watched = EXCLUDED.watched, from_market = EXCLUDED.from_market,
       reference = EXCLUDED.reference, adopted_at = EXCLUDED.adopted_at, best = EXCLUDED.best,
       worst = EXCLUDED.worst, trail = EXCLUDED.trail, armed = EXCLUDED.armed,
       half_sold = EXCLUDED.half_sold, dust = EXCLUDED.dust, updated_at = clock_timestamp()
 WHERE s.opened_at < EXCLUDED.opened_at
    OR s.adopted_at IS NOT DISTINCT FROM EXCLUDED.adopted_at
    OR s.adopted_at < EXCLUDED.adopted_at
"""  # noqa: S608 - the fields are the constant above


class StopRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Stored stop state of one position."""

    symbol: str
    opened_at: datetime
    quantity: float  # of the position when it was stored
    average: float
    watched: bool = True
    from_market: bool = False  # the next price becomes the reference
    reference: float | None = None  # what gains and losses count from; None: the average price
    adopted_at: datetime | None = None
    state: StopState | None = None  # None: no stop has seen it yet
    dust: bool = False

    def grown(self, quantity: float, average: float) -> StopRecord:
        """Return the record for the same position with another quantity and average price.

        What was added counts at its own price; a half that was sold before does not count for it.
        """
        reference, state = self.reference, self.state
        if abs(quantity) > abs(self.quantity):
            if reference is not None:
                added = quantity * average - self.quantity * self.average
                reference = (self.quantity * reference + added) / quantity
            if state is not None:
                state = (*state[:4], False)
        return msgspec.structs.replace(
            self, quantity=quantity, average=average, reference=reference, state=state
        )


async def load_stop_records(
    database: Database | Connection, key: AccountKey
) -> dict[str, StopRecord]:
    """Return the stored records of an account by symbol."""
    return {row["symbol"]: _record(row) for row in await database.fetch(_LOAD, *key)}


async def save_stop_records(
    connection: Database | Connection,
    key: AccountKey,
    records: Sequence[StopRecord],
    epoch: int | None = None,
) -> None:
    """Store records in one statement; an adoption that they do not know of stays.

    `epoch` is that of the lease of a run: nothing is stored once another run holds the account.
    """
    columns = zip(*(_values(record) for record in records), strict=True)
    await connection.execute(_SAVE, *key, *(list(column) for column in columns), epoch)


def _values(record: StopRecord) -> tuple[object, ...]:
    best, worst, trailing, armed, half_sold = record.state or (None, None, 0.0, False, False)
    return (
        record.symbol,
        record.opened_at,
        record.quantity,
        record.average,
        record.watched,
        record.from_market,
        record.reference,
        record.adopted_at,
        best,
        worst,
        trailing,
        armed,
        half_sold,
        record.dust,
    )


def _record(row: Row) -> StopRecord:
    adopted_at = row["adopted_at"]
    state = (row["best"], row["worst"], row["trail"], row["armed"], row["half_sold"])
    return StopRecord(
        symbol=row["symbol"],
        opened_at=row["opened_at"].astimezone(UTC),
        quantity=row["quantity"],
        average=row["average"],
        watched=row["watched"],
        from_market=row["from_market"],
        reference=row["reference"],
        adopted_at=adopted_at and adopted_at.astimezone(UTC),
        state=None if row["best"] is None else state,
        dust=row["dust"],
    )
