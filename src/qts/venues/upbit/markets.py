"""Market list of Upbit: the coins that trade in won, with their names and warnings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from qts.domain import Clock, Instrument, UnreachableError, upbit_instrument
from qts.venues.config import UpbitConfig
from qts.venues.ratelimit.limits import RequestPriority
from qts.venues.upbit.client import UpbitClient

_QUOTE = "KRW-"  # markets in BTC and USDT are not traded


class _Event(msgspec.Struct, frozen=True):
    warning: bool = False
    caution: dict[str, bool] = {}


class _MarketRow(msgspec.Struct, frozen=True):
    market: str
    korean_name: str = ""
    english_name: str = ""
    market_event: _Event = _Event()


def parse_markets(rows: Any) -> Iterable[Instrument]:
    """Yield the won markets of a decoded reply; raise msgspec.ValidationError for another form."""
    for row in msgspec.convert(rows, list[_MarketRow]):
        if row.market.startswith(_QUOTE):
            event = row.market_event
            yield upbit_instrument(
                row.market,
                name=row.korean_name,
                name_en=row.english_name,
                caution=event.warning or any(event.caution.values()),
            )


async def fetch_upbit_instruments(config: UpbitConfig, clock: Clock) -> list[Instrument]:
    """Fetch the list, which needs no key; raise UnreachableError if it cannot be had or read."""
    keyless = msgspec.structs.replace(config, access_key=None, secret_key=None)
    async with UpbitClient.open(keyless, clock) as client:
        values = [("is_details", "true")]
        rows = await client.call("GET", "/v1/market/all", values, "quotes", RequestPriority.ACCOUNT)
    try:
        found = list(parse_markets(rows))
    except msgspec.ValidationError as error:
        raise UnreachableError(f"the market list of Upbit has another form: {error}") from None
    if not found:
        raise UnreachableError("the market list of Upbit holds no market in won")
    return found
