"""The execution role as the strategies role sees it: signals out, execution reports in.

signals, cancels, replacements ─▶ SignalMessage ─▶ JetStream, confirmed ─▶ execution
ReportMessage ─▶ account replaced ─▶ on_fill, on_order ─▶ what they returned is stored in
                 JetStream ─▶ acknowledged
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from qts import telemetry
from qts.domain import AccountKey, Clock
from qts.pipeline import Cycle, PortfolioState, StrategyRunner
from qts.roles.connection import REPORTS, SIGNALS, DurableReceiver, RoleConnection, encode
from qts.roles.remote_strategies import (
    ReportMessage,
    SignalMessage,
    StrategyReport,
    decode_report,
    hello_subject,
)
from qts.strategies import Cancel, Instruction, Replace, Signal

MAX_REMEMBERED = 10_000
MAX_WAITING = 1_000
HELLO_INTERVAL_S = 0.5
STOPPED_CHECK_S = 1.0

log = telemetry.logger("roles")


class _Waiting(NamedTuple):
    id: str
    data: bytes
    sent: asyncio.Future[None]
    expires_at: float | None  # None: has an exit or a change of an order


class RemotePipeline:
    """Sender of one account's signals, on one event loop; `run` sends them one by one.

    It takes what strategies return, in the place of an EtedaPipeline.
    """

    def __init__(
        self,
        connection: RoleConnection,
        account: AccountKey,
        reports: ReportReceiver,
        clock: Clock,
        may_send: Callable[[], bool],
        signal_ttl_s: float,
    ) -> None:
        self._connection = connection
        self._subject = SIGNALS.of(account)
        self._reports = reports
        self._clock = clock
        self._may_send = may_send
        self._ttl_s = signal_ttl_s
        self._waiting: deque[_Waiting] = deque()
        self._added = asyncio.Event()
        self._cycles: set[asyncio.Task[Cycle]] = set()
        self._is_stopped = False

    @property
    def may_start(self) -> bool:
        """Return whether signals are sent: the account is known, and execution takes them."""
        return self._reports.takes_signals and not self._is_stopped and self._may_send()

    def stop(self) -> None:
        """Take no further signals: the role ends."""
        self._is_stopped = True

    def start(
        self, key: str, signals: Callable[[], Awaitable[list[Signal]]]
    ) -> asyncio.Task[Cycle]:
        """Start a cycle of a strategy: call it, and send what it returns."""
        task = asyncio.create_task(self._evaluate(key, signals))
        self._cycles.add(task)
        task.add_done_callback(self._cycles.discard)
        return task

    async def _evaluate(self, key: str, signals: Callable[[], Awaitable[list[Signal]]]) -> Cycle:
        cycle = Cycle(number=0, strategy_key=key, started_at=self._clock.now())
        if found := await signals():
            self._send(key, found, after_order=False)
        return cycle

    def on_signals(
        self, runner: StrategyRunner, signals: list[Signal], *, after_order: bool = False
    ) -> None:
        """Send signals of a tick, a fill or an order."""
        if self.may_start:
            self._send(runner.key, signals, after_order=after_order)

    def change_orders(self, runner: StrategyRunner, changes: Iterable[Cancel | Replace]) -> None:
        """Send cancels and replacements, also while no cycle may start."""
        self._send(runner.key, tuple(changes), after_order=False)

    def _send(self, key: str, found: Sequence[Instruction], *, after_order: bool) -> None:
        now = self._clock.now().timestamp()
        message = SignalMessage(
            uuid.uuid4().hex,
            key,
            now,
            after_order,
            self._reports.seen,
            tuple(found),
        )
        sent = asyncio.get_running_loop().create_future()
        expires_at = now + self._ttl_s if all(map(_is_entry, found)) else None
        self._waiting.append(_Waiting(message.id, encode(message), sent, expires_at))
        if len(self._waiting) > MAX_WAITING:
            self._drop_expired(now)
        self._connection.status.signals_pending = len(self._waiting)
        self._added.set()

    def _drop_expired(self, now: float) -> None:
        """Drop entries that execution would refuse as too old: NATS is out of reach."""
        first, *others = self._waiting  # the first one is being sent
        left = [each for each in others if each.expires_at is None or each.expires_at > now]
        self._connection.status.signals_stale += len(others) - len(left)
        self._waiting = deque((first, *left))

    async def run(self) -> None:
        """Send what waits, in order, until cancelled; each is confirmed before the next."""
        status = self._connection.status
        while True:
            await self._added.wait()
            self._added.clear()
            while self._waiting:
                id_, data, sent, _ = self._waiting[0]
                await self._connection.publish_durable(SIGNALS, self._subject, data, id_)
                self._waiting.popleft()
                status.signals_pending = len(self._waiting)
                status.signals_sent += 1
                if not sent.done():
                    sent.set_result(None)

    async def flush(self) -> None:
        """Wait until everything that waits now is stored."""
        if self._waiting:
            await asyncio.shield(self._waiting[-1].sent)

    async def close(self, timeout_s: float) -> None:
        """Wait for cycles and for what they send, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                if self._cycles:
                    await asyncio.wait(self._cycles)
                await self.flush()


def _is_entry(each: Instruction) -> bool:
    return isinstance(each, Signal) and not each.intent_type.is_exit


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
