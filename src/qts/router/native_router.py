"""The native router: built from a scenario and a plan, its counters as reports and snapshots."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from qts import _native
from qts.domain import RefusedError
from qts.router.handlers import MessageHandler
from qts.router.plan import PlacementPlan
from qts.router.progress import RunSnapshot
from qts.router.report import (
    Percentiles,
    QueueLocation,
    RouterReport,
    StallFloor,
    StrategyCount,
    StreamDigest,
)
from qts.router.scenario import BurstProfile, Scenario, Stage1Rule

TYPES = 8
_LARGEST = 2**63 - 1
_STALL_SECONDS = 0.2
_PING_PONGS = 20_000

HandlerMap = dict[int, MessageHandler]  # by number of the component


def add_workers(native: _native.Router, plan: PlacementPlan) -> dict[str, int]:
    """Add the workers of a plan; return the worker of each component, by name."""
    worker_of: dict[str, int] = {}
    for number, worker in enumerate(plan.workers):
        native.add_worker(worker.cpu, worker.wait)
        worker_of |= dict.fromkeys(worker.components, number)
    return worker_of


def assemble(
    native: _native.Router,
    scenario: Scenario,
    plan: PlacementPlan,
    add_sources: Callable[[dict[str, int]], None],
    processors: HandlerMap,
    strategies: HandlerMap,
) -> None:
    """Add all components and rules; raise RefusedError if the plan is of another scenario."""
    worker_of = add_workers(native, plan)
    try:
        for number in range(scenario.stage1_routers):
            native.add_stage1(worker_of[f"stage1 {number}"])
        # Sources come before the stage they feed, and are polled after it.
        add_sources(worker_of)
        for number in range(scenario.processors.count):
            busy_ns = [scenario.processing_ns(kind) for kind in range(TYPES)]
            worker = worker_of[f"processor {number}"]
            native.add_processor(worker, busy_ns, native_handler(processors.get(number)))
        native.add_stage2(worker_of["stage2"])
        for number in range(scenario.strategies.count):
            busy_ns = [scenario.strategy_ns(number)] * TYPES
            worker = worker_of[f"strategy {number}"]
            native.add_strategy(worker, busy_ns, native_handler(strategies.get(number)))
    except KeyError as error:
        raise RefusedError(
            f"the plan has no {error.args[0]}; it was made for another scenario"
        ) from None
    for kind, rule in scenario.stage1.items():
        native.route1(kind, *_stage1_arguments(rule))
    for kind, second in scenario.stage2.items():
        native.route2(kind, second.strategy, second.ordering_required, second.priority)


def add_producers(native: _native.Router, scenario: Scenario, worker_of: dict[str, int]) -> None:
    burst = scenario.producers.burst
    for number in range(scenario.producers.count):
        native.add_producer(
            worker_of[f"producer {number}"],
            scenario.stage1_of(number),
            rate=scenario.producers.messages_per_sec,
            shares=[scenario.shares.get(kind, 0.0) for kind in range(TYPES)],
            total=scenario.messages_per_producer,
            give_up_s=scenario.duration_secs + max(0.2, scenario.duration_secs / 10),
            burst=_in_seconds(burst) if burst else None,
            symbols=scenario.producers.symbols,
            seed=scenario.seed,
        )


def add_live_sources(native: _native.Router, scenario: Scenario, keep_numbers: bool) -> None:
    """Add a source for each producer; with `keep_numbers`, one for each Stage 1 router."""
    if keep_numbers:
        stages = list(range(scenario.stage1_routers))
    else:
        stages = [scenario.stage1_of(number) for number in range(scenario.producers.count)]
    for stage1 in stages:
        native.add_live_source(stage1, keep_numbers)


def native_handler(handler: MessageHandler | None) -> tuple[object, ...] | None:
    return handler.to_native() if handler else None


def _stage1_arguments(rule: Stage1Rule) -> tuple[str, list[int], list[int], int, bool]:
    if rule.when is None:
        return rule.by, list(rule.processors), [], 0, True
    above = rule.when.price_above is not None
    limit = rule.when.price_above if above else rule.when.price_below
    units = round((limit or 0.0) * _native.PRICE_SCALE)
    # The native test is "greater than": below x means not greater than the unit before it.
    threshold = min(max(units if above else units - 1, -_LARGEST), _LARGEST)
    return "price", list(rule.processors), list(rule.otherwise), threshold, above


def _in_seconds(burst: BurstProfile) -> tuple[float, float, float, float]:
    return burst.period_ms / 1000, burst.on_ms / 1000, burst.factor, burst.base_factor


def collect_report(
    native: _native.Router, scenario: str, plan: PlacementPlan, offered: int | None
) -> RouterReport:
    """Return the report without times and notes; `offered` is None for a live router."""
    totals = native.totals()
    undelivered = totals["produced"] - totals["delivered"]
    return RouterReport(
        scenario=scenario,
        offered=totals["produced"] if offered is None else offered,
        produced=totals["produced"],
        delivered=totals["delivered"],
        undelivered=undelivered,
        violations=totals["violations"],
        gaps=totals["gaps"],
        reordered=totals["reordered"],
        seconds=0.0,
        plan=plan.to_json(),
        latency_us={name: Percentiles(**row) for name, row in native.latencies().items()},
        stall_floor=_stall_floor(),
        undelivered_at=tuple(_undelivered_at(native, undelivered)),
        failures=tuple(failures(native)),
        per_strategy=tuple(
            StrategyCount(strategy=id_, delivered=delivered, violations=violations, gaps=gaps)
            for id_, delivered, violations, gaps in native.strategies()
        ),
        rss_mb=_rss_mb(),
        curves={name: tuple(points) for name, points in native.curves().items()},
    )


def streams(native: _native.Router) -> tuple[StreamDigest, ...]:
    return tuple(
        StreamDigest(strategy=a, producer=b, msg_type=c, delivered=count, digest=f"{digest:016x}")
        for a, b, c, count, digest in native.streams()
    )


def failures(native: _native.Router) -> Iterator[str]:
    """Yield a line for each failure: component, message, error."""
    for component, message, text in native.failures():
        at = "" if component == "journal" else f" at {message!r}"
        lines = text.strip().splitlines() or ["no reason given"]
        yield f"{component} failed{at}: {lines[-1]}"  # the last line of a traceback
    for worker in native.stuck():
        yield f"{worker} did not return"


def snapshot(native: _native.Router) -> RunSnapshot:
    totals = native.totals()
    depths = {"stage1": 0, "processing": 0, "stage2": 0, "strategies": 0}
    for place, count in native.waiting():
        depths[_stage_before(place)] += count
    return {
        "produced": totals["produced"],
        "processed": totals["processed"],
        "delivered": totals["delivered"],
        "depths": depths,
        "latency_us": native.recent(),
    }


def _undelivered_at(native: _native.Router, undelivered: int) -> Iterator[QueueLocation]:
    known = 0
    for place, count in native.waiting():
        known += count
        yield QueueLocation(place, count)
    if undelivered > known:
        yield QueueLocation(", ".join(native.stuck()) or "nowhere: lost", undelivered - known)


def _stage_before(place: str) -> str:
    """Return the stage a message waits for, from the name of its edge: `a to b, type 3`."""
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


def _rss_mb() -> float:
    """Return the resident memory now, or its peak where the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return round(peak / (1e6 if sys.platform == "darwin" else 1e3), 1)
