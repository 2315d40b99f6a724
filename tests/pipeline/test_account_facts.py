"""The account state in memory: good for one version and day, read again after a change."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from qts.domain import ManualClock, OperationError, OrderType, Position, Side, Tick
from qts.orders import AccountState, OpenOrder, load_account_state
from qts.pipeline import risk_snapshot
from qts.pipeline.portfolio import Portfolio
from qts.pipeline.risk_snapshot import (
    AccountStateReader,
    AccountVersion,
    RiskSnapshotReader,
    RiskSources,
    account_facts,
)
from qts.risk import PreTradeGate, Refusal, RiskLimitsConfig
from tests.instruments import LISTED
from tests.pipeline.test_submitter import EXIT, SYMBOL

START = datetime(2026, 11, 16, 14, 59, 59, tzinfo=UTC)  # a second before midnight in Seoul


class Ledger:
    """Counts how often it is read."""

    def __init__(self) -> None:
        self.reads = 0
        self.fails = False
        self.read = asyncio.Event()

    async def load(self, database: Any, *rest: Any) -> AccountState:
        if database is not None:  # a reader of another test, which this one must not count
            return await load_account_state(database, *rest)
        self.reads += 1
        self.read.set()
        await asyncio.sleep(0)
        if self.fails:
            raise OperationError("PostgreSQL is away")
        held = {SYMBOL: Position(SYMBOL, Decimal(self.reads), Decimal(1))}
        return AccountState(held, (), 0, 0, Decimal(0), frozenset())


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    made = Ledger()
    monkeypatch.setattr(risk_snapshot, "load_account_state", made.load)
    return made


def reader(
    clock: ManualClock, version: AccountVersion, base: float = 0.0, last: Tick | None = None
) -> RiskSnapshotReader:
    async def no_price(_symbol: str) -> None:
        raise OperationError("no price")

    safety = SimpleNamespace(state="NORMAL")
    sources = RiskSources(
        states=AccountStateReader(cast(Any, None), cast(Any, None), version, clock),
        cache=cast(Any, SimpleNamespace(prices=SimpleNamespace(get=no_price))),
        portfolio=Portfolio(clock, LISTED),
        monitor=cast(Any, SimpleNamespace(enabled=lambda *_: True, safety=safety)),
        freezing=(),
        unwatched=tuple,
        is_reconciled=lambda: True,
        is_open=lambda: True,
        is_clock_synced=lambda: True,
        base_price=lambda _symbol: base,
    )
    if last is not None:
        sources.portfolio.apply_tick(last)
    return RiskSnapshotReader(sources, clock)


async def held(read: RiskSnapshotReader, *, fresh: bool = False) -> Decimal:
    snapshot = await read(EXIT, fresh=fresh)
    assert snapshot.facts is not None
    assert snapshot.facts.position == snapshot.exposure.position
    return snapshot.exposure.position


async def test_the_state_is_read_once_per_version_and_day(ledger: Ledger) -> None:
    clock, version = ManualClock(START), AccountVersion()
    read = reader(clock, version)
    assert [await held(read), await held(read)] == [1, 1]
    version.advance()
    assert await held(read) == 2
    await clock.advance(2.0)  # the day's counts begin again
    assert await held(read) == 3
    assert await held(read, fresh=True) == 4
    assert await held(read) == 4


async def test_a_change_is_read_before_anyone_needs_it(ledger: Ledger) -> None:
    version = AccountVersion()
    read = reader(ManualClock(START), version)
    await held(read)
    ledger.read.clear()
    version.advance()
    version.advance()
    async with asyncio.timeout(5):
        await ledger.read.wait()
    assert await held(read) == 2
    assert ledger.reads == 2


async def test_all_who_need_the_state_share_one_reading(ledger: Ledger) -> None:
    clock, version = ManualClock(START), AccountVersion()
    states = AccountStateReader(cast(Any, None), cast(Any, None), version, clock)
    first, second = await asyncio.gather(states.read(), states.read(max_age_s=0.25))
    assert first is second
    assert ledger.reads == 1
    await clock.advance(0.2)
    assert await states.read(max_age_s=0.25) is first
    await clock.advance(0.1)
    assert await states.read() is first
    newer = await states.read(max_age_s=0.25)
    assert ledger.reads == 2
    assert (newer.at, newer.version) == (clock.now(), first.version)
    assert await states.read() is newer
    version.advance()
    assert (await states.read(max_age_s=0.25)).version == version.value


async def test_a_reading_that_failed_is_not_kept(ledger: Ledger) -> None:
    read = reader(ManualClock(START), AccountVersion())
    ledger.fails = True
    with pytest.raises(OperationError):
        await held(read)
    ledger.fails = False
    assert await held(read) == 2


async def test_the_day_limits_follow_from_the_base_price_of_the_feed(ledger: Ledger) -> None:
    tick = Tick("005930", 91_000.0, 1.0, 90_900.0, 91_000.0, START.timestamp())
    beyond = replace(EXIT, symbol="005930", type=OrderType.LIMIT, price=Decimal(91_100))
    for base, codes in ((70_000.0, {"G_DAY_LIMIT"}), (71_000.0, set()), (0.0, set())):
        snapshot = await reader(ManualClock(START), AccountVersion(), base, tick)(beyond)
        refused = PreTradeGate(RiskLimitsConfig().exact).check(beyond, snapshot)
        found = {each.code for each in refused.reasons} if isinstance(refused, Refusal) else set()
        assert found & {"G_DAY_LIMIT"} == codes


QUANTITIES = st.decimals(min_value="0.000000000000000001", max_value=10**15, places=18)


@given(st.lists(st.tuples(st.sampled_from([SYMBOL, "KRW-ETH"]), QUANTITIES), max_size=20))
def test_sums_are_exact(orders: list[tuple[str, Decimal]]) -> None:
    """PostgreSQL adds all digits; a rounded sum would look like a change."""
    pending = tuple(OpenOrder(symbol, Side.BUY, each, None, False) for symbol, each in orders)
    state = AccountState({}, pending, 0, 0, Decimal(0), frozenset())
    facts = account_facts(SYMBOL, state)
    assert Fraction(facts.pending) == sum(Fraction(each) for _, each in orders)
    mine = sum(Fraction(each) for symbol, each in orders if symbol == SYMBOL)
    assert Fraction(facts.pending_buy) == mine
    assert facts.pending_orders == len(orders)
