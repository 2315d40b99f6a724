"""Signals of another process: acted on once, acknowledged after that, refused when too old."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from qts.domain import ManualClock, OrderSnapshot, Position, Side, SystemClock
from qts.pipeline import RunnerHooks, StrategyUpdate
from qts.roles import (
    RemotePipeline,
    RemoteRunner,
    ReportReceiver,
    ReportSender,
    SignalReceiver,
    remote_pipeline,
)
from qts.roles.connection import encode
from qts.roles.remote_strategies import SignalMessage
from qts.strategies import NoParams, Signal
from tests.pipeline.counting import ACCOUNT
from tests.pipeline.portfolios import signal, tick
from tests.pipeline.test_scheduler import BUY, EXIT, NOW_S, SELL, Bench, Buyer
from tests.roles.channel import Channel

D = Decimal
TTL_S = 5.0
ORDER = OrderSnapshot(
    intent_id="i", symbol="005930", side=BUY, state="ACKED", filled=D(0), remaining=D(3)
)


class Execution(Bench):
    """The pipeline of an account whose strategies are in another process."""

    def __init__(self) -> None:
        super().__init__()
        self.portfolio.apply_tick(tick(at=NOW_S))
        self.trades.may_fill.set()
        self.channel = channel = Channel()
        state = lambda: self.portfolio._store.state.accounts[0]  # noqa: E731
        may_start = lambda: self.pipeline.may_start  # noqa: E731
        self.reports = ReportSender(channel.connection, ACCOUNT, state, may_start)
        loop = asyncio.get_running_loop()
        hooks = RunnerHooks(self.portfolio.view, lambda _key: None, lambda *_: None, loop, None)
        runner = RemoteRunner(Buyer(NoParams()), hooks, self.reports.add)
        self.receiver = SignalReceiver(
            channel.connection,
            self.pipeline,
            {"buyer": runner},
            self.reports,
            SystemClock(),
            TTL_S,
        )

    def message(self, *signals: Signal, age_s: float = 0.0, **other: Any) -> bytes:
        known: dict[str, Any] = {
            "id": "1",
            "strategy_key": "buyer",
            "decided_at": SystemClock().now().timestamp() - age_s,
            "after_order": False,
            "seen": (self.reports.id, 0),
            "instructions": signals,
        }
        return encode(SignalMessage(**(known | other)))


async def test_a_signal_is_acted_on_before_it_is_acknowledged() -> None:
    bench = Execution()
    bench.trades.may_fill.clear()
    handling = asyncio.create_task(bench.receiver.handle(bench.message(signal(at=NOW_S))))
    await bench.trades.was_asked.wait()
    assert not handling.done()
    bench.trades.may_fill.set()
    assert await handling
    assert [each.symbol for each in bench.trades.asked] == ["005930"]


async def test_a_message_that_comes_again_is_acted_on_once() -> None:
    bench = Execution()
    data = bench.message(signal(at=NOW_S))
    assert await bench.receiver.handle(data)
    assert await bench.receiver.handle(data)
    assert len(bench.trades.asked) == 1
    assert bench.channel.status.duplicates == 1


async def test_an_old_entry_is_refused_and_an_old_exit_is_not() -> None:
    bench = Execution()
    await bench.receiver.handle(bench.message(signal(at=NOW_S), age_s=TTL_S + 1))
    assert bench.trades.asked == []
    assert bench.channel.status.signals_stale == 1
    leave = signal(at=NOW_S, side=SELL, intent_type=EXIT, quantity=1)
    data = bench.message(leave, age_s=TTL_S + 1, id="2")
    bench.portfolio.apply_position(Position("005930", D(3), D(10_000)), D(0))
    await bench.receiver.handle(data)
    assert [each.side for each in bench.trades.asked] == [Side.SELL]


async def test_an_entry_decided_before_a_report_about_its_symbol_is_outdated() -> None:
    bench = Execution()
    bench.reports.add("buyer", StrategyUpdate(None, ORDER))
    await bench.receiver.handle(bench.message(signal(at=NOW_S)))
    assert bench.trades.asked == []
    assert bench.channel.status.signals_outdated == 1
    seen = (bench.reports.id, 1)
    await bench.receiver.handle(bench.message(signal(at=NOW_S), id="2", seen=seen))
    assert len(bench.trades.asked) == 1


async def test_an_entry_that_saw_an_earlier_execution_process_is_outdated() -> None:
    bench = Execution()
    await bench.receiver.handle(bench.message(signal(at=NOW_S), seen=("another", 99)))
    assert bench.trades.asked == []


async def test_a_signal_after_an_order_waits_for_it() -> None:
    bench = Execution()
    bench.trades.may_fill.clear()
    first = asyncio.create_task(bench.receiver.handle(bench.message(signal(at=NOW_S))))
    await bench.trades.was_asked.wait()
    later = signal(at=NOW_S + 1, side=BUY)
    data = bench.message(later, id="2", after_order=True)
    second = asyncio.create_task(bench.receiver.handle(data))
    await asyncio.sleep(0)
    assert not second.done()
    bench.trades.may_fill.set()
    assert await first
    assert await second
    assert len(bench.trades.asked) == 2


@pytest.mark.parametrize("data", [b"", b"\x93abc", encode(("x",))])
async def test_what_cannot_be_read_is_counted_and_dropped(data: bytes) -> None:
    bench = Execution()
    assert await bench.receiver.handle(data)
    assert bench.channel.status.refused == 1


async def test_a_signal_of_no_strategy_is_dropped() -> None:
    bench = Execution()
    data = bench.message(signal(at=NOW_S), strategy_key="gone")
    assert await bench.receiver.handle(data)
    assert bench.channel.status.refused == 1


async def test_entries_that_expire_while_nats_is_out_of_reach_are_dropped() -> None:
    channel, clock = Channel(), ManualClock()
    reports = ReportReceiver(channel.connection, ACCOUNT, lambda _state: None, {})
    may_send = lambda: True  # noqa: E731
    pipeline = RemotePipeline(channel.connection, ACCOUNT, reports, clock, may_send, TTL_S)
    reports.takes_signals = True
    runner = Bench().runner
    for _ in range(remote_pipeline.MAX_WAITING - 1):
        pipeline.on_signals(runner, [signal()])
    pipeline.on_signals(runner, [signal(side=SELL, intent_type=EXIT)])
    assert channel.status.signals_pending == remote_pipeline.MAX_WAITING
    await clock.advance(TTL_S + 1)
    pipeline.on_signals(runner, [signal()])
    assert channel.status.signals_pending == 3  # the one in flight, the exit, the new one
    assert channel.status.signals_stale == remote_pipeline.MAX_WAITING - 2


async def test_what_is_being_sent_is_stored_before_a_flush_returns() -> None:
    bench = Execution()
    bench.channel.may_store.clear()
    bench.reports.add("buyer", StrategyUpdate(None, ORDER))
    sending, flushing = (asyncio.create_task(bench.reports.flush()) for _ in range(2))
    await asyncio.wait({sending, flushing}, timeout=0.05)
    assert not flushing.done()
    assert bench.channel.status.reports_pending == 1
    bench.channel.may_store.set()
    await flushing
    assert len(bench.channel.sent) == 1
    assert bench.channel.status.reports_pending == 0


async def test_a_report_that_is_given_up_does_not_stay_pending() -> None:
    bench = Execution()
    bench.channel.may_store.clear()
    bench.reports.add("buyer", StrategyUpdate(None, ORDER))
    sending = asyncio.create_task(bench.reports.flush())
    await asyncio.wait({sending}, timeout=0.05)
    sending.cancel()
    await asyncio.wait({sending})
    assert bench.channel.status.reports_pending == 0
