"""What we have and what may become ours, as the gate wants to know it: live and in a backtest.

What the gate looks at, gathered at the moment it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple
from zoneinfo import ZoneInfo

from qts.cache import Cache
from qts.database import Database
from qts.domain import Clock, OperationError, Side
from qts.orders import AccountState, OpenOrder, load_account_state
from qts.pipeline.portfolio import Portfolio
from qts.risk import Exposure, OrderProposal, QuoteSnapshot, RiskSnapshot, SafetyMonitor, Switches

_NONE = Decimal(0)


def compute_exposure(symbol: str, ours: AccountState, world: Portfolio) -> Exposure:
    """At the latest prices; buys under way count as if they were filled."""
    values: dict[str, Decimal] = {
        name: abs(held.quantity) * _price(world, name, held.average_price)
        for name, held in ours.held.items()
    }
    for each in ours.pending:
        if each.side is Side.BUY:
            value = each.remaining * (each.price or _price(world, each.symbol, _NONE))
            values[each.symbol] = values.get(each.symbol, _NONE) + value
    here = [each for each in ours.pending if each.symbol == symbol]
    held = ours.held.get(symbol)
    return Exposure(
        position=held.quantity if held else _NONE,
        average_price=held.average_price if held else _NONE,
        pending_buy=_sum(here, Side.BUY),
        pending_sell=_sum(here, Side.SELL),
        symbol_value=values.get(symbol, _NONE),
        total_value=sum(values.values(), _NONE),
        open_symbols=len(values),
        cash=world.cash,
        equity=world.equity,
        daily_pnl=ours.earned_today + world.unrealised,
        orders_today=ours.orders_today,
        orders_last_minute=ours.orders_last_minute,
        unknown_attempts=sum(each.unknown for each in ours.pending),
        symbol_unknown=sum(each.unknown for each in here),
    )


def _price(world: Portfolio, symbol: str, otherwise: Decimal) -> Decimal:
    tick = world.last_tick(symbol)
    return Decimal(str(tick.price)) if tick else otherwise


def _sum(pending: Iterable[OpenOrder], side: Side) -> Decimal:
    return sum((each.remaining for each in pending if each.side is side), _NONE)


SEOUL = ZoneInfo("Asia/Seoul")
KEPT_S = 0.5


def trading_day_start(now: datetime) -> datetime:
    """Midnight in Seoul, for the KRX and for Upbit's won markets alike."""
    return now.astimezone(SEOUL).replace(hour=0, minute=0, second=0, microsecond=0)


class RiskSources(NamedTuple):
    """Where facts come from."""

    database: Database
    broker: str
    cache: Cache
    world: Portfolio
    watch: SafetyMonitor
    freezing: Container[str]  # frozen, and not in the database yet
    may_trade: Callable[[], bool]
    is_open: Callable[[], bool]


class RiskSnapshotReader:
    """Prices from the cache or the last tick, what money hangs on from the database."""

    def __init__(self, sources: RiskSources, clock: Clock) -> None:
        self._from = sources
        self._clock = clock
        self._known: AccountState | None = None
        self._known_ns = self._changes = 0

    def changed(self) -> None:
        """An order or a fill: how we stood is history."""
        self._known = None
        self._changes += 1

    async def __call__(self, proposal: OrderProposal) -> RiskSnapshot:
        ours = await self._standing()
        return RiskSnapshot(
            market=await self._market(proposal.symbol),
            exposure=compute_exposure(proposal.symbol, ours, self._from.world),
            switches=self._switches(proposal, ours),
            now=self._clock.now(),
        )

    async def _standing(self) -> AccountState:
        """As the database has it; kept until something changes, for a moment at most."""
        now_ns = self._clock.monotonic_ns()
        if self._known is not None and now_ns - self._known_ns < KEPT_S * 1e9:
            return self._known
        now, changes = self._clock.now(), self._changes
        found = await load_account_state(
            self._from.database, self._from.broker, trading_day_start(now), now
        )
        if changes == self._changes:
            self._known, self._known_ns = found, now_ns
        return found

    async def _market(self, symbol: str) -> QuoteSnapshot | None:
        try:
            price = await self._from.cache.prices.get(symbol)
        except OperationError:
            return self._last_heard(symbol)
        age_ms = self._clock.now().timestamp() * 1000 - price.timestamp
        return QuoteSnapshot(last=price.last, bid=price.bid, ask=price.ask, age_ms=age_ms)

    def _last_heard(self, symbol: str) -> QuoteSnapshot | None:
        """A tick that the cache calls old, or lost: the gate has a limit of its own for its age."""
        tick = self._from.world.last_tick(symbol)
        if tick is None:
            return None
        last, bid, ask = (Decimal(str(each)) for each in (tick.price, tick.bid, tick.ask))
        return QuoteSnapshot(last=last, bid=bid, ask=ask, age_ms=self._from.world.age_ms(tick))

    def _switches(self, proposal: OrderProposal, ours: AccountState) -> Switches:
        watch, here = self._from.watch, {proposal.symbol, "*"}
        return Switches(
            account_enabled=watch.enabled(),
            strategy_enabled=watch.enabled(proposal.strategy_key),
            market_active=ours.suspended.isdisjoint(here),
            frozen=proposal.symbol in self._from.freezing or not ours.frozen.isdisjoint(here),
            reconciled=self._from.may_trade(),
            session_open=self._from.is_open(),
            safety=watch.safety.state,
        )
