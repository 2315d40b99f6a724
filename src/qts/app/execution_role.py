"""The execution role: strategies are in another process, their signals arrive over NATS."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from qts.app.supervision import TaskSupervisor
from qts.outbox import EventDispatcher
from qts.pipeline import RunnerHooks, StrategyUpdate
from qts.roles import (
    RemoteRunner,
    ReportedEvents,
    ReportSender,
    RoleConnection,
    SignalReceiver,
)

if TYPE_CHECKING:
    from qts.app.account import TradingAccount
    from qts.app.trading import TradingSystem


class ExecutionRole:
    """What joins a TradingSystem to strategies elsewhere: `build_runners`, `start`, `close`."""

    def __init__(self, connection: RoleConnection, trading: TradingSystem) -> None:
        self._connection = connection
        self._trading = trading
        self._senders: list[ReportSender] = []  # one for each account
        self._runners: dict[str, RemoteRunner] = {}

    def build_runners(self, hooks: RunnerHooks) -> Iterator[RemoteRunner]:
        """Yield a stand-in for each strategy."""
        self._senders = [self._sender(each) for each in self._trading.accounts]
        for each in self._trading.instances:
            strategy = self._trading.strategies[each.name]
            runner = RemoteRunner(strategy, hooks, self._report)
            self._runners[runner.key] = runner
            yield runner

    def _sender(self, account: TradingAccount) -> ReportSender:
        store, number = self._trading.store, account.portfolio.account
        return ReportSender(
            self._connection,
            account.key,
            lambda: store.state.accounts[number],
            lambda: account.pipeline.may_start,
        )

    def _report(self, strategy_key: str, update: StrategyUpdate) -> None:
        """Report to the strategy by the account of the symbol."""
        about = update.fill or update.order
        accounts = self._trading.accounts
        for account, sender in zip(accounts, self._senders, strict=True):
            if about is not None and (account is accounts[-1] or account.trades(about.symbol)):
                sender.add(strategy_key, update)
                return

    def around(self, account: TradingAccount) -> Callable[[EventDispatcher], EventDispatcher]:
        """Return what makes a trade event of the account wait for its report."""
        trading, sender = self._trading, self._senders[account.portfolio.account]

        def wrap(inner: EventDispatcher) -> EventDispatcher:
            return ReportedEvents(inner, trading.database, sender, self._runners, trading.began)

        return wrap

    def start(self, tasks: TaskSupervisor) -> list[asyncio.Task[None]]:
        """Start reports and signals; return the tasks that end before decisions do."""
        receiving: list[asyncio.Task[None]] = []
        for account, sender in zip(self._trading.accounts, self._senders, strict=True):
            tasks.start("reports", sender.run())
            receiver = SignalReceiver(
                self._connection,
                account.pipeline,
                self._runners,
                sender,
                self._trading.clock,
                account.config.pipeline.signal_ttl_s,
            )
            receiving.append(tasks.start("signals", self._receive(account, receiver)))
        return receiving

    async def _receive(self, account: TradingAccount, receiver: SignalReceiver) -> None:
        """Take signals once positions are known: sizes depend on cash and positions."""
        await account.positions.loaded.wait()
        await receiver.run(account.key)

    async def close(self, timeout_s: float) -> None:
        """Send the last reports, at most so long; those that are left follow from the ledger."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(each.flush() for each in self._senders))
        for each in self._senders:
            each.close()
