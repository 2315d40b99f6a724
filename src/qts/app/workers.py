"""The workers of a run: consumers of every stream of the bus, with the handlers of each package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from qts.app.supervision import TaskSupervisor
from qts.backtest import BacktestJobHandler
from qts.domain import AccountKey
from qts.outbox import BACKTEST_COMMAND, WORKERS, Consumer, Dispatcher, EventBus, EventDispatcher


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
