"""Supervision of a run: its tasks, the workers of the bus, its lanes' level, and systemd.

The watchdog is pinged from the event loop: systemd restarts QTS when the loop hangs. A level that
an operator sets (`qts ops degrade`) arrives as a command on the bus.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from qts import telemetry
from qts.database import Database
from qts.domain import AccountKey
from qts.events import DegradationLevel, EventEngine
from qts.outbox import (
    BACKTEST_COMMAND,
    TRADE_COMMAND,
    WORKERS,
    Consumer,
    Delivery,
    Dispatcher,
    EventBus,
    EventDispatcher,
    OutboxConfig,
    OutboxEvent,
    PostgresBus,
)

if TYPE_CHECKING:
    from qts.app.app import RunListener, StartupInfo
    from qts.backtest import BacktestJobHandler

log = telemetry.logger("app")


class TaskSupervisor:
    """The tasks of one event loop; `failed` gets the first exception of a task.

    A cancellation before the first call of `end` is one too: without the task the run would go on,
    and its orders or fills would not.
    """

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    async def end(self, tasks: Iterable[asyncio.Task[None]] | None = None) -> None:
        """Cancel these tasks, or all, and wait for their end."""
        ending = self._tasks if tasks is None else tasks
        waiting = [task for task in ending if not task.done()]
        self._ending = True
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error: BaseException | None
        if task.cancelled():
            name = task.get_name()
            error = None if self._ending else RuntimeError(f"{name} was cancelled")
        else:
            error = task.exception()
        if error is not None and not self.failed.done():
            log.error("task failed; stopping", task=task.get_name(), error=repr(error))
            self.failed.set_exception(error)


def sd_notify(state: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send a line such as READY=1; return False without systemd."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address[0] == "@":  # an abstract socket
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.setblocking(False)
        out.sendto(state.encode(), address)
        return True
    return False


def watchdog_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """Return the ping interval: half of systemd's timeout, None without a watchdog."""
    wait_us, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID")
    if not wait_us.isdigit() or not int(wait_us) or (pid and pid != str(os.getpid())):
        return None
    return int(wait_us) / 2e6


async def ping_watchdog(environ: Mapping[str, str] = os.environ) -> None:
    """Ping until cancelled; return at once without a watchdog."""
    interval_s = watchdog_s(environ)
    while interval_s is not None:
        sd_notify("WATCHDOG=1", environ)
        await asyncio.sleep(interval_s)


@contextlib.contextmanager
def set_on_signals(event: asyncio.Event) -> Iterator[None]:
    """Set the event on SIGINT or SIGTERM; a second signal ends the process."""
    loop = asyncio.get_running_loop()
    handled = (signal.SIGINT, signal.SIGTERM)

    def stop() -> None:
        event.set()
        release()

    def release() -> None:
        for number in handled:
            loop.remove_signal_handler(number)

    for number in handled:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        release()


class SystemdListener:
    """RunListener that also notifies systemd."""

    def __init__(self, listener: RunListener, environ: Mapping[str, str] = os.environ) -> None:
        self._listener = listener
        self._environ = environ

    def starting(self) -> None:
        self._listener.starting()

    def standing_by(self, ready: StartupInfo) -> None:
        self._listener.standing_by(ready)
        sd_notify(f"READY=1\nSTATUS=standby for {ready.standby}", self._environ)

    def ready(self, ready: StartupInfo) -> None:
        self._listener.ready(ready)
        status = " ".join(ready.trading.split()) or "servers run; nothing is traded"
        if ready.lockdown:
            status = f"LOCKDOWN: {ready.lockdown}"
        sd_notify(f"READY=1\nSTATUS={status}", self._environ)

    def stopping(self) -> None:
        sd_notify("STOPPING=1", self._environ)
        self._listener.stopping()


class HandlerPart(Protocol):
    def register(self, dispatcher: Dispatcher) -> None: ...


class RunWorkers:
    """Consumers of WORKERS: orders, notifications, backtest jobs, system events.

    `parts` register the handlers of their messages, `around` adds to what they do. Of several
    accounts of a run, only one has `jobs`.
    """

    def __init__(
        self,
        jobs: BacktestJobHandler | None,
        bus: EventBus,
        key: AccountKey,
        parts: Sequence[HandlerPart],
        around: Callable[[EventDispatcher], EventDispatcher] = lambda inner: inner,
    ) -> None:
        self._jobs = jobs
        dispatcher = Dispatcher()
        for part in parts:
            part.register(dispatcher)
        if jobs is not None:
            jobs.register(dispatcher)
        outer = around(dispatcher)
        self._consumers: list[tuple[str, Consumer]] = [
            (name, bus.consumer(stream, outer, str(key)))
            for name, streams in WORKERS.items()
            for stream in streams
            if stream != BACKTEST_COMMAND or jobs is not None
        ]

    def start(self, tasks: TaskSupervisor) -> None:
        for name, consumer in self._consumers:
            tasks.start(name, consumer.run())

    def stop(self) -> None:
        """Claim no more; a running backtest is ended and its job retried by the next worker."""
        for _, consumer in self._consumers:
            consumer.stop()
        if self._jobs is not None:
            self._jobs.stop()


class SetDegradation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Set the degradation level; None returns to the level that the load requires."""

    level: int | None
    requested_at: datetime


class LaneControl:
    """Applies commands that were requested since `began`: a level does not outlive its run."""

    def __init__(self, engine: EventEngine, began: datetime) -> None:
        self._engine = engine
        self._began = began

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(TRADE_COMMAND, SetDegradation)(self.set_level)

    async def set_level(self, command: SetDegradation, _delivery: Delivery) -> None:
        if command.requested_at < self._began:
            log.info("degradation command ignored; an earlier run", level=command.level)
            return
        level = None if command.level is None else DegradationLevel(command.level)
        log.warning("degradation level set manually", level=level.name if level is not None else "")
        await asyncio.to_thread(self._engine.degrade, level)


async def request_level(
    database: Database, key: AccountKey, level: DegradationLevel | None, now: datetime
) -> None:
    """Request a level from the running QTS of the account."""
    command = SetDegradation(level=None if level is None else int(level), requested_at=now)
    event = OutboxEvent.of(TRADE_COMMAND, command, ("Lanes", "all"), account=key)
    async with (
        PostgresBus.open(database, OutboxConfig().streams) as bus,
        database.transaction() as tx,
    ):
        await bus.publish(tx, event)
