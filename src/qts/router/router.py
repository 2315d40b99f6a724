"""The router: a scenario laid out by a plan on native threads, run, fed and reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Literal

import msgspec
import numpy as np

from qts import _native
from qts.domain import Failed, Refused
from qts.machine import inspect
from qts.router.handlers import MESSAGE, Handler, Messages, handler
from qts.router.journal import JournalConfig
from qts.router.live import Snapshot
from qts.router.pacing import Burst
from qts.router.plan import Plan
from qts.router.plan import plan as make_plan
from qts.router.report import Percentiles, Place, Report, StallFloor, StrategyCount
from qts.router.scenario import Scenario, Stage1Rule

Handlers = Mapping[int, Handler | Callable[[_native.Message], object]]

_TYPES = 8
_STALL_SECONDS = 0.2
_PING_PONGS = 20_000
_JOIN_SECONDS = 2.0
_FIELDS = MESSAGE.names or ()


class Options(msgspec.Struct, frozen=True, kw_only=True):
    sample: int = 1000  # measure every so many messages; 1 is all
    stamps: Literal["all", "hop-batch", "edges", "off"] = "all"
    digest: bool = False  # of every stream, to compare a replay with
    journal: JournalConfig | None = None


class Router:
    """One run of a scenario: start, look, stop, report.

    `processors` and `strategies` give work by number, in place of the scenario's busy time. With
    `live`, messages come from `push_many`; the scenario's producers then only say how many
    sources there are and what to plan for.
    """

    def __init__(
        self,
        scenario: Scenario,
        plan: Plan | None = None,
        *,
        options: Options | None = None,
        processors: Handlers | None = None,
        strategies: Handlers | None = None,
        live: bool = False,
    ) -> None:
        self.scenario = scenario
        self.options = options = options or Options()
        self._live = live
        self._work = {
            "processor": _handlers(processors or {}, scenario.processors.count, "processor"),
            "strategy": _handlers(strategies or {}, scenario.strategies.count, "strategy"),
        }
        python = any(work.uses_python for kind in self._work.values() for work in kind.values())
        self.plan = plan or make_plan(scenario, inspect(), python_handlers=python)
        self._native = _native.Router(
            options.stamps, options.sample, self.plan.ring_capacity, options.digest
        )
        self._place_of: dict[str, int] = {}
        self._began = 0.0
        self._seconds: float | None = None
        self._build()

    def run(self) -> Report:
        """Start, run to the end, report."""
        self.start()
        while not self.wait(1.0):
            pass
        return self.report

    def start(self) -> None:
        self._began = time.monotonic()
        self._native.start()

    def stop(self) -> None:
        """Sources end; what they have sent is still delivered. `wait` says when it is."""
        self._native.stop()

    def wait(self, timeout: float) -> bool:
        """True once all is delivered, or when something failed and the rest cannot be."""
        if not self._native.wait(timeout):
            return False
        self._end()
        return True

    def abort(self) -> None:
        """End now; the report says what was on its way."""
        self._end()

    def push_many(
        self,
        messages: Messages | Iterable[Mapping[str, Any]],
        *,
        source: int = 0,
        timeout: float = 5.0,
    ) -> int:
        """Send messages from outside and answer how many were taken; fewer only at the time limit.

        Takes an array of dtype `MESSAGE` (msg_type, symbol_id, price in 10**-8, ...) or an
        iterable of mappings with the same names. Source, sequence and time are filled in.
        """
        array = messages if isinstance(messages, np.ndarray) else message_array(messages)
        if array.dtype != MESSAGE:
            raise Refused(f"push_many takes an array of dtype MESSAGE, not {array.dtype}")
        for kind in np.unique(array["msg_type"]):
            if not self._native.takes(source, int(kind)):
                raise Refused(f"no rule of scenario {self.scenario.scenario} routes type {kind}")
        return self._native.push(source, np.ascontiguousarray(array), timeout)

    def snapshot(self) -> Snapshot:
        totals = self._native.totals()
        depths = {"stage1": 0, "processing": 0, "stage2": 0, "strategies": 0}
        for place, count in self._native.waiting():
            depths[_stage_before(place)] += count
        return {
            "produced": totals["produced"],
            "processed": totals["processed"],
            "delivered": totals["delivered"],
            "depths": depths,
            "latency_us": self._native.recent(),
        }

    @property
    def report(self) -> Report:
        """What became of every message. Ends the run if it has not ended."""
        self._end()
        totals = self._native.totals()
        undelivered = totals["produced"] - totals["delivered"]
        latencies = self._native.latencies()
        return Report(
            scenario=self.scenario.scenario,
            offered=totals["produced"] if self._live else self.scenario.total_messages,
            produced=totals["produced"],
            delivered=totals["delivered"],
            undelivered=undelivered,
            violations=totals["violations"],
            gaps=totals["gaps"],
            reordered=totals["reordered"],
            seconds=round(self._seconds or 0.0, 6),
            plan=self.plan.to_json(),
            latency_us={name: Percentiles(**row) for name, row in latencies.items()},
            stall_floor=_stall_floor(),
            undelivered_at=tuple(self._undelivered_at(undelivered)),
            failures=tuple(self._failures()),
            per_strategy=tuple(
                StrategyCount(strategy=id_, delivered=delivered, violations=violations, gaps=gaps)
                for id_, delivered, violations, gaps in self._native.strategies()
            ),
            notes=tuple(self._notes(totals["produced"])),
            curves={name: tuple(points) for name, points in self._native.curves().items()},
        )

    @property
    def streams(self) -> dict[tuple[int, int, int], tuple[int, int]]:
        """Of an ended run: (strategy, producer, type) to (delivered, digest)."""
        return {row[:3]: row[3:] for row in self._native.streams()}

    # ---- changes while it runs ----

    def add_strategy(
        self, work: Handler | None = None, *, busy_ns: int = 0, worker: int = -1
    ) -> int:
        """A new strategy on a worker (the last one unless said otherwise); its number."""
        return self._native.add_strategy(
            worker % len(self.plan.workers), [busy_ns] * _TYPES, work.work if work else None
        )

    def add_processor(
        self, work: Handler | None = None, *, busy_ns: int = 0, worker: int = 0
    ) -> int:
        return self._native.add_processor(
            worker % len(self.plan.workers), [busy_ns] * _TYPES, work.work if work else None
        )

    def route(
        self, msg_type: int, *, processors: list[int] | None = None, strategy: int | None = None
    ) -> None:
        """Send a type elsewhere from now on; what is on its way keeps its way."""
        rule = self.scenario.stage2[msg_type]
        if processors is not None:
            if rule.ordering_required and len(processors) > 1:
                raise Refused(
                    f"type {msg_type} requires order; expected one processor, not {len(processors)}"
                )
            self._native.route1(msg_type, "round_robin", processors, [], 0, True)
        if strategy is not None:
            self._native.route2(msg_type, strategy, rule.ordering_required, rule.priority)

    def remove_strategy(self, number: int, timeout: float = 5.0) -> None:
        """Take a strategy out once no rule names it and nothing waits for it."""
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
        self._end()

    # ---- inside ----

    def _build(self) -> None:
        for number, worker in enumerate(self.plan.workers):
            self._native.add_worker(worker.cpu, worker.wait)
            self._place_of |= dict.fromkeys(worker.components, number)
        scenario = self.scenario
        for number in range(scenario.stage1_routers):
            self._native.add_stage1(self._place_of[f"stage1 {number}"])
        # Sources come before the stage they feed, and are polled after it.
        for number in range(scenario.producers.count):
            self._add_source(number)
        for number in range(scenario.processors.count):
            self._native.add_processor(
                self._place_of[f"processor {number}"],
                [scenario.processing_ns(kind) for kind in range(_TYPES)],
                self._work_of("processor", number),
            )
        self._native.add_stage2(self._place_of["stage2"])
        for number in range(scenario.strategies.count):
            self._native.add_strategy(
                self._place_of[f"strategy {number}"],
                [scenario.strategy_ns(number)] * _TYPES,
                self._work_of("strategy", number),
            )
        for kind, rule in scenario.stage1.items():
            self._native.route1(kind, *_stage1(rule))
        for kind, second in scenario.stage2.items():
            self._native.route2(kind, second.strategy, second.ordering_required, second.priority)
        if self.options.journal is not None:
            self.options.journal.attach(self._native, scenario.stage1_routers)

    def _add_source(self, number: int) -> None:
        scenario = self.scenario
        stage1 = scenario.stage1_of(number)
        if self._live:
            self._native.add_live_source(stage1, False)
            return
        burst = scenario.producers.burst
        self._native.add_producer(
            self._place_of[f"producer {number}"],
            stage1,
            rate=scenario.producers.messages_per_sec,
            shares=[scenario.shares.get(kind, 0.0) for kind in range(_TYPES)],
            total=scenario.messages_per_producer,
            give_up_s=scenario.duration_secs + max(0.2, scenario.duration_secs / 10),
            burst=_in_seconds(burst) if burst else None,
            symbols=scenario.producers.symbols,
            seed=scenario.seed,
        )

    def _work_of(self, kind: str, number: int) -> tuple[Any, ...] | None:
        work = self._work[kind].get(number)
        return work.work if work else None

    def _end(self) -> None:
        if self._seconds is None:
            self._seconds = time.monotonic() - self._began if self._began else 0.0
            self._native.halt(_JOIN_SECONDS)

    def _remove(
        self, remove: Callable[[int], bool], name: str, number: int, timeout: float
    ) -> None:
        try:
            deadline = time.monotonic() + timeout
            while not remove(number):
                if time.monotonic() > deadline:
                    raise Failed(f"messages still wait for {name} after {timeout:g} s")
                time.sleep(0.001)
        except ValueError as error:
            raise Refused(str(error)) from None

    def _undelivered_at(self, undelivered: int) -> Iterator[Place]:
        known = 0
        for place, count in self._native.waiting():
            known += count
            yield Place(place, count)
        if undelivered > known:
            yield Place(", ".join(self._native.stuck()) or "nowhere: lost", undelivered - known)

    def _failures(self) -> Iterator[str]:
        for component, message, text in self._native.failures():
            at = "" if component == "journal" else f" at {message!r}"
            yield f"{component} failed{at}: {text.strip().splitlines()[0]}"
        for worker in self._native.stuck():
            yield f"{worker} did not come back within {_JOIN_SECONDS:g} s"

    def _notes(self, produced: int) -> Iterator[str]:
        if self.plan.overloaded:
            yield self.plan.overloaded
        offered = self.scenario.total_messages
        if not self._live and produced < offered:
            yield f"{offered - produced:,} messages of those offered were never sent"
        for worker, pinned in zip(self.plan.workers, self._native.pinned(), strict=True):
            if worker.cpu is not None and not pinned:
                yield f"a worker could not be pinned to CPU {worker.cpu}"


def message_array(rows: Iterable[Mapping[str, Any]]) -> Messages:
    """Messages from mappings by field name; fields that are not named are 0."""
    given = list(rows)
    array = np.zeros(len(given), MESSAGE)
    for name in {name for row in given for name in row}:
        if name not in _FIELDS:
            raise Refused(f"a message has no field {name}; it has {', '.join(_FIELDS)}")
        array[name] = [row.get(name, 0) for row in given]
    return array


def _handlers(given: Handlers, count: int, kind: str) -> dict[int, Handler]:
    for number in given:
        if not 0 <= number < count:
            raise Refused(f"there is no {kind} {number}; the scenario has 0 to {count - 1}")
    return {number: handler(work) for number, work in given.items()}


def _stage1(rule: Stage1Rule) -> tuple[str, list[int], list[int], int, bool]:
    if rule.when is None:
        return rule.by, list(rule.processors), [], 0, True
    above = rule.when.price_above is not None
    limit = rule.when.price_above if above else rule.when.price_below
    threshold = round((limit or 0.0) * _native.PRICE_SCALE)
    return "price", list(rule.processors), list(rule.otherwise), threshold, above


def _in_seconds(burst: Burst) -> tuple[float, float, float, float]:
    return burst.period_ms / 1000, burst.on_ms / 1000, burst.factor, burst.base_factor


def _stage_before(place: str) -> str:
    """Where a waiting message is held up, from the name of its edge: `a to b, type 3`."""
    target = place.partition(" to ")[2] or place
    for start, stage in (("stage1", "stage1"), ("processor", "processing"), ("stage2", "stage2")):
        if target.startswith(start):
            return stage
    return "strategies"


def _stall_floor() -> StallFloor:
    floor = _native.stall_floor(_STALL_SECONDS)
    return StallFloor(
        seconds=floor["duration_ns"] / 1e9,
        over_1us=floor["over_1us"],
        over_20us=floor["over_20us"],
        longest_us=floor["longest_ns"] / 1000,
        share_lost=floor["share_lost"],
        ping_pong_ns=_native.ping_pong(_PING_PONGS),
    )
