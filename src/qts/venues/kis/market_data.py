"""Market data of KIS, as the feed uses it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

from qts.domain import Market
from qts.venues.config import KisConfig
from qts.venues.kis.client import KisClient
from qts.venues.kis.quotes import KisQuotes, symbols_per_call
from qts.venues.kis.stream import KisStream
from qts.venues.market_data import (
    Calendar,
    MarketData,
    OpenStream,
    PublishedDays,
    VenueLimits,
)

SCAN_S = 30.0
NO_INDICES = "a paper key has no index prices"


def kis_limits(config: KisConfig, *, multi: bool) -> VenueLimits:
    """Return what KIS allows the key for quotes; `multi`: thirty symbols per request, if it can."""
    return VenueLimits(
        rates=config.key_limits,
        per_call=symbols_per_call(config, multi=multi),
        scan_s=SCAN_S,
        streamed=KisStream.capacity,
        no_indices=NO_INDICES if config.paper else "",
        shares_key=True,
    )


def kis_market_data(
    client: KisClient,
    calendar: Calendar,
    set_day: Callable[[date, bool], None] | None,
    open_stream: OpenStream,
    *,
    multi: bool,
) -> MarketData:
    """Return the market data of a connected client; `set_day` takes the trading days of KIS."""
    config = client.config
    quotes = KisQuotes(client, multi=multi)
    secrets = (config.app_key, config.app_secret, config.account, config.hts_id)
    return MarketData(
        source=quotes,
        limiter=client.limiter,
        limits=kis_limits(config, multi=multi),
        market=Market.KRX,
        mode="PAPER" if config.paper else "PROD" if config.url is None else "SIMULATION",
        calendar=calendar,
        secrets=tuple(filter(None, secrets)),
        open_stream=open_stream,
        indices=quotes,
        trading_days=None
        if config.paper or set_day is None
        else PublishedDays(quotes.trading_days, set_day),
    )
