"""Several accounts in one run: each keeps its own state, and none waits for another."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from qts.domain import ManualClock, Position, Side, SystemClock
from qts.events import AccountEvents, Catalogue, DegradationLevel, EventEngine, EventsConfig
from qts.pipeline import DecisionJournal, JournaledStore, JournalHeader, Portfolio, PortfolioStore
from qts.pipeline.decision_journal import TickEntry, read_journal
from qts.pipeline.journaled_run import ReplayedStore
from qts.pipeline.risk_snapshot import AccountVersion
from qts.pipeline.scheduler import AccountEvaluator, CycleScheduler
from qts.pipeline.strategy_config import PipelineConfig
from qts.risk import RiskLimitsConfig
from qts.strategies import Signal
from tests.instruments import LISTED
from tests.pipeline.portfolios import NOW, signal, tick

SYMBOLS = (("005930", "000660"), ("KRW-BTC", "KRW-ETH"))
amounts = st.decimals(1, 10**6, places=2)
change = st.tuples(
    st.integers(0, 1),
    st.sampled_from(("load", "fill", "owner", "cash")),
    st.integers(0, 1),
    amounts,
)


def apply(portfolio: Portfolio, kind: str, symbol: str, amount: Decimal) -> None:
    match kind:
        case "load":
            portfolio.load(amount, [Position(symbol, Decimal(2), amount)])
        case "fill":
            portfolio.apply_position(Position(symbol, Decimal(1), amount), -amount)
        case "owner":
            portfolio.set_owner(symbol, "mine")
        case "cash":
            portfolio.set_cash(amount)


@given(st.lists(change, max_size=20))
def test_a_change_of_one_account_is_none_of_the_other(
    changes: list[tuple[int, str, int, Decimal]],
) -> None:
    store = PortfolioStore(ManualClock(), 2)
    both = [Portfolio(ManualClock(), LISTED, store, number) for number in (0, 1)]
    alone = [Portfolio(ManualClock(), LISTED) for _ in both]
    for number, kind, which, amount in changes:
        for portfolios in (both, alone):
            apply(portfolios[number], kind, SYMBOLS[number][which], amount)
    for one, other in zip(both, alone, strict=True):
        assert (one.cash, one.positions, one.owners) == (other.cash, other.positions, other.owners)
        assert one.equity == other.equity
    view = store.view()
    assert view.account.cash == sum(each.cash for each in alone)
    assert view.equity == sum(each.equity for each in alone)
    assert view.positions == {**alone[0].positions, **alone[1].positions}


def test_views_of_two_accounts_are_replayed(tmp_path: Path) -> None:
    path, clock = tmp_path / "a.journal", ManualClock()
    header = JournalHeader(NOW, (), RiskLimitsConfig().exact, 2)
    seen = []
    with DecisionJournal(path, header) as journal:
        store = JournaledStore(clock, journal, 2)
        first, second = (Portfolio(clock, LISTED, store, number) for number in (0, 1))
        first.load(Decimal(1000), ())
        second.load(Decimal(500), [Position("KRW-BTC", Decimal(1), Decimal(100))])
        for price in (100.0, 200.0):
            store.apply_tick(tick("KRW-BTC", price=price))
            seen += [(None, store.view()), (0, store.view(0)), (1, store.view(1))]
            first.apply_position(Position("005930", Decimal(1), Decimal(price)), Decimal(-1))
    entries: list[Any] = [
        each for each in read_journal(path) if not isinstance(each, JournalHeader)
    ]
    ticks = [each for each in entries if isinstance(each, TickEntry)]
    past = ReplayedStore(ticks, [each for each in entries if each not in ticks], 2)
    assert [past.view_at(view.version, view.now, number) for number, view in seen] == [
        view for _, view in seen
    ]
    assert seen[0][1].account.cash == 1500


class Account:
    """Pipeline that keeps what it was started with, and ends when it may."""

    def __init__(self) -> None:
        self.cycles: list[list[Signal]] = []
        self.heard: list[Signal] = []
        self.may_end = asyncio.Event()
        self.may_start = True

    def start(self, _key: str, signals: Any) -> asyncio.Task[None]:
        async def run() -> None:
            self.cycles.append(await signals())
            await self.may_end.wait()

        return asyncio.create_task(run())

    def on_signals(self, _runner: object, signals: list[Signal], **_options: bool) -> None:
        self.heard += signals


class Runner:
    """Strategy that wants one symbol of each account in each cycle."""

    key = "mine"

    def __init__(self) -> None:
        self.calls = 0

    async def evaluate(self) -> list[Signal]:
        self.calls += 1
        return [signal(symbol=symbols[0], side=Side.BUY) for symbols in SYMBOLS]


async def test_a_strategy_is_called_once_and_a_busy_account_delays_no_other() -> None:
    clock, accounts, runner = ManualClock(), (Account(), Account()), Runner()

    def emit(_name: str, payload: Any) -> None:
        scheduler.start_cycle(payload.strategy_type)

    scheduler = CycleScheduler(
        cast("Any", accounts),
        lambda symbol: cast("Any", accounts[symbol.startswith("KRW-")]),
        PipelineConfig(),
        emit,
        clock,
    )
    accounts[1].may_end.set()
    running = asyncio.create_task(scheduler.run(cast("Any", runner)))
    await clock.advance(0.5)
    assert runner.calls == 1
    assert [[each.symbol for each in found.cycles[0]] for found in accounts] == [
        ["005930"],
        ["KRW-BTC"],
    ]
    await clock.advance(3)  # the first account waits for a fill
    assert len(accounts[0].cycles) == 1
    assert len(accounts[1].cycles) == runner.calls == 4
    accounts[0].may_end.set()
    await clock.advance(2)
    assert len(accounts[0].cycles) > 1
    accounts[1].may_start = False  # suspended
    before = len(accounts[1].cycles)
    await clock.advance(3)
    assert len(accounts[1].cycles) == before
    running.cancel()
    await asyncio.wait({running})


async def test_signals_of_a_tick_go_to_the_account_of_their_symbol() -> None:
    accounts = (Account(), Account())
    scheduler = CycleScheduler(
        cast("Any", accounts),
        lambda symbol: cast("Any", accounts[symbol.startswith("KRW-")]),
        PipelineConfig(),
        lambda _name, _payload: None,
        ManualClock(),
    )
    signals = [signal(symbol=symbol) for symbols in SYMBOLS for symbol in symbols]
    scheduler.on_signals(cast("Any", Runner()), signals)
    assert [[each.symbol for each in account.heard] for account in accounts] == [
        list(symbols) for symbols in SYMBOLS
    ]


class Writer:
    """Counts how often its account is written to the cache."""

    refresh_s = 600.0

    def __init__(self, account: str) -> None:
        self.account, self.written = account, asyncio.Semaphore(0)

    async def write(self) -> None:
        self.written.release()


async def test_each_account_is_written_to_the_cache_after_its_change() -> None:
    engine = EventEngine(EventsConfig(), Catalogue(), SystemClock())
    accounts = [(Writer(name), AccountVersion(), AccountEvents(engine, name)) for name in "ab"]
    evaluators = [
        AccountEvaluator(events, cast("Any", writer), version)
        for writer, version, events in accounts
    ]
    tasks = [asyncio.create_task(each.run()) for each in evaluators]
    engine.start()
    try:
        async with asyncio.timeout(10):
            for writer, _, _ in accounts:
                await writer.written.acquire()  # at the start
            engine.degrade(DegradationLevel.P2_P3_PAUSED)  # events of one subject merge meanwhile
            for _, version, _ in accounts:
                version.advance()
            engine.degrade(DegradationLevel.NORMAL)
            for writer, _, _ in accounts:
                await writer.written.acquire()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await asyncio.to_thread(engine.stop)
