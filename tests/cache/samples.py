"""Values as the tests use them."""

from __future__ import annotations

import time
from decimal import Decimal

from qts.cache import (
    CachedLevel,
    CachedOrder,
    CachedOrderBook,
    CachedPosition,
    CachedPrice,
    CachedRisk,
    CachedStrategyParams,
)


def now_ms() -> int:
    return int(time.time() * 1000)


def price(
    symbol: str = "005930", last: int = 75050, at: int | None = None, ver: int = 0
) -> CachedPrice:
    return CachedPrice(
        symbol=symbol,
        bid=Decimal(last - 50),
        ask=Decimal(last + 50),
        last=Decimal(last),
        volume=Decimal(1234567),
        timestamp=now_ms() if at is None else at,
        ver=ver,
    )


def position(symbol: str = "005930", qty: int = 100, ver: int = 1) -> CachedPosition:
    return CachedPosition(
        symbol=symbol,
        qty=Decimal(qty),
        avg_price=Decimal(74500),
        unrealized_pnl=Decimal(55000),
        exposure_pct=Decimal("0.05"),
        updated_at=1706700000000,
        ver=ver,
    )


def risk(account: str = "account", used: str = "0.45", ver: int = 1) -> CachedRisk:
    return CachedRisk(
        account=account,
        exposure_used=Decimal(used),
        daily_pnl=Decimal(125000),
        trade_count=15,
        remaining_limit=Decimal("0.55"),
        max_exposure_pct=Decimal("0.8"),
        daily_loss_limit=Decimal(-500000),
        updated_at=1706700000000,
        ver=ver,
    )


def order(order_id: str = "ORD123456", filled: int = 50, ver: int = 1) -> CachedOrder:
    return CachedOrder(
        order_id=order_id,
        status="PARTIALLY_FILLED",
        filled_qty=Decimal(filled),
        pending_qty=Decimal(100 - filled),
        avg_fill_price=Decimal(75050),
        last_update=1706700000500,
        ver=ver,
    )


def strategy(strategy_id: str = "SCALP_RSI", ver: int = 1, **params: str) -> CachedStrategyParams:
    return CachedStrategyParams(
        strategy_id=strategy_id,
        active=True,
        params=params or {"rsi_oversold": "30", "rsi_overbought": "70", "position_size": "0.02"},
        updated_at=1706700000000,
        ver=ver,
    )


def book(
    symbol: str = "005930", best: int = 75000, at: int | None = None, ver: int = 0
) -> CachedOrderBook:
    def levels(first: int, step: int) -> tuple[CachedLevel, ...]:
        return tuple(CachedLevel(Decimal(first + n * step), Decimal(1000 + n)) for n in range(3))

    return CachedOrderBook(
        symbol=symbol,
        bids=levels(best, -100),
        asks=levels(best + 100, 100),
        timestamp=now_ms() if at is None else at,
        ver=ver,
    )
