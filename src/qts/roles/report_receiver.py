"""Execution reports of another process: into the portfolio, then to the strategies.

ReportMessage ─▶ account replaced ─▶ on_fill, on_order ─▶ what they returned is stored in
                 JetStream ─▶ acknowledged
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from qts import telemetry
from qts.domain import AccountKey
from qts.pipeline import PortfolioState, StrategyRunner
from qts.roles.connection import REPORTS, RoleConnection
from qts.roles.durable import DurableReceiver
from qts.roles.messages import ReportMessage, StrategyReport, decode_report
from qts.roles.report_sender import hello_subject

MAX_REMEMBERED = 10_000
HELLO_INTERVAL_S = 0.5
STOPPED_CHECK_S = 1.0

log = telemetry.logger("roles")


class ReportReceiver:
    """Receiver of one account's reports, on one event loop; `run` until cancelled."""

    def __init__(
        self,
        connection: RoleConnection,
        account: AccountKey,
        replace: Callable[[PortfolioState], None],
        runners: Mapping[str, StrategyRunner],
    ) -> None:
        self.seen: tuple[str, int] = ("", 0)  # publisher and number of the last report
        self.takes_signals = False
        self._connection = connection
        self._counts = connection.status
        self._account = account
        self._replace = replace
        self._runners = runners
        self._delivered: OrderedDict[str, asyncio.Future[None]] = OrderedDict()  # by id

    async def run(self, flush: Callable[[], Awaitable[None]]) -> None:
        """Take reports; `flush` returns once the signals of strategies are stored."""

        async def handle(data: bytes) -> bool:
            return await self.handle(data, flush)

        receiver = DurableReceiver(self._connection, REPORTS, REPORTS.of(self._account), handle)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._say_hello())
            group.create_task(receiver.run())

    async def _say_hello(self) -> None:
        """Request a report until there is one: the account may not change for hours."""
        while not self.seen[1]:
            await self._connection.publish(hello_subject(self._account), b"")
            await asyncio.sleep(HELLO_INTERVAL_S)

    async def handle(self, data: bytes, flush: Callable[[], Awaitable[None]]) -> bool:
        """Apply a report; return True once the strategies have handled it."""
        try:
            message = decode_report(data)
        except msgspec.MsgspecError as error:
            self._counts.refused += 1
            log.error("report not readable; dropped", error=str(error))
            return True
        self._apply(message)
        waiting = [each for each in map(self._deliver, message.reports) if each is not None]
        while left := [done for runner, done in waiting if not (done.done() or runner.stopped)]:
            await asyncio.wait(left, timeout=STOPPED_CHECK_S)
        if waiting:
            await flush()
        return True

    def _apply(self, message: ReportMessage) -> None:
        """Replace the account, unless a later report of the same process did."""
        publisher, number = self.seen
        if publisher == message.publisher and message.number <= number:
            self._counts.duplicates += 1
            return
        self._counts.reports_received += 1
        self._replace(message.state)
        self.seen = message.publisher, message.number
        self.takes_signals = message.takes_signals

    def _deliver(
        self, report: StrategyReport
    ) -> tuple[StrategyRunner, asyncio.Future[None]] | None:
        """Pass a report to its strategy, once; return what is done when that was called."""
        runner = self._runners.get(report.strategy_key)
        if runner is None:
            return None
        if (known := self._delivered.get(report.id)) is not None:
            return runner, known
        handled = self._delivered[report.id] = asyncio.get_running_loop().create_future()
        if len(self._delivered) > MAX_REMEMBERED:
            self._delivered.popitem(last=False)

        def settle() -> None:
            if not handled.done():
                handled.set_result(None)

        runner.update(report.update, settle)
        return runner, handled
