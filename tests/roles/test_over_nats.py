"""Signals and reports over a real NATS: each takes effect once, whoever is killed meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal as signals
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from decimal import Decimal
from typing import Any

import pytest

from qts.domain import Fill, OrderSnapshot, Position, Side, SystemClock, Tick
from qts.embedded import NatsServer
from qts.feed import FeedCallbacks
from qts.outbox import NatsBusConfig
from qts.pipeline import PortfolioState, RunnerHooks, StrategyRunner, StrategyUpdate
from qts.roles import (
    FeedPublisher,
    RemoteFeed,
    RemotePipeline,
    ReportReceiver,
    ReportSender,
    RoleConnection,
)
from qts.roles import connection as connection_module
from qts.roles.connection import SIGNALS, DurableReceiver
from qts.roles.feed_publisher import feed_subject
from qts.roles.remote_feed import NO_FEED_STATUS
from qts.roles.remote_strategies import decode_signals
from qts.strategies import NoParams, Signal, Strategy, View
from tests.conformance.brokers import nats, nats_server
from tests.pipeline.counting import ACCOUNT
from tests.pipeline.portfolios import NOW, signal

__all__ = ["nats", "nats_server"]

D = Decimal
CLOCK = SystemClock()
STATE = PortfolioState(D(1000), {"005930": Position("005930", D(3), D(70_000))}, {"005930": "a"})
FILL = Fill(
    trade_id="t1",
    broker_order_id="o1",
    symbol="005930",
    side=Side.BUY,
    quantity=D(3),
    price=D(70_000),
    fee=D(0),
    at=NOW,
)
ORDER = OrderSnapshot(
    intent_id="i", symbol="005930", side=Side.BUY, state="FILLED", filled=D(3), remaining=D(0)
)


class Follower(Strategy[NoParams], key="follower"):
    """Answers a fill with an exit."""

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.fills: list[Fill] = []

    def on_fill(self, fill: Fill, view: View) -> list[Signal]:
        self.fills.append(fill)
        assert view.quantity(fill.symbol) == 3  # the account is as new as the fill
        return [signal(symbol=fill.symbol, side=Side.SELL, at=fill.at.timestamp())]


class Received:
    """Handles signals, and may be told not to end."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.changed = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def handle(self, data: bytes) -> bool:
        self.messages.append(decode_signals(data))
        self.changed.set()
        await self.may_end.wait()
        return True

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.messages) < count:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def running(*coroutines: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def receiver(connection: RoleConnection, handler: Received) -> DurableReceiver:
    return DurableReceiver(connection, SIGNALS, SIGNALS.of(ACCOUNT), handler.handle)


class Runner(StrategyRunner):
    """Calls its strategy at once, without lanes."""

    def __init__(self, strategy: Follower, pipeline: RemotePipeline, view: Any) -> None:
        def deliver(runner: StrategyRunner, found: list[Signal], **more: bool) -> None:
            pipeline.on_signals(runner, found, **more)

        loop = asyncio.get_running_loop()
        wake = lambda _key: loop.call_soon(self.run_pending)  # noqa: E731
        super().__init__(strategy, RunnerHooks(view, wake, deliver, loop, None))


class Strategies:
    """The strategies role without lanes and ticks."""

    def __init__(self, connection: RoleConnection) -> None:
        self.state = PortfolioState()
        self.follower = Follower(NoParams())
        runners: dict[str, StrategyRunner] = {}
        self.reports = ReportReceiver(connection, ACCOUNT, self._replace, runners)
        self.pipeline = RemotePipeline(connection, ACCOUNT, self.reports, CLOCK, lambda: True, 5.0)
        runners["follower"] = Runner(self.follower, self.pipeline, self._view)
        self.changed = asyncio.Event()

    def _replace(self, state: PortfolioState) -> None:
        self.state = state
        self.changed.set()

    def _view(self) -> View:
        from qts.pipeline import account_of

        state = self.state
        return View(NOW, {}, state.positions, account_of(state), state.cash)

    def tasks(self) -> tuple[Any, ...]:
        return self.pipeline.run(), self.reports.run(self.pipeline.flush)


async def test_a_fill_reaches_a_strategy_and_its_answer_comes_back(nats: NatsBusConfig) -> None:
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(RoleConnection.open(nats, "execution"))
        there = await stack.enter_async_context(RoleConnection.open(nats, "strategies"))
        sender = ReportSender(here, ACCOUNT, lambda: STATE, lambda: True)
        strategies, received = Strategies(there), Received()
        work = sender.run(), receiver(here, received).run(), *strategies.tasks()
        async with running(*work):
            sender.add("follower", StrategyUpdate(FILL, ORDER))
            await received.until(1)
    (message,) = received.messages
    assert strategies.follower.fills == [FILL]
    assert strategies.state.positions == STATE.positions
    assert message.after_order
    assert [each.side for each in message.instructions] == [Side.SELL]
    assert not sender.is_outdated("005930", message.seen)
    assert there.status.signals_sent == 1
    assert there.status.signals_pending == 0


async def test_a_report_that_comes_again_calls_a_strategy_once(nats: NatsBusConfig) -> None:
    async with RoleConnection.open(nats, "strategies") as connection:
        strategies = Strategies(connection)
        data: list[bytes] = []

        class Kept:
            status = connection.status
            client = connection.client

            async def publish_durable(self, _stream: Any, _to: str, sent: bytes, _id: str) -> None:
                data.append(sent)

        kept: Any = Kept()
        sender = ReportSender(kept, ACCOUNT, lambda: STATE, lambda: True)
        sender.add("follower", StrategyUpdate(FILL, ORDER))
        await sender.flush()
        async with running(strategies.pipeline.run()):
            for _ in range(3):
                assert await strategies.reports.handle(data[0], strategies.pipeline.flush)
    assert strategies.follower.fills == [FILL]
    assert connection.status.duplicates == 2
    assert connection.status.signals_sent == 1


async def test_strategies_that_start_late_are_given_the_account(nats: NatsBusConfig) -> None:
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(RoleConnection.open(nats, "execution"))
        there = await stack.enter_async_context(RoleConnection.open(nats, "strategies"))
        sender = ReportSender(here, ACCOUNT, lambda: STATE, lambda: True)
        async with running(sender.run()):
            for strategies in (Strategies(there), Strategies(there)):  # one after the other
                async with running(*strategies.tasks()):
                    async with asyncio.timeout(10):
                        await strategies.changed.wait()
                assert strategies.state.cash == STATE.cash
                assert strategies.pipeline.may_start


async def test_a_message_whose_receiver_is_killed_comes_again(
    nats: NatsBusConfig, monkeypatch: Any
) -> None:
    monkeypatch.setattr(connection_module, "ACK_WAIT_S", 1.0)
    first, second = Received(), Received()
    first.may_end.clear()
    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(RoleConnection.open(nats, "strategies"))
        strategies = Strategies(there)
        killed = await stack.enter_async_context(RoleConnection.open(nats, "execution"))
        strategies.pipeline._send("follower", [signal()], after_order=False)
        async with running(strategies.pipeline.run()):
            task = asyncio.create_task(receiver(killed, first).run())
            await first.until(1)
            with suppress(OSError):  # as kill -9 does: nothing is said any more
                killed.client._transport.close()  # type: ignore[union-attr]
                killed.client.options["allow_reconnect"] = False
            here = await stack.enter_async_context(RoleConnection.open(nats, "execution"))
            async with running(receiver(here, second).run()):
                await second.until(1)
        task.cancel()
        first.may_end.set()
        await asyncio.wait({task})
    assert [each.id for each in second.messages] == [each.id for each in first.messages]


@pytest.mark.parametrize("role", ["execution", "strategies"])
async def test_a_role_ends_though_the_client_swallows_its_cancellation(
    nats: NatsBusConfig, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    publishing = asyncio.Event()

    async def publish(*_: Any, **__: Any) -> None:
        publishing.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()  # as wait_for of Python 3.11 once the answer is there

    async with RoleConnection.open(nats, role) as connection:
        monkeypatch.setattr(connection.jetstream, "publish", publish)
        if role == "execution":
            work = ReportSender(connection, ACCOUNT, lambda: STATE, lambda: True).run()
        else:
            strategies = Strategies(connection)
            strategies.pipeline._send("follower", [signal()], after_order=False)
            work = strategies.pipeline.run()
        task = asyncio.create_task(work)
        await publishing.wait()
        task.cancel()
        await asyncio.wait({task}, timeout=5)
        assert task.cancelled()


async def test_signals_survive_a_server_that_is_killed(
    nats: NatsBusConfig, nats_server: NatsServer
) -> None:
    received = Received()
    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(RoleConnection.open(nats, "strategies"))
        here = await stack.enter_async_context(RoleConnection.open(nats, "execution"))
        strategies = Strategies(there)
        async with running(strategies.pipeline.run(), receiver(here, received).run()):
            for number in range(30):
                strategies.pipeline._send("follower", [signal()], after_order=False)
                if number in (10, 20):
                    assert nats_server.pid is not None
                    os.kill(nats_server.pid, signals.SIGKILL)
                    strategies.pipeline._send("follower", [signal()], after_order=False)
                    await asyncio.to_thread(nats_server.stop)
                    await asyncio.to_thread(nats_server.start)
            async with asyncio.timeout(30):
                await strategies.pipeline.flush()
            await received.until(32)
    assert len({each.id for each in received.messages}) == 32


async def test_ticks_cross_nats_and_a_late_receiver_gets_the_newest(nats: NatsBusConfig) -> None:
    class Source:
        def __init__(self) -> None:
            self.watched: tuple[Any, Any] = ((), ())
            self.changed = asyncio.Event()

        def watch(self, symbols: Any, on_order: Any) -> None:
            self.watched = (tuple(symbols), tuple(on_order))
            self.changed.set()

        def price_age_s(self, _symbol: str) -> float | None:
            return 0.0

        def base_price(self, _symbol: str) -> float:
            return 68_000.0

        def status(self) -> Any:
            return NO_FEED_STATUS

    ticks: list[Tick] = []
    arrived = asyncio.Event()

    def on_tick(tick: Tick) -> None:
        ticks.append(tick)
        arrived.set()

    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(RoleConnection.open(nats, "feed"))
        there = await stack.enter_async_context(RoleConnection.open(nats, "execution"))
        publisher, source = FeedPublisher(here, "kis"), Source()
        feed = RemoteFeed(there, "kis", None, FeedCallbacks(on_tick), CLOCK)
        async with running(publisher.run(source)), asyncio.timeout(20):
            await asyncio.sleep(0)
            publisher.on_tick(Tick("005930", 70_000.0))  # before anyone listens
            heard = await here.client.subscribe(feed_subject("kis"))
            await publisher.send_frame()
            await heard.next_msg(timeout=10)  # the server has passed it on
            await heard.unsubscribe()
            feed.watch(["005930"], ["005930"])
            async with running(feed.run()):
                await arrived.wait()
                await source.changed.wait()
    assert [each.price for each in ticks] == [70_000.0]
    assert there.status.ticks_healed == 1
    assert feed.base_price("005930") == 68_000.0
    assert source.watched == (("005930",), ("005930",))
