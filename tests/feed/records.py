"""Sample records."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from qts.feed import ObservationSnapshot, PatternRecord
from qts.feed.ingest import SCHEMA, Context, Inputs, Meta, Observation, State
from tests.feed.market import MONDAY_OPEN


def record(
    number: int = 1,
    *,
    symbol: str = "005930",
    price: float = 100.0,
    volume: float = 0.0,
    time: datetime | None = None,
    raw: dict[str, Any] | None = None,
    quote: tuple[float, float] = (0.0, 0.0),
    venue_at: float = 0.0,
) -> PatternRecord:
    moment = time or MONDAY_OPEN + timedelta(seconds=number)
    return PatternRecord(
        SCHEMA,
        number,
        ObservationSnapshot(
            Meta(moment, "session", "PROD", "kis_rest", 30_000.0),
            Context("market", "raw", symbol, "KRX"),
            Observation(Inputs(price, volume, raw or {}, *quote, venue_at), {}, State("normal")),
        ),
    )
