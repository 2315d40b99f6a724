"""Loader of the cache: positions, risk, orders and parameters from the database."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from qts.cache import CachedOrder, CachedPosition, CachedRisk, CachedStrategyParams, CacheEntry
from qts.database import Database
from qts.domain import AccountKey, Clock, RefusedError
from qts.orders import load_account_state, order_history
from qts.pipeline.portfolio import Portfolio
from qts.pipeline.risk_snapshot import trading_day_start
from qts.risk import RiskLimits

_POSITION = (
    "SELECT quantity, average_price, updated_at FROM position"
    " WHERE broker = $1 AND account = $2 AND symbol = $3"
)
_PARAMS = "SELECT params, version, changed_at FROM strategy_params WHERE strategy_key = $1"


class DatabaseCacheLoader:
    """CacheLoader on the ledger; values are priced with the portfolio's last ticks."""

    def __init__(
        self,
        database: Database,
        key: AccountKey,
        portfolio: Portfolio,
        limits: RiskLimits,
        clock: Clock,
    ) -> None:
        self._database = database
        self._key = key
        self._portfolio = portfolio
        self._limits = limits
        self._clock = clock

    async def load(self, kind: str, name: str) -> CacheEntry | None:
        match kind:
            case "position":
                return await self._position(name)
            case "risk":
                return await self._risk(name)
            case "order":
                return await self._order(name)
            case "strategy":
                return await self._strategy(name)
        return None

    async def _position(self, symbol: str) -> CachedPosition | None:
        row = await self._database.fetchrow(_POSITION, *self._key, symbol)
        if row is None:
            return None
        quantity, average = row["quantity"], row["average_price"]
        tick = self._portfolio.last_tick(symbol)
        price = Decimal(str(tick.price)) if tick else average
        equity = self._portfolio.equity
        return CachedPosition(
            symbol=symbol,
            qty=quantity,
            avg_price=average,
            unrealized_pnl=(price - average) * quantity,
            exposure_pct=(price * quantity / equity if equity > 0 else Decimal(0)).quantize(
                Decimal("0.000001")
            ),
            updated_at=_ms(row["updated_at"]),
            ver=_version(row["updated_at"]),
        )

    async def _risk(self, account: str) -> CachedRisk:
        now = self._clock.now()
        state = await load_account_state(self._database, self._key, trading_day_start(now), now)
        equity = max(self._portfolio.equity, Decimal(1))
        used = sum(
            (
                abs(held.quantity) * self._price(symbol, held.average_price)
                for symbol, held in state.held.items()
            ),
            Decimal(0),
        )
        part = (used / equity).quantize(Decimal("0.000001"))
        return CachedRisk(
            account=account,
            exposure_used=part,
            daily_pnl=(state.earned_today + self._portfolio.unrealised).quantize(Decimal("0.01")),
            trade_count=state.orders_today,
            remaining_limit=max(Decimal(0), self._limits.max_exposure - part),
            max_exposure_pct=self._limits.max_exposure,
            daily_loss_limit=-(equity * self._limits.daily_loss).quantize(Decimal("0.01")),
            updated_at=_ms(now),
            ver=_version(now),
        )

    async def _order(self, intent: str) -> CachedOrder | None:
        try:
            history = await order_history(self._database, UUID(intent))
        except (RefusedError, ValueError):
            return None
        order = history.order
        now = self._clock.now()
        return CachedOrder(
            order_id=intent,
            status=order.attempt_state or order.status,
            filled_qty=order.filled,
            pending_qty=max(Decimal(0), order.quantity - order.filled),
            avg_fill_price=_average(history.fills),
            last_update=_ms(now),
            ver=_version(now),
        )

    async def _strategy(self, key: str) -> CachedStrategyParams | None:
        row = await self._database.fetchrow(_PARAMS, key)
        if row is None:
            return None
        return CachedStrategyParams(
            strategy_id=key,
            active=True,
            params={name: str(value) for name, value in row["params"].items()},
            updated_at=_ms(row["changed_at"]),
            ver=row["version"],
        )

    def _price(self, symbol: str, default: Decimal) -> Decimal:
        tick = self._portfolio.last_tick(symbol)
        return Decimal(str(tick.price)) if tick else default


def _average(fills: list[dict[str, Any]]) -> Decimal:
    quantity = sum((fill["quantity"] for fill in fills), Decimal(0))
    if not quantity:
        return Decimal(0)
    amount = sum((fill["quantity"] * fill["price"] for fill in fills), Decimal(0))
    return (amount / quantity).quantize(Decimal("0.00000001"))


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _version(moment: datetime) -> int:
    """Return microseconds: two changes of a row never share one."""
    return int(moment.timestamp() * 1_000_000)
