"""The pipeline of another process: takes what strategies return, in the place of an EtedaPipeline.

signals, cancels, replacements ─▶ SignalMessage ─▶ JetStream, confirmed ─▶ execution
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from qts.domain import AccountKey, Clock
from qts.pipeline import Cycle, StrategyRunner
from qts.roles.connection import SIGNALS, RoleConnection
from qts.roles.messages import SignalMessage, encode
from qts.roles.report_receiver import ReportReceiver
from qts.strategies import Cancel, Instruction, Replace, Signal

MAX_WAITING = 1_000


class _Waiting(NamedTuple):
    id: str
    data: bytes
    sent: asyncio.Future[None]
    expires_at: float | None  # None: has an exit or a change of an order


class RemotePipeline:
    """Sender of one account's signals, on one event loop; `run` sends them one by one."""

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
