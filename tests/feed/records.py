"""Sample records."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from qts.feed import ObservationSnapshot, PatternRecord
from qts.feed.observer import Context, Inputs, Meta, Observation, State
from tests.feed.market import MONDAY_OPEN


def record(
    number: int = 1,
    *,
    symbol: str = "005930",
    price: float = 100.0,
    volume: float = 0.0,
    time: datetime | None = None,
    raw: dict[str, Any] | None = None,
) -> PatternRecord:
    moment = time or MONDAY_OPEN + timedelta(seconds=number)
    return PatternRecord(
        1,
        number,
        ObservationSnapshot(
            Meta(moment, "session", "PROD", "kis_rest", 30_000.0),
            Context("market", "raw", symbol, "KRX"),
            Observation(Inputs(price, volume, raw or {}), {}, State("normal")),
        ),
    )
