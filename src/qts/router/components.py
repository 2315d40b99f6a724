"""The components of a scenario in pipeline order, with their work, and the edges between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec

from qts.router.partition import CORE
from qts.router.scenario import LEAN_NS, OVERHEAD_NS, Scenario, Stage1Rule


class Component(msgspec.Struct, frozen=True):
    kind: str
    index: int
    load: int  # billionths of a core at the offered rate

    @property
    def name(self) -> str:
        return "stage2" if self.kind == "stage2" else f"{self.kind} {self.index}"


def components(scenario: Scenario, *, lean: bool = False) -> list[Component]:
    """Each Stage 1 router behind its producers, then processors, Stage 2, strategies.

    Lean: not every hop is stamped for every message.
    """
    return list(_in_order(scenario, LEAN_NS if lean else OVERHEAD_NS))


def edges(row: Sequence[Component], scenario: Scenario) -> list[tuple[int, int]]:
    """Who passes messages to whom, by position in the row; always to a later one."""
    at = {(component.kind, component.index): place for place, component in enumerate(row)}
    stage2 = at["stage2", 0]
    joined = [
        (at["producer", producer], at["stage1", scenario.stage1_of(producer)])
        for producer in range(scenario.producers.count)
    ]
    for processor in range(scenario.processors.count):
        place = at["processor", processor]
        joined += [(at["stage1", router], place) for router in range(scenario.stage1_routers)]
        joined.append((place, stage2))
    joined += [(stage2, at["strategy", each]) for each in range(scenario.strategies.count)]
    return sorted(joined)


def _in_order(scenario: Scenario, overhead: Mapping[str, int]) -> Iterator[Component]:
    made = partial(_component, overhead)
    everything = scenario.offered_rate
    each = everything / scenario.producers.count
    fed = [0] * scenario.stage1_routers
    for producer in range(scenario.producers.count):
        fed[scenario.stage1_of(producer)] += 1
    producer = 0
    for router, inputs in enumerate(fed):
        for _ in range(inputs):
            yield made("producer", producer, each, 0)
            producer += 1
        yield made("stage1", router, each * inputs, 0)
    processing = _processing(scenario)
    for index, (rate, busy) in enumerate(processing):
        yield made("processor", index, rate, busy)
    yield made("stage2", 0, everything, 0)
    for strategy in range(scenario.strategies.count):
        share = sum(
            s for t, s in scenario.shares.items() if scenario.stage2[t].strategy == strategy
        )
        rate = share * everything
        yield made("strategy", strategy, rate, rate * scenario.strategy_ns(strategy))


def _component(
    overhead: Mapping[str, int], kind: str, index: int, rate: float, busy_ns: float
) -> Component:
    return Component(kind, index, round((rate * overhead[kind] + busy_ns) * CORE / 1e9))


def _processing(scenario: Scenario) -> list[tuple[float, float]]:
    """Messages a second and busy nanoseconds a second of each processor."""
    totals = [(0.0, 0.0)] * scenario.processors.count
    for msg_type, share in scenario.shares.items():
        rate = share * scenario.offered_rate
        for processor, part in _parts(scenario.stage1[msg_type]):
            messages, busy = totals[processor]
            more = rate * part
            totals[processor] = (messages + more, busy + more * scenario.processing_ns(msg_type))
    return totals


def _parts(rule: Stage1Rule) -> Iterator[tuple[int, float]]:
    """Which part of a type each processor gets; of a price test, half is taken to match."""
    sides = (rule.processors, rule.otherwise) if rule.when is not None else (rule.processors,)
    for side in sides:
        for processor in side:
            yield processor, 1 / len(sides) / len(side)
