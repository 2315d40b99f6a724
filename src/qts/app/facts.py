"""What the gate looks at, gathered at the moment it is asked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

from qts.cache import Cache
from qts.database import Database
from qts.domain import Clock, Failed, Side
from qts.orders import Pending, Standing, standing
from qts.pipeline import World
from qts.risk import Exposure, Facts, Market, Proposal, Switches, Watch

SEOUL = ZoneInfo("Asia/Seoul")
KEPT_S = 0.5


def day_start(now: datetime) -> datetime:
    """Midnight in Seoul, for the KRX and for Upbit's won markets alike."""
    return now.astimezone(SEOUL).replace(hour=0, minute=0, second=0, microsecond=0)


class FactsNow:
    """The price from the cache, everything that money hangs on from the database."""

    def __init__(
        self,
        database: Database,
        broker: str,
        cache: Cache,
        world: World,
        watch: Watch,
        clock: Clock,
        *,
        may_trade: Callable[[], bool],
        is_open: Callable[[], bool],
    ) -> None:
        self._database = database
        self._broker = broker
        self._cache = cache
        self._world = world
        self._watch = watch
        self._clock = clock
        self._may_trade = may_trade
        self._is_open = is_open
        self._known: Standing | None = None
        self._known_ns = self._changes = 0

    def changed(self) -> None:
        """An order or a fill: how we stood is history."""
        self._known = None
        self._changes += 1

    async def __call__(self, proposal: Proposal) -> Facts:
        ours = await self._standing()
        return Facts(
            market=await self._market(proposal.symbol),
            exposure=self._exposure(proposal.symbol, ours),
            switches=self._switches(proposal, ours),
            now=self._clock.now(),
        )

    async def _standing(self) -> Standing:
        """As the database has it; kept until something changes, for a moment at most."""
        now_ns = self._clock.monotonic_ns()
        if self._known is not None and now_ns - self._known_ns < KEPT_S * 1e9:
            return self._known
        now, changes = self._clock.now(), self._changes
        found = await standing(self._database, self._broker, day_start(now), now)
        if changes == self._changes:
            self._known, self._known_ns = found, now_ns
        return found

    async def _market(self, symbol: str) -> Market | None:
        try:
            price = await self._cache.prices.get(symbol)
        except Failed:
            return None
        age_ms = self._clock.now().timestamp() * 1000 - price.timestamp
        return Market(last=price.last, bid=price.bid, ask=price.ask, age_ms=age_ms)

    def _exposure(self, symbol: str, ours: Standing) -> Exposure:
        values: dict[str, Decimal] = {
            name: abs(held.quantity) * self._price(name, held.average_price)
            for name, held in ours.held.items()
        }
        for each in ours.pending:
            if each.side is Side.BUY:
                value = each.remaining * (each.price or self._price(each.symbol, Decimal(0)))
                values[each.symbol] = values.get(each.symbol, Decimal(0)) + value
        here = [each for each in ours.pending if each.symbol == symbol]
        held = ours.held.get(symbol)
        return Exposure(
            position=held.quantity if held else Decimal(0),
            average_price=held.average_price if held else Decimal(0),
            pending_buy=_sum(here, Side.BUY),
            pending_sell=_sum(here, Side.SELL),
            symbol_value=values.get(symbol, Decimal(0)),
            total_value=sum(values.values(), Decimal(0)),
            open_symbols=len(values),
            cash=self._world.cash,
            equity=self._world.equity,
            daily_pnl=ours.earned_today + self._world.unrealised,
            orders_today=ours.orders_today,
            orders_last_minute=ours.orders_last_minute,
            unknown_attempts=sum(each.unknown for each in ours.pending),
            symbol_unknown=sum(each.unknown for each in here),
        )

    def _switches(self, proposal: Proposal, ours: Standing) -> Switches:
        watch = self._watch
        return Switches(
            account_enabled=watch.enabled(),
            strategy_enabled=watch.enabled(proposal.strategy_key),
            market_active=ours.suspended.isdisjoint({proposal.symbol, "*"}),
            reconciled=self._may_trade(),
            session_open=self._is_open(),
            safety=watch.safety.state,
        )

    def _price(self, symbol: str, otherwise: Decimal) -> Decimal:
        tick = self._world.latest(symbol)
        return Decimal(str(tick.price)) if tick else otherwise


def _sum(pending: list[Pending], side: Side) -> Decimal:
    return sum((each.remaining for each in pending if each.side is side), Decimal(0))
