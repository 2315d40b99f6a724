"""Positions, risk, orders and parameters in the cache, from the database, and the PreCheck on them.

DatabaseCacheLoader loads one value where the cache has none. AccountCacheWriter writes positions
and risk of the account after each change and before they expire, so that a PreCheck finds them.

PreCheck refuses an entry before the gate reads the database, by what the cache holds.

    Decide ─▶ PreCheck ──refused──▶ counted; no statement to PostgreSQL
                 └──────passed────▶ Act: gate, order

It runs the rules of the gate on a snapshot that assumes the best where the cache knows nothing: no
pending sale, no suspension, no order in the last minute. What it refuses, the gate refuses as well;
what it passes, the gate decides. Exits pass always.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from qts import telemetry
from qts.cache import (
    Cache,
    CachedOrder,
    CachedPosition,
    CachedRisk,
    CachedStrategyParams,
    CacheEntry,
    Invalidation,
    PreCheck,
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
from qts.pipeline.cycle import Cycle, Decision
from qts.pipeline.decision_journal import Entry, PreCheckEntry
from qts.pipeline.portfolio import Portfolio
from qts.pipeline.risk_snapshot import (
    AccountStateReader,
    RiskSources,
    compute_exposure,
    quote_of,
    symbol_values,
)
from qts.pipeline.risk_snapshot import trading_day_start as day_start
from qts.risk import Exposure, OrderProposal, PreTradeGate, Refusal, RiskLimits, RiskSnapshot

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

_REFUSED = telemetry.counter("qts_precheck_refusals_total", "reasons PreCheck gave", ("code",))

_MAX_SIGNALS = 2_000
_NONE: frozenset[str] = frozenset()


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

    def __init__(self, cache: Cache, source: CacheSource, states: AccountStateReader) -> None:
        self._cache = cache
        self._source = source
        self._states = states
        self._version = states.version
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
        reading = await self._states.read(max_age_s=self.refresh_s / 2)
        if not version == reading.version == self._version.value:
            return
        state, now = reading.state, reading.at
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


class PreCheckStep:
    """Step between Decide and Act, for one event loop."""

    def __init__(
        self,
        cache: Cache,
        sources: RiskSources,
        gate: PreTradeGate,
        writer: AccountCacheWriter,
        clock: Clock,
        record: Callable[[Entry], None] | None = None,
    ) -> None:
        self._cache = cache
        self._sources = sources
        self._gate = gate
        self._writer = writer
        self._clock = clock
        self._record = record
        self._intents: OrderedDict[UUID, UUID] = OrderedDict()  # by signal, of this run
        self.refusals: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()  # by strategy and code

    def submitted(self, signal_id: UUID, intent_id: UUID) -> None:
        """Remember the order of a signal: the signal is not acted on again."""
        self._intents[signal_id] = intent_id
        if len(self._intents) > _MAX_SIGNALS:
            self._intents.popitem(last=False)

    async def __call__(self, cycle: Cycle) -> Cycle:
        """Return the cycle without the proposals that are refused."""
        decisions = tuple([await self._checked(each) for each in cycle.decisions])
        return replace(cycle, decisions=decisions)

    async def check(self, proposal: OrderProposal) -> tuple[str, ...]:
        """Return the codes of a refusal; none: the gate decides."""
        if proposal.intent_type.is_exit or not self._writer.is_current:
            return ()
        intent = self._intents.get(proposal.signal_id)
        try:
            found = await self._cache.precheck(
                proposal.symbol, ACCOUNT, str(intent) if intent else None, load=False
            )
        except OperationError:
            return ()
        if found.order is not None:
            return ("G_REPEATED",)
        checked = self._gate.check(proposal, self.snapshot(proposal, found))
        if not isinstance(checked, Refusal):
            return ()
        return tuple(reason.code for reason in checked.reasons)

    def snapshot(self, proposal: OrderProposal, found: PreCheck) -> RiskSnapshot:
        """Build the most favourable snapshot that the cached values allow."""
        now, equity = self._clock.now(), self._sources.portfolio.equity
        position, risk, whole = found.position, found.risk, max(equity, Decimal(1))
        return RiskSnapshot(
            instrument=self._sources.portfolio.instruments[proposal.symbol],
            market=quote_of(found.price, now, self._sources.base(found.price.symbol)),
            exposure=Exposure(
                position=position.qty if position else _ZERO,
                pending_buy=_ZERO,
                pending_sell=_ZERO,
                symbol_value=position.exposure_pct * whole if position else _ZERO,
                total_value=risk.exposure_used * whole,
                open_symbols=risk.open_symbols if position is None else 0,
                cash=self._sources.portfolio.cash,
                equity=equity,
                daily_pnl=risk.daily_pnl,
                orders_today=max(risk.trade_count, self._writer.orders_today()),
                orders_last_minute=0,
                symbol_unknown=0,
            ),
            switches=self._sources.switches(proposal, _NONE, _NONE),
            now=now,
        )

    async def _checked(self, decision: Decision) -> Decision:
        proposal = decision.proposal
        if proposal is None or not (codes := await self.check(proposal)):
            return decision
        for code in codes:
            _REFUSED.labels(code).inc()
            self.refusals[code] += 1
            self.refused[proposal.strategy_key, code] += 1
        if self._record is not None:
            self._record(PreCheckEntry(proposal.signal_id, codes))
        log.debug("refused by PreCheck", symbol=proposal.symbol, side=proposal.side, codes=codes)
        return Decision(decision.signal, None, "PreCheck: " + " ".join(codes))
