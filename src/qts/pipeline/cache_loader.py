"""Positions, risk, orders and parameters in the cache, from the database.

DatabaseCacheLoader loads one value where the cache has none. AccountCacheWriter writes positions
and risk of the account after each change and before they expire, so that a PreCheck finds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, NamedTuple
from uuid import UUID

from qts import telemetry
from qts.cache import (
    Cache,
    CachedOrder,
    CachedPosition,
    CachedRisk,
    CachedStrategyParams,
    CacheEntry,
    Invalidation,
    TradeIds,
)
from qts.database import Database
from qts.domain import (
    AccountKey,
    AttemptState,
    Clock,
    OperationError,
    Position,
    RefusedError,
    TradeLimitExceededError,
)
from qts.orders import AccountState, load_account_state, order_history
from qts.pipeline.portfolio import Portfolio
from qts.pipeline.risk_snapshot import AccountVersion, compute_exposure, symbol_values
from qts.pipeline.risk_snapshot import trading_day_start as day_start
from qts.risk import RiskLimits

log = telemetry.logger("pipeline")

ACCOUNT = "account"  # its name in the cache, whose keys are of one account
_SHARE = Decimal("0.000001")
_WON = Decimal("0.01")
_ZERO = Decimal(0)
_PARAMS = "SELECT params, version, changed_at FROM strategy_params WHERE strategy_key = $1"
_SENT = frozenset(
    (AttemptState.SENT, AttemptState.ACKED, AttemptState.REJECTED, AttemptState.UNKNOWN)
)
_SENT_TODAY = (
    "SELECT id::text FROM order_attempt WHERE sent_at >= $3 AND broker = $1 AND account = $2"
)


class CacheSource(NamedTuple):
    """What cached values are computed from."""

    database: Database
    key: AccountKey
    portfolio: Portfolio
    limits: RiskLimits
    clock: Clock

    async def account_state(self) -> AccountState:
        now = self.clock.now()
        return await load_account_state(self.database, self.key, day_start(now), now)


def day_end(now: datetime) -> datetime:
    """Return the end of the trading day."""
    return day_start(now) + timedelta(days=1)


def share_of(value: Decimal, equity: Decimal) -> Decimal:
    """Return a value as a share of the equity, rounded down: PreCheck must not overstate it."""
    return (value / max(equity, Decimal(1))).quantize(_SHARE, ROUND_FLOOR)


def cached_positions(
    state: AccountState, portfolio: Portfolio, read_at: datetime
) -> Iterator[CachedPosition]:
    """Yield each symbol that is held or being bought; `exposure_pct` counts pending buys."""
    equity, values = portfolio.equity, symbol_values(state, portfolio)
    for symbol in state.held.keys() | {order.symbol for order in state.pending}:
        held = state.held.get(symbol) or Position(symbol, _ZERO, _ZERO)
        yield CachedPosition(
            symbol=symbol,
            qty=held.quantity,
            avg_price=held.average_price,
            unrealized_pnl=(portfolio.price(held) - held.average_price) * held.quantity,
            exposure_pct=share_of(values.get(symbol, _ZERO), equity),
            updated_at=_ms(read_at),
            ver=_version(read_at),
        )


def cached_risk(
    state: AccountState, portfolio: Portfolio, limits: RiskLimits, read_at: datetime
) -> CachedRisk:
    """Return the risk of the account; pending buys count as invested."""
    exposure, equity = compute_exposure("", state, portfolio), portfolio.equity
    used = share_of(exposure.total_value, equity)
    return CachedRisk(
        account=ACCOUNT,
        exposure_used=used,
        daily_pnl=exposure.daily_pnl.quantize(_WON, ROUND_CEILING),
        trade_count=exposure.orders_today,
        remaining_limit=max(_ZERO, limits.max_exposure - used),
        max_exposure_pct=limits.max_exposure,
        daily_loss_limit=-(max(equity, _ZERO) * limits.daily_loss).quantize(_WON),
        open_symbols=exposure.open_symbols,
        updated_at=_ms(read_at),
        ver=_version(read_at),
    )


class DatabaseCacheLoader:
    """CacheLoader on the ledger; values are priced with the portfolio's last ticks."""

    def __init__(self, source: CacheSource) -> None:
        self._source = source

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
            case TradeIds.kind:
                return await self._trades(name)
        return None

    async def _position(self, symbol: str) -> CachedPosition | None:
        now, state = self._source.clock.now(), await self._source.account_state()
        found = cached_positions(state, self._source.portfolio, now)
        return next((each for each in found if each.symbol == symbol), None)

    async def _risk(self, account: str) -> CachedRisk | None:
        if account != ACCOUNT:
            return None
        now, state = self._source.clock.now(), await self._source.account_state()
        return cached_risk(state, self._source.portfolio, self._source.limits, now)

    async def _order(self, intent: str) -> CachedOrder | None:
        try:
            history = await order_history(self._source.database, UUID(intent))
        except (RefusedError, ValueError):
            return None
        order = history.order
        now = self._source.clock.now()
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
        row = await self._source.database.fetchrow(_PARAMS, key)
        if row is None:
            return None
        return CachedStrategyParams(
            strategy_id=key,
            active=True,
            params={name: str(value) for name, value in row["params"].items()},
            updated_at=_ms(row["changed_at"]),
            ver=row["version"],
        )

    async def _trades(self, day: str) -> TradeIds:
        """Return the attempts that were sent today; a name has the account and the day's end."""
        source = self._source
        rows = await source.database.fetch(_SENT_TODAY, *source.key, day_start(source.clock.now()))
        return TradeIds(day=day, ids=frozenset(row["id"] for row in rows))


class AccountCacheWriter:
    """Writes positions and risk to the cache, and counts the attempts of the day.

    `is_current` is whether the cache has the state after the last change of this process.
    """

    def __init__(self, cache: Cache, source: CacheSource, version: AccountVersion) -> None:
        self._cache = cache
        self._source = source
        self._version = version
        self._written = -1

    @property
    def account(self) -> str:
        return str(self._source.key)

    @property
    def is_current(self) -> bool:
        return self._written == self._version.value

    def orders_today(self) -> int:
        """Return the attempts of the trading day that were counted."""
        return self._cache.trades.total(ACCOUNT, day_end(self._source.clock.now()))

    @property
    def refresh_s(self) -> float:
        """Half the TTL of a position: then it is written again."""
        return self._cache.positions.ttl_ms / 2000

    async def write(self) -> None:
        """Write the account state unless it changes while it is read."""
        source, version = self._source, self._version.value
        now, state = source.clock.now(), await source.account_state()
        if version != self._version.value:
            return
        self._cache.positions.push_all(cached_positions(state, source.portfolio, now))
        self._cache.risks.push(cached_risk(state, source.portfolio, source.limits, now))
        self._written = version

    async def order_changed(self, intent_id: UUID, attempt_id: str, state: str) -> None:
        """Load the order again, and count its attempt once it was sent."""
        try:
            if state in _SENT:
                await self._count(attempt_id)
            await self._cache.invalidate(Invalidation("order", str(intent_id)))
        except OperationError as error:
            log.warning("order not updated in the cache", error=str(error))

    async def _count(self, attempt_id: str) -> None:
        """Count an attempt; beyond the limit of the day the count stays there."""
        limit, ends_at = self._source.limits.orders_per_day, day_end(self._source.clock.now())
        try:
            await self._cache.trades.count(ACCOUNT, attempt_id, limit, ends_at)
        except TradeLimitExceededError:
            log.debug("attempt beyond the daily limit", attempt=attempt_id, limit=limit)


def _average(fills: list[dict[str, Any]]) -> Decimal:
    quantity = sum((fill["quantity"] for fill in fills), Decimal(0))
    if not quantity:
        return Decimal(0)
    amount = sum((fill["quantity"] * fill["price"] for fill in fills), Decimal(0))
    return (amount / quantity).quantize(Decimal("0.00000001"))


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _version(moment: datetime) -> int:
    """Return microseconds: of two reads the later one wins."""
    return int(moment.timestamp() * 1_000_000)
