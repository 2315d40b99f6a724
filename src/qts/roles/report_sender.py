"""Execution reports to the strategies of another process, with the account as it is.

    fill, order (lane P0) ─▶ RemoteRunner ─┐
    portfolio changed ─────────────────────┴▶ ReportMessage ─▶ JetStream, one after the other

Each report has the whole account, so that one that is lost or late leaves no wrong view behind it.
Reports are numbered. An entry that was decided before the strategies had the last report about its
symbol is outdated: it would buy again what was just bought.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from qts import telemetry
from qts.domain import AccountKey, Bar, Tick
from qts.outbox import nats_errors
from qts.pipeline import PortfolioState, RunnerHooks, StrategyRunner, StrategyUpdate
from qts.roles.connection import REPORTS, RoleConnection, account_token
from qts.roles.messages import ReportMessage, StrategyReport, encode, happening_of
from qts.strategies import Instruction, Strategy

if TYPE_CHECKING:
    from nats.aio.msg import Msg

CHECK_INTERVAL_S = 0.1
MAX_REMEMBERED = 10_000

log = telemetry.logger("roles")


def hello_subject(account: AccountKey) -> str:
    """Return the subject on which strategies that know no account yet request a report."""
    return f"qts.hello.{account_token(account)}"


class ReportSender:
    """Sender of one account's reports; `add` from any thread, the rest on the event loop."""

    def __init__(
        self,
        connection: RoleConnection,
        account: AccountKey,
        state: Callable[[], PortfolioState],
        takes_signals: Callable[[], bool],
    ) -> None:
        self.id = uuid.uuid4().hex
        self._connection = connection
        self._account = account
        self._state = state
        self._takes_signals = takes_signals
        self._lock = threading.Lock()  # of the reports that wait, and of their number
        self._waiting: list[StrategyReport] = []
        self._number = 0  # of the last message
        self._added = 0
        self._stored: OrderedDict[str, None] = OrderedDict()  # latest happenings in the stream
        self._storing = asyncio.Event()
        self._sending = asyncio.Lock()
        self.is_closed = False
        self._changed: dict[str, int] = {}  # number of the last report about a symbol
        self._due = asyncio.Event()
        self._is_requested = True
        self._loop = asyncio.get_running_loop()

    def add(self, strategy_key: str, update: StrategyUpdate) -> None:
        """Report what happened to an order; entries decided before are outdated from now on."""
        about = update.fill or update.order
        with self._lock:
            self._added += 1
            id_ = happening_of(update) if update.fill is not None else f"{self.id} {self._added}"
            self._waiting.append(StrategyReport(id_, strategy_key, update))
            if about is not None:
                self._changed[about.symbol] = self._number + 1
        self._loop.call_soon_threadsafe(self._due.set)

    def is_outdated(self, symbol: str, seen: tuple[str, int]) -> bool:
        """Return whether a report about the symbol came after the one that was seen."""
        publisher, number = seen
        return publisher != self.id or number < self._changed.get(symbol, 0)

    async def wait_stored(self, update: StrategyUpdate, timeout_s: float) -> bool:
        """Wait until the stream has a report of it; return False if it has none by then."""
        name = happening_of(update)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while name not in self._stored and not self.is_closed:
                    self._storing.clear()
                    await self._storing.wait()
        return name in self._stored

    async def run(self) -> None:
        """Send reports until cancelled: at once, and when the account changed otherwise."""

        async def on_hello(_message: Msg) -> None:
            self._is_requested = True
            self._due.set()

        client = self._connection.client
        subscription = await client.subscribe(hello_subject(self._account), cb=on_hello)
        last: tuple[PortfolioState, bool] | None = None
        try:
            while True:
                self._due.clear()
                now = self._state(), self._takes_signals()
                is_changed = last is None or now[0] is not last[0] or now[1] != last[1]
                if is_changed or self._waiting or self._is_requested:
                    last = await self._send()
                try:
                    async with asyncio.timeout(CHECK_INTERVAL_S):
                        await self._due.wait()
                except TimeoutError:
                    continue
        finally:
            try:
                await subscription.unsubscribe()
            except nats_errors() as error:
                log.debug("unsubscribed late", error=repr(error))

    async def flush(self) -> None:
        """Send what waits, after what is being sent."""
        async with self._sending:
            pass
        if self._waiting:
            await self._send()

    def close(self) -> None:
        """End the waits for reports: no further one is sent."""
        self.is_closed = True
        self._storing.set()

    async def _send(self) -> tuple[PortfolioState, bool]:
        async with self._sending:
            return await self._send_next()

    async def _send_next(self) -> tuple[PortfolioState, bool]:
        self._is_requested = False
        with self._lock:
            # The state is at least as new as these reports.
            reports, self._waiting = tuple(self._waiting), []
            self._number += 1
            number = self._number
        state, takes = self._state(), self._takes_signals()
        message = ReportMessage(
            self.id,
            number,
            takes,
            state.cash,
            tuple(state.positions.values()),
            dict(state.owners),
            tuple(state.orders.values()),
            reports,
        )
        status = self._connection.status
        status.reports_pending += 1
        try:
            await self._connection.publish_durable(
                REPORTS, REPORTS.of(self._account), encode(message), f"{self.id}-{number}"
            )
        finally:
            status.reports_pending -= 1
        status.reports_sent += 1
        for each in reports:
            self._stored[happening_of(each.update)] = None
        while len(self._stored) > MAX_REMEMBERED:
            self._stored.popitem(last=False)
        self._storing.set()
        return state, takes


class RemoteRunner(StrategyRunner):
    """Stand-in for a strategy that runs in another process: what happens to its orders is sent."""

    def __init__(
        self,
        strategy: Strategy[Any],
        hooks: RunnerHooks,
        report: Callable[[str, StrategyUpdate], None],
    ) -> None:
        super().__init__(strategy, hooks)
        self._report_update = report
        self.is_warming_up = False

    def __str__(self) -> str:
        return f"{self.key} (remote)"

    def tick(self, tick: Tick) -> None:
        """Leave ticks to the other process, which has the same feed."""

    def add_bars(
        self, bars: Iterable[tuple[Bar, tuple[float, ...]]], *, is_new: bool = True
    ) -> None:
        """Leave bars to the other process, which builds them from ticks."""

    def update(self, update: StrategyUpdate, then: Callable[[], object] | None = None) -> None:
        """Send what happened to one of its orders, from any thread."""
        self._report_update(self.key, update)
        if then is not None:
            self._loop.call_soon_threadsafe(then)

    def run_pending(self) -> None:
        """Do nothing: what waits is in the other process."""

    async def evaluate(self) -> list[Instruction]:
        """Return nothing: the other process calls the strategy."""
        return []
