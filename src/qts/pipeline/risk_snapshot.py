"""The risk snapshot that the gate checks a proposal against, live and in a backtest."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple
from zoneinfo import ZoneInfo

from qts.cache import Cache
from qts.database import Database
from qts.domain import (
    AccountKey,
    Clock,
    OperationError,
    Side,
    market_for_symbol,
    min_order_value,
)
from qts.orders import AccountState, OpenOrder, load_account_state
from qts.pipeline.portfolio import Portfolio
from qts.risk import Exposure, OrderProposal, QuoteSnapshot, RiskSnapshot, SafetyMonitor, Switches

SEOUL = ZoneInfo("Asia/Seoul")
ACCOUNT_STATE_TTL_S = 0.5
_ZERO = Decimal(0)


def compute_exposure(symbol: str, account: AccountState, portfolio: Portfolio) -> Exposure:
    """Value positions at the last prices; pending buys count as filled."""
    values: dict[str, Decimal] = {
        name: abs(position.quantity) * _price(portfolio, name, position.average_price)
        for name, position in account.held.items()
    }
    for order in account.pending:
        if order.side is Side.BUY:
            value = order.remaining * (order.price or _price(portfolio, order.symbol, _ZERO))
            values[order.symbol] = values.get(order.symbol, _ZERO) + value
    pending = [order for order in account.pending if order.symbol == symbol]
    position = account.held.get(symbol)
    return Exposure(
        position=position.quantity if position else _ZERO,
        average_price=position.average_price if position else _ZERO,
        pending_buy=_remaining(pending, Side.BUY),
        pending_sell=_remaining(pending, Side.SELL),
        symbol_value=values.get(symbol, _ZERO),
        total_value=sum(values.values(), _ZERO),
        open_symbols=sum(not is_dust(name, value) for name, value in values.items()),
        cash=portfolio.cash,
        equity=portfolio.equity,
        daily_pnl=account.earned_today + portfolio.unrealised,
        orders_today=account.orders_today,
        orders_last_minute=account.orders_last_minute,
        unknown_attempts=sum(order.unknown for order in account.pending),
        symbol_unknown=sum(order.unknown for order in pending),
    )


def is_dust(symbol: str, value: Decimal) -> bool:
    """Return whether a position of this value is too small to be sold."""
    return value < min_order_value(market_for_symbol(symbol))


def _price(portfolio: Portfolio, symbol: str, default: Decimal) -> Decimal:
    tick = portfolio.last_tick(symbol)
    return Decimal(str(tick.price)) if tick else default


def _remaining(orders: Iterable[OpenOrder], side: Side) -> Decimal:
    return sum((order.remaining for order in orders if order.side is side), _ZERO)


def trading_day_start(now: datetime) -> datetime:
    """Return midnight in Seoul: the start of a day at the KRX and in Upbit's won markets."""
    return now.astimezone(SEOUL).replace(hour=0, minute=0, second=0, microsecond=0)


class AccountVersion:
    """Counter of changes to orders, fills and freezes; a cached state is good for one value."""

    def __init__(self) -> None:
        self.value = 0

    def advance(self) -> None:
        self.value += 1


class RiskSources(NamedTuple):
    """Where the parts of a snapshot come from."""

    database: Database
    account: AccountKey
    cache: Cache
    portfolio: Portfolio
    monitor: SafetyMonitor
    version: AccountVersion
    freezing: Container[str]  # frozen, not yet in the database
    unwatched: Callable[[], Container[str]]  # positions without stops
    is_reconciled: Callable[[], bool]
    is_open: Callable[[], bool]
    is_clock_synced: Callable[[], bool]


class RiskSnapshotReader:
    """Reads prices from the cache or the last tick, and the account state from the database."""

    def __init__(self, sources: RiskSources, clock: Clock) -> None:
        self._sources = sources
        self._clock = clock
        self._cached: tuple[AccountState, int, int] | None = None  # state, version, monotonic ns

    async def __call__(self, proposal: OrderProposal) -> RiskSnapshot:
        account = await self._account_state()
        return RiskSnapshot(
            market=await self._quote(proposal.symbol),
            exposure=compute_exposure(proposal.symbol, account, self._sources.portfolio),
            switches=self._switches(proposal, account),
            now=self._clock.now(),
        )

    async def _account_state(self) -> AccountState:
        """Return the state of this version, at most half a second old."""
        now_ns, version = self._clock.monotonic_ns(), self._sources.version.value
        if self._cached is not None:
            state, of_version, read_ns = self._cached
            if of_version == version and now_ns - read_ns < ACCOUNT_STATE_TTL_S * 1e9:
                return state
        now = self._clock.now()
        state = await load_account_state(
            self._sources.database, self._sources.account, trading_day_start(now), now
        )
        self._cached = (state, version, now_ns)
        return state

    async def _quote(self, symbol: str) -> QuoteSnapshot | None:
        try:
            price = await self._sources.cache.prices.get(symbol)
        except OperationError:
            return self._last_tick_quote(symbol)
        age_ms = self._clock.now().timestamp() * 1000 - price.timestamp
        return QuoteSnapshot(last=price.last, bid=price.bid, ask=price.ask, age_ms=age_ms)

    def _last_tick_quote(self, symbol: str) -> QuoteSnapshot | None:
        """Return the last tick where the cache has expired or lost it; the gate checks its age."""
        portfolio = self._sources.portfolio
        tick = portfolio.last_tick(symbol)
        if tick is None:
            return None
        last, bid, ask = (Decimal(str(each)) for each in (tick.price, tick.bid, tick.ask))
        return QuoteSnapshot(last=last, bid=bid, ask=ask, age_ms=portfolio.age_ms(tick))

    def _switches(self, proposal: OrderProposal, account: AccountState) -> Switches:
        sources, scope = self._sources, {proposal.symbol, "*"}
        return Switches(
            account_enabled=sources.monitor.enabled(),
            strategy_enabled=sources.monitor.enabled(proposal.strategy_key),
            market_active=account.suspended.isdisjoint(scope),
            frozen=proposal.symbol in sources.freezing or not account.frozen.isdisjoint(scope),
            watched=proposal.symbol not in sources.unwatched(),
            reconciled=sources.is_reconciled(),
            session_open=sources.is_open(),
            clock_synced=sources.is_clock_synced(),
            safety=sources.monitor.safety.state,
        )
