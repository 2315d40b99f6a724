"""The router: runs a scenario on the native threads of a plan, and reports."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal

import msgspec
import numpy as np

from qts import _native
from qts.domain import OperationError, RefusedError
from qts.machine import detect_topology
from qts.router.handlers import (
    MESSAGE,
    Indicator,
    MessageHandler,
    Messages,
    as_handler,
    message_array,
)
from qts.router.journal import JournalConfig
from qts.router.native_router import (
    TYPES,
    add_live_sources,
    add_producers,
    assemble,
    collect_report,
    native_handler,
    snapshot,
    streams,
)
from qts.router.plan import PlacementPlan
from qts.router.plan import plan_placement as make_plan
from qts.router.progress import DRAIN_SECONDS, RunSnapshot
from qts.router.report import RouterReport
from qts.router.scenario import Scenario

Handlers = Mapping[int, MessageHandler | Callable[[_native.Message], object]]

_JOIN_SECONDS = 2.0
_POLL_SECONDS = 0.1  # latency of a signal


class Options(msgspec.Struct, frozen=True, kw_only=True):
    sample: int = 1000  # measure every nth message; 1 is all
    stamps: Literal["all", "hop-batch", "edges", "off"] = "all"
    digest: bool = False  # of every stream, to compare with a replay
    journal: JournalConfig | None = None
    keep_numbers: bool = False  # for replays: one live source for each Stage 1 router

    def __post_init__(self) -> None:
        if self.sample < 1:
            raise RefusedError(f"sample is {self.sample}; expected 1 for every message, or more")


class Router:
    """One run of a scenario.

    `processors` and `strategies` are handlers by number, instead of the scenario's busy time. With
    `live`, messages come from `push_many`; the scenario's producers then only define the number
    of sources and the load for the plan. As a context it starts on entry, and on exit delivers
    what was sent, or aborts after an exception. Any thread may call any method.
    """

    def __init__(
        self,
        scenario: Scenario,
        plan: PlacementPlan | None = None,
        *,
        options: Options | None = None,
        processors: Handlers | None = None,
        strategies: Handlers | None = None,
        live: bool = False,
    ) -> None:
        self.scenario = scenario
        self.options = options = options or Options()
        processor_handlers = _handlers(processors or {}, scenario.processors.count, "processor")
        strategy_handlers = _handlers(strategies or {}, scenario.strategies.count, "strategy")
        all_handlers = [*processor_handlers.values(), *strategy_handlers.values()]
        self._indicators: set[Indicator] = set()
        for each in all_handlers:
            self._claim_indicator(each)
        python = any(each.uses_python for each in all_handlers)
        self.plan = plan or make_plan(
            scenario, detect_topology(), python_handlers=python, lean=options.stamps != "all"
        )
        self._live = live
        self._native = _native.Router(
            options.stamps, options.sample, self.plan.ring_capacity, options.digest
        )
        assemble(
            self._native,
            scenario,
            self.plan,
            self._add_sources,
            processor_handlers,
            strategy_handlers,
        )
        if options.journal is not None:
            options.journal.attach(self._native, scenario.stage1_routers)
        self._began: float | None = None
        self._seconds: float | None = None
        self._stopped = False
        self._report: RouterReport | None = None
        # Threads end with the last reference to the router, and before the interpreter does.
        self._finalizer = weakref.finalize(self, self._native.halt, _JOIN_SECONDS)

    def run(self) -> RouterReport:
        """Start, run to the end and report."""
        if self._live:
            raise RefusedError("a live router runs until stop(); expected start, push_many, stop")
        self.start()
        while not self.wait(_POLL_SECONDS):
            pass
        return self.report

    def start(self) -> None:
        if self._began is not None:
            raise RefusedError("a router runs once, and this one was started; create another")
        self._began = time.monotonic()
        self._native.start()

    def stop(self) -> None:
        """Stop the sources; messages in flight are still delivered, see `wait`."""
        self._stopped = True
        self._native.stop()

    def wait(self, timeout: float) -> bool:
        """Return True once all messages are delivered, or when a failure prevents that."""
        if self._seconds is None and not self._native.wait(timeout):
            return False
        self._end()
        return True

    def abort(self) -> None:
        """End now; the report lists the messages in flight."""
        self._end()

    def push_many(
        self,
        messages: Messages | Iterable[Mapping[str, Any]],
        *,
        source: int = 0,
        timeout: float = 5.0,
    ) -> int:
        """Send messages and return how many were accepted.

        Fewer than all only at the timeout, after `stop`, or once a component has failed. Takes
        an array of dtype `MESSAGE` (its price in units of 10**-8) or mappings with msg_type,
        symbol_id, price, quantity. Source, sequence and time are filled in. In a handler, use a
        timeout of 0: the worker that would free the capacity may be the one that waits.
        """
        if not self._live or self._began is None:
            raise RefusedError("push_many needs a router created with live=True, and started")
        array = messages if isinstance(messages, np.ndarray) else message_array(messages)
        if array.dtype != MESSAGE or array.ndim != 1:
            raise RefusedError(
                f"push_many takes a one-dimensional array of dtype MESSAGE, not {array.dtype}"
            )
        array = np.ascontiguousarray(array)
        deadline, accepted = time.monotonic() + timeout, 0
        with _translated(f"scenario {self.scenario.scenario}: "):
            while True:
                left = max(0.0, deadline - time.monotonic())
                accepted += self._native.push(source, array[accepted:], min(left, _POLL_SECONDS))
                if accepted == len(array) or left == 0 or self._closed:
                    return accepted

    def snapshot(self) -> RunSnapshot:
        return snapshot(self._native)

    @property
    def delivered(self) -> int:
        """Messages that strategies have finished so far."""
        return self._native.totals()["delivered"]

    @property
    def failures(self) -> list[str]:
        """Failures so far, each with its message; with the traceback of a Python handler."""
        return [f"{name} failed at {message!r}: {text}" for name, message, text in self._failed()]

    @property
    def report(self) -> RouterReport:
        """Report of the run; ends it if it has not ended."""
        if self._began is None:
            raise RefusedError("a router that was not started has no report")
        self._end()
        if self._report is None:
            offered = None if self._live else self.scenario.total_messages
            report = collect_report(self._native, self.scenario.scenario, self.plan, offered)
            self._report = msgspec.structs.replace(
                report,
                seconds=round(self._seconds or 0.0, 6),
                streams=streams(self._native) if self.options.digest else (),
                notes=tuple(self._notes(report)),
            )
        return self._report

    @property
    def streams(self) -> dict[tuple[int, int, int], tuple[int, int]]:
        """(delivered, digest) of an ended run by (strategy, producer, type)."""
        if self._seconds is None:
            raise RefusedError("streams are available when the run has ended")
        return {row[:3]: row[3:] for row in self._native.streams()}

    # ---- changes during a run ----

    def add_strategy(
        self,
        handler: MessageHandler | Callable[[_native.Message], object] | None = None,
        *,
        busy_ns: int = 0,
        worker: int = -1,
    ) -> int:
        """Add a strategy on a worker (default: the last one) and return its number."""
        return self._add(self._native.add_strategy, handler, busy_ns, worker)

    def add_processor(
        self,
        handler: MessageHandler | Callable[[_native.Message], object] | None = None,
        *,
        busy_ns: int = 0,
        worker: int = 0,
    ) -> int:
        return self._add(self._native.add_processor, handler, busy_ns, worker)

    def route(
        self, msg_type: int, *, processors: list[int] | None = None, strategy: int | None = None
    ) -> None:
        """Change the route of a type; messages in flight keep their route."""
        rule = self.scenario.stage2.get(msg_type)
        if rule is None:
            raise RefusedError(
                f"no rule of scenario {self.scenario.scenario} routes type {msg_type}"
            )
        if processors is not None and (not processors or len(set(processors)) < len(processors)):
            raise RefusedError(f"processors is {processors}; expected one or more, each once")
        if processors is not None and rule.ordering_required and len(processors) > 1:
            raise RefusedError(
                f"type {msg_type} requires order; expected one processor, not {len(processors)}"
            )
        with _translated():
            if processors is not None:
                self._native.route1(msg_type, "round_robin", processors, [], 0, True)
            if strategy is not None:
                self._native.route2(msg_type, strategy, rule.ordering_required, rule.priority)

    def remove_strategy(self, number: int, timeout: float = 5.0) -> None:
        """Remove a strategy that no rule names, once no message waits for it."""
        self._remove(self._native.remove_strategy, f"strategy {number}", number, timeout)

    def remove_processor(self, number: int, timeout: float = 5.0) -> None:
        self._remove(self._native.remove_processor, f"processor {number}", number, timeout)

    def __enter__(self) -> Router:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._seconds is None:
            self.stop()
            deadline = time.monotonic() + DRAIN_SECONDS
            while not self.wait(_POLL_SECONDS) and time.monotonic() < deadline:
                pass
        self._end()

    # ---- internals ----

    def _add_sources(self, worker_of: dict[str, int]) -> None:
        if self._live:
            add_live_sources(self._native, self.scenario, self.options.keep_numbers)
        else:
            add_producers(self._native, self.scenario, worker_of)

    def _claim_indicator(self, handler: MessageHandler) -> None:
        if isinstance(handler, Indicator):
            if handler in self._indicators:
                raise RefusedError(f"one {handler.kind} for two components; expected one for each")
            self._indicators.add(handler)

    @property
    def _closed(self) -> bool:
        return self._stopped or self._seconds is not None or bool(self._failed())

    def _failed(self) -> list[tuple[str, _native.Message, str]]:
        return self._native.failures()

    def _end(self) -> None:
        if self._seconds is None:
            self._seconds = 0.0 if self._began is None else time.monotonic() - self._began
            self._native.halt(_JOIN_SECONDS)
            self._finalizer.detach()

    def _add(
        self,
        add: Callable[[int, list[int], tuple[object, ...] | None], int],
        handler: MessageHandler | Callable[[_native.Message], object] | None,
        busy_ns: int,
        worker: int,
    ) -> int:
        if not -len(self.plan.workers) <= worker < len(self.plan.workers):
            raise RefusedError(
                f"there is no worker {worker}; the plan has {len(self.plan.workers)}"
            )
        added = None if handler is None else as_handler(handler)
        if added is not None:
            self._claim_indicator(added)
        with _translated():
            return add(worker % len(self.plan.workers), [busy_ns] * TYPES, native_handler(added))

    def _remove(
        self, remove: Callable[[int], bool], name: str, number: int, timeout: float
    ) -> None:
        deadline = time.monotonic() + timeout
        with _translated():
            while not remove(number):
                if time.monotonic() > deadline:
                    raise OperationError(f"messages still wait for {name} after {timeout:g} s")
                time.sleep(0.001)

    def _notes(self, report: RouterReport) -> Iterator[str]:
        if self.plan.overloaded:
            yield self.plan.overloaded
        if missing := report.offered - report.produced:
            reason = " (the machine was busy elsewhere)"
            if self._stopped or report.failures:
                reason = " (the run was stopped)" if self._stopped else " (the run failed)"
            elif self.plan.overloaded:
                reason = ""
            yield f"{missing:,} of the offered messages were never sent{reason}"
        for worker, pinned in zip(self.plan.workers, self._native.pinned(), strict=True):
            if worker.cpu is not None and not pinned:
                yield f"a worker could not be pinned to CPU {worker.cpu}"


@contextmanager
def _translated(where: str = "") -> Iterator[None]:
    """Translate errors of the native router to those of QTS."""
    try:
        yield
    except ValueError as error:
        raise RefusedError(f"{where}{error}") from None
    except TypeError:  # a number the native type cannot hold; the original text is a page long
        raise RefusedError(f"{where}a number is out of range") from None
    except RuntimeError as error:
        raise OperationError(f"{where}{error}") from None


def _handlers(handlers: Handlers, count: int, kind: str) -> dict[int, MessageHandler]:
    for number in handlers:
        if not 0 <= number < count:
            raise RefusedError(f"there is no {kind} {number}; the scenario has 0 to {count - 1}")
    return {number: as_handler(function) for number, function in handlers.items()}
