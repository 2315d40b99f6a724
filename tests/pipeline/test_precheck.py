"""PreCheck: refuses what the gate refuses as well, without a statement to PostgreSQL."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast
from unittest.mock import Mock
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from qts.cache import Cache, CacheConfig, CachedPrice, CacheEntry, PreCheck
from qts.cache.store import MemoryStore
from qts.database import Database
from qts.domain import (
    AccountKey,
    AttemptState,
    Clock,
    IntentType,
    ManualClock,
    OrderType,
    Position,
    Side,
    SystemClock,
    Tick,
    UnreachableError,
)
from qts.events import Catalogue, EventEngine, EventsConfig
from qts.orders import AccountState, OpenOrder
from qts.pipeline import (
    DecisionPolicy,
    EtedaPipeline,
    IntentTracker,
    OrderSubmitter,
    PipelineConfig,
    PipelineHooks,
    Portfolio,
    RunnerHooks,
    StrategyRunner,
)
from qts.pipeline.cache_loader import (
    ACCOUNT,
    AccountCacheWriter,
    CacheSource,
    DatabaseCacheLoader,
    PreCheckStep,
    cached_positions,
    cached_risk,
    day_end,
)
from qts.pipeline.decision_journal import Entry, PreCheckEntry
from qts.pipeline.risk_snapshot import (
    AccountStateReader,
    AccountVersion,
    RiskSnapshotReader,
    RiskSources,
    compute_exposure,
    quote_of,
)
from qts.pipeline.scheduler import AccountEvaluator
from qts.pipeline.stop_orders import StopOrders
from qts.risk import OrderProposal, PreTradeGate, Refusal, RiskLimitsConfig, RiskSnapshot
from qts.strategies import NoParams, Strategy
from tests.cache import samples
from tests.instruments import LISTED
from tests.orders.kit import OrderKit, open_kit
from tests.outbox.kit import until
from tests.pipeline.portfolios import signal

NOW = datetime(2026, 11, 16, 1, tzinfo=UTC)
SYMBOLS = ("005930", "000660", "KRW-BTC", "KRW-XRP")


class Nothing:
    """CacheLoader that must not be called."""

    async def load(self, kind: str, name: str) -> CacheEntry | None:
        raise AssertionError(f"{kind} of {name} was loaded")


def monitor(*, enabled: bool = True, state: str = "NORMAL") -> Any:
    return Mock(enabled=lambda _key="": enabled, safety=Mock(state=state))


def price(symbol: str, last: Decimal, clock: Clock) -> CachedPrice:
    at = int(clock.now().timestamp() * 1000)
    return CachedPrice(
        symbol=symbol,
        bid=last,
        ask=last,
        last=last,
        volume=Decimal(1),
        timestamp=at,
        received_at=at,
    )


def proposal(clock: Clock, symbol: str = "005930", **other: Any) -> OrderProposal:
    values: dict[str, Any] = {
        "strategy_key": "buyer",
        "symbol": symbol,
        "side": Side.BUY,
        "type": OrderType.MARKET,
        "quantity": Decimal(10),
        "signal_id": uuid4(),
        "decided_at": clock.now(),
        "expires_at": clock.now() + timedelta(seconds=5),
        **other,
    }
    return OrderProposal(**values)


class Desk:
    """A PreCheck over a cache, and what it is made of."""

    def __init__(
        self,
        cache: Cache,
        clock: Clock,
        kit: OrderKit | None = None,
        monitor_: Any = None,
        **limits: Any,
    ) -> None:
        self.cache, self.clock = cache, clock
        self.database = database = cast("Database", kit and kit.database)
        self.key = key = kit.venue.key if kit else AccountKey("paper", "")
        self.portfolio, self.version = Portfolio(clock, LISTED), AccountVersion()
        self.portfolio.load(Decimal(10_000_000), ())
        self.limits = RiskLimitsConfig(**limits).exact
        self.states = states = AccountStateReader(database, key, self.version, clock)
        self.sources = RiskSources(
            states=states,
            cache=cache,
            portfolio=self.portfolio,
            monitor=monitor_ or monitor(),
            freezing=(),
            unwatched=frozenset,
            is_reconciled=lambda: True,
            is_open=lambda: True,
            is_clock_synced=lambda: True,
            base_price=lambda _symbol: 0.0,
        )
        source = CacheSource(database, key, self.portfolio, self.limits, clock)
        self.writer = AccountCacheWriter(cache, source, states)
        self.gate = PreTradeGate(self.limits)
        self.journal: list[Entry] = []
        self.step = PreCheckStep(
            cache, self.sources, self.gate, self.writer, clock, self.journal.append
        )

    def gate_codes(self, proposal: OrderProposal, snapshot: RiskSnapshot) -> tuple[str, ...]:
        checked = self.gate.check(proposal, snapshot)
        if isinstance(checked, Refusal):
            return tuple(reason.code for reason in checked.reasons)
        return ()


# --- the law ------------------------------------------------------------------------------------

amounts = st.decimals(0, 5_000, places=3)
prices = st.decimals("0.001", 200_000, places=3)
positions = st.dictionaries(
    st.sampled_from(SYMBOLS),
    st.tuples(st.decimals(-2_000, 2_000, places=3).filter(bool), prices),
    max_size=4,
)
pending = st.lists(
    st.builds(
        OpenOrder,
        st.sampled_from(SYMBOLS),
        st.sampled_from(Side),
        amounts,
        st.none() | prices,
        st.booleans(),
    ),
    max_size=4,
)
small_limits = st.fixed_dictionaries(
    {
        "max_open_symbols": st.integers(1, 4),
        "orders_per_day": st.integers(1, 20),
        "max_exposure": st.sampled_from([0.01, 0.5, 1.0]),
        "max_symbol_exposure": st.sampled_from([0.001, 0.15, 1.0]),
        "daily_loss": st.sampled_from([0.001, 0.03]),
        "short_selling": st.booleans(),
        "min_order_value": st.just(1),
    }
)


@given(
    held=positions,
    pending=pending,
    ticks=st.dictionaries(st.sampled_from(SYMBOLS), prices, max_size=4),
    cash=st.decimals(-1_000_000, 100_000_000, places=2),
    counts=st.tuples(st.integers(0, 25), st.decimals(-2_000_000, 100, places=4)),
    marked=st.tuples(*(st.frozensets(st.sampled_from((*SYMBOLS, "*")), max_size=2),) * 2),
    order=st.tuples(
        st.sampled_from(SYMBOLS),
        st.sampled_from(Side),
        amounts,
        st.sampled_from([IntentType.ENTRY, IntentType.EXIT_SIGNAL]),
    ),
    limits=small_limits,
    state=st.sampled_from(["NORMAL", "FAIL"]),
)
def test_what_precheck_refuses_the_gate_refuses_by_the_same_facts(
    held: dict[str, tuple[Decimal, Decimal]],
    pending: list[OpenOrder],
    ticks: dict[str, Decimal],
    cash: Decimal,
    counts: tuple[int, Decimal],
    marked: tuple[frozenset[str], frozenset[str]],
    order: tuple[str, Side, Decimal, IntentType],
    limits: dict[str, Any],
    state: str,
) -> None:
    clock = ManualClock(NOW)
    cache = Cache(MemoryStore(clock), Nothing(), CacheConfig(), clock)
    desk = Desk(cache, clock, monitor_=monitor(state=state), **limits)
    account = AccountState(
        {name: Position(name, *each) for name, each in held.items()},
        tuple(pending),
        counts[0],
        0,
        counts[1],
        *marked,
    )
    desk.portfolio.load(cash, account.held.values())
    for name, last in ticks.items():
        desk.portfolio.apply_tick(Tick(name, float(last), 1.0, 0.0, 0.0, 0.0))
    symbol, side, quantity, why = order
    wanted = proposal(clock, symbol, side=side, quantity=quantity, intent_type=why)
    quote = price(symbol, ticks.get(symbol, Decimal(1000)), clock)
    full = RiskSnapshot(
        instrument=LISTED[symbol],
        market=quote_of(quote, clock.now()),
        exposure=compute_exposure(symbol, account, desk.portfolio),
        switches=desk.sources.switches(wanted, account.suspended, account.frozen),
        now=clock.now(),
    )
    desk.cache.prices.push(quote)
    desk.cache.positions.push_all(cached_positions(account, desk.portfolio, clock.now()))
    desk.cache.risks.push(cached_risk(account, desk.portfolio, desk.limits, clock.now()))
    desk.writer._written = desk.version.value
    refused = asyncio.run(desk.step.check(wanted))
    assert set(refused) <= set(desk.gate_codes(wanted, full))
    assert not (refused and why.is_exit)


# --- with a database ----------------------------------------------------------------------------


class Buyer(Strategy[NoParams], key="buyer"):
    """Its signals are given by the test."""


@pytest.fixture
async def kit(database: Database) -> AsyncIterator[OrderKit]:
    """The orders of an account that buys one symbol."""
    async with open_kit(database, SystemClock()) as kit:
        await kit.submit(symbol="000660", quantity=Decimal(10), price=Decimal(1000))
        yield kit


@pytest.fixture
async def desk(kit: OrderKit) -> AsyncIterator[Desk]:
    """A desk that may hold one symbol."""
    clock = SystemClock()
    sources: list[CacheSource] = []

    class Loader:
        async def load(self, kind: str, name: str) -> CacheEntry | None:
            return await DatabaseCacheLoader(sources[0]).load(kind, name)

    config = CacheConfig(ttl=replace(CacheConfig().ttl, price_ms=60_000, position_ms=60_000))
    async with Cache.open(MemoryStore(clock), Loader(), config, clock=clock) as cache:
        desk = Desk(cache, clock, kit, max_open_symbols=1)
        sources.append(desk.writer._source)
        for symbol in ("005930", "000660"):
            cache.prices.push(price(symbol, Decimal(1000), clock))
            at = clock.now().timestamp()
            desk.portfolio.apply_tick(Tick(symbol, 1000.0, 1.0, 1000.0, 1000.0, at))
        yield desk


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every use of a connection of the pool; a statement needs one."""
    used: list[str] = []
    acquire = Database._acquire

    async def counted(self: Database) -> Any:
        used.append("acquire")
        return await acquire(self)

    monkeypatch.setattr(Database, "_acquire", counted)
    return used


def pipeline(desk: Desk) -> tuple[EtedaPipeline, OrderSubmitter, StrategyRunner]:
    def trip(code: str, text: str) -> None:
        raise AssertionError(f"{code}: {text}")

    async def no_orders(_approved: object) -> Any:
        raise AssertionError("an order was submitted")

    async def no_cancel(*_: object) -> None:
        raise AssertionError("an order was cancelled")

    submitter = OrderSubmitter(
        desk.gate,
        Mock(submit=no_orders),
        RiskSnapshotReader(desk.sources, desk.clock),
        IntentTracker(),
        lambda _proposal, _submitted: None,
        None,
    )
    emit, number = lambda _name, _payload: None, itertools.count(1).__next__
    steps = DecisionPolicy, emit, trip, None, desk.step
    stop_orders = StopOrders(desk.database, desk.key, desk.portfolio, desk.clock)
    hooks = PipelineHooks(*steps, lambda: True, number, no_cancel, stop_orders)
    made = EtedaPipeline(
        PipelineConfig(), desk.portfolio, submitter, desk.limits, hooks, desk.clock
    )
    loop = asyncio.get_running_loop()
    runner = StrategyRunner(
        Buyer(NoParams()),
        RunnerHooks(desk.portfolio.view, lambda _key: None, made.on_signals, loop, None),
    )
    return made, submitter, runner


async def test_a_refused_signal_costs_no_statement(desk: Desk, statements: list[str]) -> None:
    made, submitter, runner = pipeline(desk)
    await desk.writer.write()
    statements.clear()
    made.on_signals(runner, [signal(at=desk.clock.now().timestamp())])
    await made.close()
    assert desk.step.refusals == {"G_OPEN_SYMBOLS": 1}
    assert not submitter.refusals
    assert statements == []
    assert made.cycles[-1].decisions[0].reason == "PreCheck: G_OPEN_SYMBOLS"
    (journaled,) = desk.journal
    assert isinstance(journaled, PreCheckEntry)
    assert journaled.codes == ("G_OPEN_SYMBOLS",)
    desk.version.advance()  # the cache is older than the last change: the gate decides
    made.on_signals(runner, [signal(at=desk.clock.now().timestamp())])
    await made.close()
    assert submitter.refusals == {"G_OPEN_SYMBOLS": 1}
    assert statements


async def test_values_are_written_before_they_expire_and_after_a_change(
    desk: Desk, kit: OrderKit
) -> None:
    engine = EventEngine(EventsConfig(), Catalogue(), SystemClock())
    running = asyncio.create_task(AccountEvaluator(engine, desk.writer, desk.version).run())
    engine.start()

    async def open_symbols(count: int) -> None:
        async def is_written() -> bool:
            return desk.writer.is_current and (await read()).risk.open_symbols == count

        await until(is_written, 10)

    async def read() -> PreCheck:
        return await desk.cache.precheck("005930", load=False)

    try:
        await open_symbols(1)
        assert (await read()).position is None
        await kit.submit(symbol="035720", quantity=Decimal(10), price=Decimal(1000))
        desk.version.advance()
        assert await desk.step.check(proposal(desk.clock)) == ()
        await open_symbols(2)
    finally:
        running.cancel()
        await asyncio.wait([running])
        await asyncio.to_thread(engine.stop)
    desk.version.advance()  # as the final reconciliation does
    seen = desk.cache.status().kinds
    assert seen["position"].hit_rate == seen["risk"].hit_rate == seen["price"].hit_rate == 1.0


async def test_an_exit_is_never_refused(desk: Desk) -> None:
    await desk.writer.write()
    for why in IntentType:
        refused = await desk.step.check(proposal(desk.clock, intent_type=why, side=Side.SELL))
        assert bool(refused) is not why.is_exit, why


async def test_a_signal_that_has_an_order_is_refused(desk: Desk) -> None:
    await desk.writer.write()
    wanted, intent = proposal(desk.clock, "000660"), uuid4()
    desk.step.submitted(wanted.signal_id, intent)
    assert await desk.step.check(wanted) == ()  # the cache does not have the order yet
    desk.cache.orders.push(replace(samples.order(), order_id=str(intent)))
    assert await desk.step.check(wanted) == ("G_REPEATED",)


async def test_the_attempts_of_the_day_are_counted_once_and_refuse_entries(desk: Desk) -> None:
    await desk.writer.write()
    wanted = proposal(desk.clock, "000660")
    assert await desk.step.check(wanted) == ()
    attempts = [uuid4() for _ in range(desk.limits.orders_per_day)]
    for attempt in (*attempts, *attempts, uuid4()):
        for state in (AttemptState.PREPARED, AttemptState.SENT, AttemptState.ACKED):
            await desk.writer.order_changed(uuid4(), str(attempt), state)
    assert desk.writer.orders_today() == desk.limits.orders_per_day == 100
    desk.cache.prices.push(price("000660", Decimal(1000), desk.clock))  # the first may be old now
    assert await desk.step.check(wanted) == ("G_DAILY_ORDERS",)
    assert desk.cache.trades.total(ACCOUNT, day_end(NOW + timedelta(days=400))) == 0


class SlowStore(MemoryStore):
    """Redis that does not answer."""

    async def read(self, keys: Any) -> Any:  # noqa: ARG002
        await asyncio.sleep(3600)

    async def write(self, entries: Any) -> Any:  # noqa: ARG002
        raise UnreachableError("Redis is gone")


async def test_without_redis_the_gate_decides_at_once() -> None:
    clock = SystemClock()
    config = CacheConfig()
    async with Cache.open(SlowStore(clock), Nothing(), config, clock=clock) as cache:
        desk = Desk(cache, clock)
        desk.writer._written = desk.version.value
        for _ in range(10):  # the circuit opens: then Redis is not called
            began = clock.monotonic_ns()
            assert await desk.step.check(proposal(clock)) == ()
            assert clock.monotonic_ns() - began < 10e9  # not the hour of a read
        assert cache.status().breaker == "open"
