"""The risk snapshot that the gate checks a proposal against, live and in a backtest."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Container, Iterable, Mapping
from datetime import datetime
from decimal import Context, Decimal
from typing import NamedTuple
from zoneinfo import ZoneInfo

from qts import telemetry
from qts.cache import Cache, CachedPrice
from qts.database import Database
from qts.domain import AccountKey, Clock, OperationError, Side, exact_decimal
from qts.orders import AccountState, OpenOrder, load_account_state
from qts.pipeline.portfolio import Portfolio
from qts.risk import (
    AccountFacts,
    Exposure,
    OrderProposal,
    QuoteSnapshot,
    RiskSnapshot,
    SafetyMonitor,
    Switches,
)

log = telemetry.logger("pipeline")

SEOUL = ZoneInfo("Asia/Seoul")
REFRESH_DELAY_S = 0.002
_ZERO = Decimal(0)
_EXACT = Context(prec=100)  # sums as PostgreSQL computes them


def symbol_values(
    account: AccountState, portfolio: Portfolio, prices: Mapping[str, Decimal] | None = None
) -> dict[str, Decimal]:
    """Return the value of each symbol at the last prices; pending buys count as filled.

    `prices` are those that are known already.
    """
    values: dict[str, Decimal] = {}
    for name, position in account.held.items():
        price = prices.get(name) if prices else None
        if price is None:
            price = _price(portfolio, name, position.average_price)
        values[name] = abs(position.quantity) * price
    for order in account.pending:
        if order.side is Side.BUY:
            value = order.remaining * (order.price or _price(portfolio, order.symbol, _ZERO))
            values[order.symbol] = values.get(order.symbol, _ZERO) + value
    return values


def compute_exposure(
    symbol: str, account: AccountState, portfolio: Portfolio, strategy_key: str = ""
) -> Exposure:
    """Return what is held and pending, of the symbol, of the account and of a strategy.

    A symbol counts for the strategy that holds or buys it: it has one owner at a time.
    """
    money, owners = portfolio.valuation(), portfolio.owners
    values = symbol_values(account, portfolio, money.prices)
    total = own_total = buying = selling = _ZERO
    open_symbols = own_symbols = unknown = 0
    for name, value in values.items():
        total += value
        open_symbols += value >= portfolio.instruments[name].min_order_value
        if owners.get(name) == strategy_key:
            own_total += value
            own_symbols += 1
    for order in account.pending:
        if order.symbol == symbol:
            unknown += order.unknown
            if order.side is Side.BUY:
                buying = _EXACT.add(buying, order.remaining)
            else:
                selling = _EXACT.add(selling, order.remaining)
    here, position = values.get(symbol, _ZERO), account.held.get(symbol)
    return Exposure(
        position=position.quantity if position else _ZERO,
        pending_buy=buying,
        pending_sell=selling,
        symbol_value=here,
        total_value=total,
        open_symbols=open_symbols,
        cash=money.cash,
        equity=money.equity,
        daily_pnl=account.earned_today + money.unrealised,
        orders_today=account.orders_today,
        orders_last_minute=account.orders_last_minute,
        symbol_unknown=unknown,
        strategy_value=own_total,
        strategy_symbols=own_symbols,
        strategy_symbol_value=here if owners.get(symbol) == strategy_key else _ZERO,
        strategy_orders_today=account.orders_of.get(strategy_key, 0),
    )


def account_facts(symbol: str, account: AccountState, age_ns: int = 0) -> AccountFacts:
    """Return the figures that the statement of an order of this symbol compares again."""
    pending = [order for order in account.pending if order.symbol == symbol]
    position = account.held.get(symbol)
    return AccountFacts(
        position=position.quantity if position else _ZERO,
        pending_buy=_remaining(pending, Side.BUY),
        pending_sell=_remaining(pending, Side.SELL),
        held=_sum(each.quantity for each in account.held.values()),
        pending=_sum(each.remaining for each in account.pending),
        pending_orders=len(account.pending),
        age_ms=age_ns / 1e6,
        latest_since=account.latest_since,
        latest_orders=account.latest_orders,
    )


def _price(portfolio: Portfolio, symbol: str, default: Decimal) -> Decimal:
    tick = portfolio.last_tick(symbol)
    return exact_decimal(tick.price) if tick else default


def _remaining(orders: Iterable[OpenOrder], side: Side) -> Decimal:
    return _sum(order.remaining for order in orders if order.side is side)


def _sum(quantities: Iterable[Decimal]) -> Decimal:
    total = _ZERO
    for each in quantities:
        total = _EXACT.add(total, each)
    return total


def _log_failure(task: asyncio.Task[AccountReading]) -> None:
    """A reader that waits for it gets the error; a refresh has none."""
    if not task.cancelled() and (error := task.exception()):
        log.debug("account state not read", error=str(error))


def trading_day_start(now: datetime) -> datetime:
    """Return midnight in Seoul: the start of a day at the KRX and in Upbit's won markets."""
    return now.astimezone(SEOUL).replace(hour=0, minute=0, second=0, microsecond=0)


class AccountVersion:
    """Counter of changes to orders, fills and freezes; a state that was read is good for one value.

    Any thread may advance it. Listeners run after each change, in the thread that made it.
    """

    def __init__(self) -> None:
        self.value = 0
        self._advancing = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    def add_listener(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def advance(self) -> None:
        with self._advancing:
            self.value += 1
        for listener in self._listeners:
            listener()


class AccountReading(NamedTuple):
    """The account state as it was read, with the version and the day it is good for."""

    state: AccountState
    version: int
    day: datetime
    at: datetime
    began_ns: int


class AccountStateReader:
    """Account state in memory, read again in the background after every change of this run.

    What other processes change (a freeze, an adoption) is not noticed here: the statement that
    stores an order compares the facts again, and a caller that is refused reads them with `fresh`.
    """

    def __init__(
        self, database: Database, account: AccountKey, version: AccountVersion, clock: Clock
    ) -> None:
        self._database = database
        self._account = account
        self.version = version
        self._clock = clock
        self._known: AccountReading | None = None
        self._reading: tuple[int, asyncio.Task[AccountReading]] | None = None  # version, task
        self._refresh: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of the first read
        version.add_listener(self._on_advance)

    async def read(self, *, max_age_s: float = math.inf, fresh: bool = False) -> AccountReading:
        """Return the state of this version and day; with `fresh`, one that is read now.

        One that is older than `max_age_s` is read again, once for all who wait for it.
        """
        self._loop = asyncio.get_running_loop()
        known, version = self._known, self.version.value
        is_current = (
            known is not None
            and known.version == version
            and known.day == trading_day_start(self._clock.now())
            and self._clock.monotonic_ns() - known.began_ns <= max_age_s * 1e9
        )
        if known is not None and is_current and not fresh:
            return known
        if self._reading is None or self._reading[0] != version or fresh:
            return await asyncio.shield(self._start(version))
        return await asyncio.shield(self._reading[1])

    def _start(self, version: int) -> asyncio.Task[AccountReading]:
        task = asyncio.create_task(self._read(version))
        self._reading = version, task
        task.add_done_callback(_log_failure)
        return task

    async def _read(self, version: int) -> AccountReading:
        now, began_ns = self._clock.now(), self._clock.monotonic_ns()
        day = trading_day_start(now)
        try:
            state = await load_account_state(self._database, self._account, day, now)
        finally:
            if self._reading is not None and self._reading[1] is asyncio.current_task():
                self._reading = None
        reading = AccountReading(state, version, day, now, began_ns)
        if self._known is None or reading.began_ns >= self._known.began_ns:
            self._known = reading
        return reading

    def _on_advance(self) -> None:
        """Read the state soon; called on any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._schedule_refresh)

    def _schedule_refresh(self) -> None:
        """Read the state after a delay: an update mostly comes with others."""
        if self._refresh is None:
            loop = asyncio.get_running_loop()
            self._refresh = loop.call_later(REFRESH_DELAY_S, self._start_refresh)

    def _start_refresh(self) -> None:
        self._refresh = None
        version = self.version.value
        if self._known is not None and self._known.version != version and self._reading is None:
            self._start(version).add_done_callback(lambda _task: self._refresh_again())

    def _refresh_again(self) -> None:
        known = self._known
        if known is not None and known.version != self.version.value:
            self._schedule_refresh()


class RiskSources(NamedTuple):
    """Where the parts of a snapshot come from."""

    states: AccountStateReader
    cache: Cache
    portfolio: Portfolio
    monitor: SafetyMonitor
    freezing: Container[str]  # frozen, not yet in the database
    unwatched: Callable[[], Container[str]]  # positions without stops
    is_reconciled: Callable[[], bool]
    is_open: Callable[[], bool]
    is_clock_synced: Callable[[], bool]
    base_price: Callable[[str], float]

    def switches(
        self, proposal: OrderProposal, suspended: frozenset[str], frozen: frozenset[str]
    ) -> Switches:
        """Return the switches; the symbols in `suspended` and `frozen` are the database's."""
        symbol, scope = proposal.symbol, {proposal.symbol, "*"}
        return Switches(
            account_enabled=self.monitor.enabled(),
            strategy_enabled=self.monitor.enabled(proposal.strategy_key),
            market_active=suspended.isdisjoint(scope),
            frozen=symbol in self.freezing or not frozen.isdisjoint(scope),
            watched=symbol not in self.unwatched(),
            reconciled=self.is_reconciled(),
            session_open=self.is_open(),
            clock_synced=self.is_clock_synced(),
            safety=self.monitor.safety.state,
        )

    def base(self, symbol: str) -> Decimal | None:
        """Return the price that the day's limits are computed from; None where there are none."""
        found = self.base_price(symbol)
        return Decimal(repr(found)) if found else None


def quote_of(price: CachedPrice, now: datetime, base: Decimal | None = None) -> QuoteSnapshot:
    """Return a cached price with its age since it was received."""
    age_ms = now.timestamp() * 1000 - price.timestamp
    return QuoteSnapshot(last=price.last, bid=price.bid, ask=price.ask, age_ms=age_ms, base=base)


class RiskSnapshotReader:
    """Reads prices from the cache or the last tick, and the account state from memory."""

    def __init__(self, sources: RiskSources, clock: Clock) -> None:
        self._sources = sources
        self._clock = clock

    async def __call__(self, proposal: OrderProposal, *, fresh: bool = False) -> RiskSnapshot:
        reading = await self._sources.states.read(fresh=fresh)
        account = reading.state
        return RiskSnapshot(
            instrument=self._sources.portfolio.instruments[proposal.symbol],
            market=await self._quote(proposal.symbol),
            exposure=compute_exposure(
                proposal.symbol, account, self._sources.portfolio, proposal.strategy_key
            ),
            switches=self._sources.switches(proposal, account.suspended, account.frozen),
            now=self._clock.now(),
            facts=account_facts(
                proposal.symbol, account, self._clock.monotonic_ns() - reading.began_ns
            ),
        )

    async def _quote(self, symbol: str) -> QuoteSnapshot | None:
        try:
            price = await self._sources.cache.prices.get(symbol)
        except OperationError:
            return self._last_tick_quote(symbol)
        return quote_of(price, self._clock.now(), self._sources.base(symbol))

    def _last_tick_quote(self, symbol: str) -> QuoteSnapshot | None:
        """Return the last tick where the cache has expired or lost it; the gate checks its age."""
        portfolio = self._sources.portfolio
        tick = portfolio.last_tick(symbol)
        if tick is None:
            return None
        last, bid, ask = map(exact_decimal, (tick.price, tick.bid, tick.ask))
        age_ms, base = portfolio.age_ms(tick), self._sources.base(symbol)
        return QuoteSnapshot(last=last, bid=bid, ask=ask, age_ms=age_ms, base=base)
