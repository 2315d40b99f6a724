"""Builds a native router from a scenario and a plan: workers, components, rules."""

from __future__ import annotations

from collections.abc import Callable

from qts import _native
from qts.domain import RefusedError
from qts.router.handlers import MessageHandler
from qts.router.pacing import BurstProfile
from qts.router.plan import PlacementPlan
from qts.router.scenario import Scenario, Stage1Rule

TYPES = 8
_LARGEST = 2**63 - 1
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
