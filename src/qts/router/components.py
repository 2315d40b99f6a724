"""Components of a scenario in pipeline order with their load, and their partition into workers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec

from qts.router.scenario import LEAN_NS, OVERHEAD_NS, Scenario, Stage1Rule

CORE = 1_000_000_000
COMFORTABLE = CORE * 7 // 10  # a worker busier than this makes messages wait for each other

Edges = Sequence[tuple[int, int]]
_Cost = tuple[int, int]  # load above comfortable, minus the edges inside workers


def partition(loads: Sequence[int], edges: Edges, workers: int) -> list[range]:
    """Return at most `workers` ranges of positions; every edge must point to a later position.

    Loads are integers (billionths of a core), so that equal cuts compare equal. Among the cuts with
    the lowest peak load, the one with the least load above `COMFORTABLE` on its workers wins, then
    the one with the fewest edges between workers.
    """
    bound = min_peak_load(loads, workers)
    after = _successors(len(loads), edges)
    # best[j]: cost of the first j components in at most k workers, and where the last one begins
    best: dict[int, tuple[_Cost, list[range]]] = {0: ((0, 0), [])}
    for _ in range(min(workers, len(loads))):
        best = _one_more(best, loads, after, bound)
    return best[len(loads)][1]


def min_peak_load(loads: Sequence[int], workers: int) -> int:
    """Return the load of the heaviest worker in the most even contiguous cut."""
    low, high = max(loads), sum(loads)
    while low < high:
        middle = (low + high) // 2
        if _workers_for(loads, middle) <= workers:
            high = middle
        else:
            low = middle + 1
    return low


def _workers_for(loads: Sequence[int], bound: int) -> int:
    count, free = 1, bound
    for load in loads:
        if load > free:
            count, free = count + 1, bound
        free -= load
    return count


def _one_more(
    best: dict[int, tuple[_Cost, list[range]]],
    loads: Sequence[int],
    after: Sequence[Sequence[int]],
    bound: int,
) -> dict[int, tuple[_Cost, list[range]]]:
    longer = dict(best)
    for end in range(1, len(loads) + 1):
        load, inside = 0, 0
        for start in range(end - 1, -1, -1):
            load += loads[start]
            if load > bound:
                break
            inside += bisect_left(after[start], end)
            if start not in best:
                continue
            (above, hidden), ranges = best[start]
            cost = (above + max(0, load - COMFORTABLE), hidden - inside)
            if end not in longer or cost < longer[end][0]:
                longer[end] = (cost, [*ranges, range(start, end)])
    return longer


def _successors(count: int, edges: Edges) -> list[list[int]]:
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        after[source].append(target)
    for targets in after:
        targets.sort()
    return after


class Component(msgspec.Struct, frozen=True):
    kind: str
    index: int
    load: int  # billionths of a core at the offered rate

    @property
    def name(self) -> str:
        return "stage2" if self.kind == "stage2" else f"{self.kind} {self.index}"


def components(scenario: Scenario, *, lean: bool = False) -> list[Component]:
    """List each Stage 1 router after its producers, then processors, Stage 2, strategies.

    `lean`: not every hop is stamped for every message.
    """
    return list(_in_order(scenario, LEAN_NS if lean else OVERHEAD_NS))


def edges(row: Sequence[Component], scenario: Scenario) -> list[tuple[int, int]]:
    """Return (from, to) pairs of positions in the row; `to` is always later."""
    at = {(component.kind, component.index): position for position, component in enumerate(row)}
    stage2 = at["stage2", 0]
    pairs = [
        (at["producer", producer], at["stage1", scenario.stage1_of(producer)])
        for producer in range(scenario.producers.count)
    ]
    for number in range(scenario.processors.count):
        processor = at["processor", number]
        pairs += [(at["stage1", router], processor) for router in range(scenario.stage1_routers)]
        pairs.append((processor, stage2))
    pairs += [(stage2, at["strategy", each]) for each in range(scenario.strategies.count)]
    return sorted(pairs)


def _in_order(scenario: Scenario, overhead: Mapping[str, int]) -> Iterator[Component]:
    component = partial(_component, overhead)
    total_rate = scenario.offered_rate
    each = total_rate / scenario.producers.count
    inputs = [0] * scenario.stage1_routers
    for producer in range(scenario.producers.count):
        inputs[scenario.stage1_of(producer)] += 1
    producer = 0
    for router, count in enumerate(inputs):
        for _ in range(count):
            yield component("producer", producer, each, 0)
            producer += 1
        yield component("stage1", router, each * count, 0)
    for index, (rate, busy) in enumerate(_processing(scenario)):
        yield component("processor", index, rate, busy)
    yield component("stage2", 0, total_rate, 0)
    for strategy in range(scenario.strategies.count):
        share = sum(
            s for t, s in scenario.shares.items() if scenario.stage2[t].strategy == strategy
        )
        rate = share * total_rate
        yield component("strategy", strategy, rate, rate * scenario.strategy_ns(strategy))


def _component(
    overhead: Mapping[str, int], kind: str, index: int, rate: float, busy_ns: float
) -> Component:
    return Component(kind, index, round((rate * overhead[kind] + busy_ns) * CORE / 1e9))


def _processing(scenario: Scenario) -> list[tuple[float, float]]:
    """Return messages per second and busy nanoseconds per second of each processor."""
    totals = [(0.0, 0.0)] * scenario.processors.count
    for msg_type, share in scenario.shares.items():
        rate = share * scenario.offered_rate
        for processor, part in _parts(scenario.stage1[msg_type]):
            messages, busy = totals[processor]
            more = rate * part
            totals[processor] = (messages + more, busy + more * scenario.processing_ns(msg_type))
    return totals


def _parts(rule: Stage1Rule) -> Iterator[tuple[int, float]]:
    """Yield the part of a type that each processor gets; half is assumed to match a price test."""
    sides = (rule.processors, rule.otherwise) if rule.when is not None else (rule.processors,)
    for side in sides:
        for processor in side:
            yield processor, 1 / len(sides) / len(side)
