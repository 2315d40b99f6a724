"""What a well-formed scenario can still contradict: rates, shares, ids, rules, order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qts.router.scenario import Scenario, Stage1Rule

_MOST_PER_SECOND = 1e9


def contradictions(scenario: Scenario) -> Iterator[str]:
    """Each in one line: which key, its value, what is allowed."""
    yield from _rates(scenario)
    yield from _distribution(scenario)
    yield from _stage1(scenario)
    yield from _stage2(scenario)
    yield from _routes(scenario)


def _rates(scenario: Scenario) -> Iterator[str]:
    burst = scenario.producers.burst
    if burst is not None and burst.on_ms >= burst.period_ms:
        yield (
            f"producers.burst.on_ms is {burst.on_ms};"
            f" expected less than its period_ms, {burst.period_ms}"
        )
    if (peak := scenario.pacing.peak_per_second) > _MOST_PER_SECOND:
        yield (
            f"producers.burst.factor makes {peak:.4g} messages a second of one producer;"
            f" expected at most {_MOST_PER_SECOND:,.0f}"
        )
    if scenario.messages_per_producer == 0:
        yield (
            f"producers.messages_per_sec {scenario.producers.messages_per_sec:g} over duration_secs"
            f" {scenario.duration_secs:g} is not one message; expected at least one"
        )
    if scenario.stage1_routers > scenario.producers.count:
        yield (
            f"stage1_routers is {scenario.stage1_routers}; expected at most one for each of the"
            f" {scenario.producers.count} producers"
        )
    capacity = scenario.ring_capacity
    if capacity is not None and capacity & (capacity - 1):
        yield f"ring_capacity is {capacity}; expected a power of two from 2 to 1048576, as 1024"


def _distribution(scenario: Scenario) -> Iterator[str]:
    shares = scenario.producers.distribution
    total = math.fsum(shares.values())
    if abs(total - 1) > 1e-9 * max(1, len(shares)):
        yield f"the shares of producers.distribution sum to {total:.10g}; expected 1"


def _stage1(scenario: Scenario) -> Iterator[str]:
    count = scenario.processors.count
    first: dict[int, int] = {}
    for index, rule in enumerate(scenario.stage1_rules):
        place = f"stage1_rules[{index}]"
        yield from _twice(first, rule.msg_type, index, "stage1_rules")
        for name, ids in (("processors", rule.processors), ("otherwise", rule.otherwise)):
            for each in ids:
                if each >= count:
                    yield f"{place}.{name} names processor {each}; expected 0 to {count - 1}"
            if len(set(ids)) < len(ids):
                yield f"{place}.{name} is {list(ids)}; expected each processor once"
        yield from _predicate(rule, place)


def _predicate(rule: Stage1Rule, place: str) -> Iterator[str]:
    if rule.when is None:
        if rule.otherwise:
            yield f"{place}.otherwise has no meaning without a when; expected both or neither"
        return
    if (rule.when.price_above is None) == (rule.when.price_below is None):
        yield f"{place}.when is not one test; expected either price_above or price_below"
    if rule.by != "round_robin":
        yield f"{place}.by is {rule.by!r} beside a when; expected one of the two"
    if not rule.otherwise:
        yield f"{place}.otherwise is missing; expected the processors of what does not match when"


def _stage2(scenario: Scenario) -> Iterator[str]:
    count = scenario.strategies.count
    first: dict[int, int] = {}
    for index, rule in enumerate(scenario.stage2_rules):
        yield from _twice(first, rule.msg_type, index, "stage2_rules")
        if rule.strategy >= count:
            yield f"stage2_rules[{index}].strategy is {rule.strategy}; expected 0 to {count - 1}"
    for key in scenario.strategies.processing_times_ns:
        if int(key.removeprefix("strategy_")) >= count:
            yield (
                f"strategies.processing_times_ns.{key} names no strategy;"
                f" expected strategy_0 to strategy_{count - 1}"
            )


def _routes(scenario: Scenario) -> Iterator[str]:
    for msg_type, share in scenario.shares.items():
        for name, rules in (("stage1_rules", scenario.stage1), ("stage2_rules", scenario.stage2)):
            if msg_type not in rules:
                yield (
                    f"{name} has no rule for msg_type {msg_type}, a share of {share:.4g};"
                    " expected a rule for every type that is sent"
                )
    for index, rule in enumerate(scenario.stage1_rules):
        onward = scenario.stage2.get(rule.msg_type)
        processors = sorted({*rule.processors, *rule.otherwise})
        if onward is not None and onward.ordering_required and len(processors) > 1:
            yield (
                f"stage1_rules[{index}] sends msg_type {rule.msg_type} to processors {processors},"
                " but ordering_required is set for it, and processors that run at their own speed"
                ' lose the order; expected one processor, or "ordering_required": false'
            )


def _twice(first: dict[int, int], msg_type: int, index: int, name: str) -> Iterator[str]:
    if msg_type in first:
        yield (
            f"{name}[{index}] is a second rule for msg_type {msg_type},"
            f" after {name}[{first[msg_type]}]; expected one for each type"
        )
    first.setdefault(msg_type, index)
