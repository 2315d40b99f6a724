"""Strategies of another process: their signals in, execution reports out.

    SignalMessage ─▶ known id: a duplicate, nothing to do
                  ─▶ entry that is too old: stale; entry of an outdated view: outdated
                  ─▶ the rest ─▶ pipeline ─▶ dropped, refused or acted on ─▶ acknowledged

A message that was acted on and not acknowledged comes again, after `kill -9` too. Its signals have
the ids of their intents, so that the ledger stores none of them twice.

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
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from qts import telemetry
from qts.domain import AccountKey, Bar, Clock, OrderSnapshot, Position, Tick
from qts.outbox import nats_errors
from qts.pipeline import EtedaPipeline, PortfolioState, RunnerHooks, StrategyRunner, StrategyUpdate
from qts.roles.connection import (
    REPORTS,
    SIGNALS,
    DurableReceiver,
    RoleConnection,
    account_token,
    encode,
)
from qts.strategies import Cancel, Instruction, Replace, Signal, Strategy

if TYPE_CHECKING:
    from nats.aio.msg import Msg

CHECK_INTERVAL_S = 0.1
MAX_REMEMBERED = 10_000

log = telemetry.logger("roles")


class SignalMessage(msgspec.Struct, frozen=True, array_like=True):
    """What a strategy returned; `seen` is the last report that its role had applied by then."""

    id: str
    strategy_key: str
    decided_at: float  # seconds since the Unix epoch
    after_order: bool
    seen: tuple[str, int]  # publisher and number
    instructions: tuple[Instruction, ...]


class StrategyReport(msgspec.Struct, frozen=True, array_like=True):
    """What happened to an order of a strategy; a fill that is reported twice has the same id."""

    id: str
    strategy_key: str
    update: StrategyUpdate


class ReportMessage(msgspec.Struct, frozen=True, array_like=True):
    """The account as it is now, and what happened to orders since the last report."""

    publisher: str
    number: int
    takes_signals: bool  # positions are known, and the pipeline is not suspended
    cash: Decimal
    positions: tuple[Position, ...]
    owners: dict[str, str]
    orders: tuple[OrderSnapshot, ...]
    reports: tuple[StrategyReport, ...] = ()

    @property
    def state(self) -> PortfolioState:
        return PortfolioState(
            self.cash,
            {each.symbol: each for each in self.positions},
            self.owners,
            {each.intent_id: each for each in self.orders},
        )


decode_signals = msgspec.msgpack.Decoder(SignalMessage).decode
decode_report = msgspec.msgpack.Decoder(ReportMessage).decode


def happening_of(update: StrategyUpdate) -> str:
    """Return what happened to which order, as the ledger would name it too."""
    if update.fill is not None:
        return f"fill {update.fill.broker_order_id} {update.fill.trade_id}"
    return "" if update.order is None else f"order {update.order.intent_id} {update.order.state}"


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


class SignalReceiver:
    """Receiver of one account's signals, on one event loop; `run` until cancelled."""

    def __init__(
        self,
        connection: RoleConnection,
        pipeline: EtedaPipeline,
        runners: Mapping[str, RemoteRunner],
        reports: ReportSender,
        clock: Clock,
        signal_ttl_s: float,
    ) -> None:
        self._counts = connection.status
        self._connection = connection
        self._pipeline = pipeline
        self._runners = runners
        self._reports = reports
        self._clock = clock
        self._ttl_s = signal_ttl_s
        self._handled: OrderedDict[str, None] = OrderedDict()  # ids of messages

    async def run(self, account: AccountKey) -> None:
        subject = SIGNALS.of(account)
        await DurableReceiver(self._connection, SIGNALS, subject, self.handle).run()

    async def handle(self, data: bytes) -> bool:
        """Pass a message to the pipeline; return True once everything in it took effect."""
        try:
            message = decode_signals(data)
        except msgspec.MsgspecError as error:
            self._counts.refused += 1
            log.error("signal not readable; dropped", error=str(error))
            return True
        runner = self._runners.get(message.strategy_key)
        if message.id in self._handled:
            self._counts.duplicates += 1
            return True
        self._handled[message.id] = None
        if len(self._handled) > MAX_REMEMBERED:
            self._handled.popitem(last=False)
        self._counts.signals_received += 1
        if runner is None:
            self._counts.refused += 1
            log.error("signal of an unknown strategy; dropped", strategy=message.strategy_key)
            return True
        try:
            await self._act(runner, message)
        except BaseException:
            self._handled.pop(message.id, None)  # it comes again
            raise
        return True

    async def _act(self, runner: RemoteRunner, message: SignalMessage) -> None:
        signals: list[Signal] = []
        changes: list[Cancel | Replace] = []
        for each in message.instructions:
            if isinstance(each, Signal):
                if each not in signals and self._is_accepted(each, message):
                    signals.append(each)
            else:
                changes.append(each)
        runner.signals += len(signals)
        started = self._pipeline.change_orders(runner, changes)
        left = len(signals)
        settled = asyncio.get_running_loop().create_future()

        def settle(_signal: Signal) -> None:
            nonlocal left
            left -= 1
            if not left and not settled.done():
                settled.set_result(None)

        if signals:
            self._pipeline.on_signals(
                runner, signals, after_order=message.after_order, settled=settle
            )
            await settled
        if started:
            await asyncio.wait(started)

    def _is_accepted(self, signal: Instruction, message: SignalMessage) -> bool:
        """Return whether a signal may be acted on; an exit always may."""
        if not isinstance(signal, Signal) or signal.intent_type.is_exit:
            return True
        age_s = self._clock.now().timestamp() - message.decided_at
        if age_s > self._ttl_s:
            self._counts.signals_stale += 1
            log.warning(
                "entry signal too old; refused",
                strategy=message.strategy_key,
                symbol=signal.symbol,
                duration_s=round(age_s, 3),
            )
            return False
        if self._reports.is_outdated(signal.symbol, message.seen):
            self._counts.signals_outdated += 1
            return False
        return True
