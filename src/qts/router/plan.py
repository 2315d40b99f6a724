"""Placement of components on threads and CPUs, decided before a run and shown with its report.

    threads   a thread for each component, every edge a ring: needs a core for each
    fused     neighbouring components share a worker; inside it a message passes by a direct call,
              between workers through a ring

`auto` chooses one worker for a pipeline that needs less than half a core even in its bursts: a hop
between cores costs more than it saves. Otherwise it chooses threads if one core stays free for the
rest of the program, else fused on at most as many workers as there are usable cores, one fewer
when Python handlers need a core. A ring costs both of its workers some 25 ns per message: `fused`
uses fewer workers where that is more than they save.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec

from qts.domain import RefusedError
from qts.machine import CpuTopology
from qts.router.scenario import LEAN_NS, OVERHEAD_NS, Scenario, Stage1Rule

Layout = Literal["auto", "threads", "fused"]
WaitStrategy = Literal["spin", "yield", "park"]
THREADS_CAPACITY = 65_536
FUSED_CAPACITY = 1_024
RING_NS = 25  # cost per message of an edge between workers, for each of the two

CORE = 1_000_000_000
COMFORTABLE = CORE * 7 // 10  # a worker busier than this makes messages wait for each other
_LOW = CORE // 2
_PLURAL = {"producer": "producers", "processor": "processors", "strategy": "strategies"}

Edges = Sequence[tuple[int, int]]
_Cost = tuple[int, int]  # load above comfortable, minus the edges inside workers


class WorkerPlan(msgspec.Struct, frozen=True):
    components: tuple[str, ...]
    cpu: int | None  # None: the system decides
    wait: WaitStrategy
    load: float  # share of a core at the offered rate; above 1 it cannot keep up


class PlacementPlan(msgspec.Struct, frozen=True, kw_only=True):
    layout: Literal["threads", "fused"]
    workers: tuple[WorkerPlan, ...]
    rings: tuple[tuple[str, str], ...]  # edges between workers
    direct: tuple[tuple[str, str], ...]  # edges inside a worker
    ring_capacity: int
    usable: int
    cores_needed: float
    overloaded: str | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain | {"direct": len(self.direct)}

    def render(self) -> str:
        """Return a table for a terminal."""
        lines = [
            f"plan: {self.layout}, {_counted(len(self.workers), 'worker')} on"
            f" {_counted(self.usable, 'usable CPU')}; {_counted(len(self.direct), 'direct call')},"
            f" {_counted(len(self.rings), 'edge')} through rings of {self.ring_capacity:,} slots",
            f"  {'worker':>6}  {'cpu':>4}  {'wait':<5}  {'load':>6}  components",
        ]
        for index, worker in enumerate(self.workers):
            cpu = "any" if worker.cpu is None else str(worker.cpu)
            names = ", ".join(_shortened(worker.components))
            lines.append(f"  {index:>6}  {cpu:>4}  {worker.wait:<5}  {worker.load:>6.0%}  {names}")
        overloaded = [self.overloaded] if self.overloaded else []
        return "\n".join([*lines, *(f"  note: {text}" for text in [*overloaded, *self.notes])])


def plan_placement(
    scenario: Scenario,
    machine: CpuTopology,
    layout: Layout = "auto",
    *,
    python_handlers: bool = False,
    workers: int | None = None,
    wait: WaitStrategy | None = None,
    oversubscribe: bool = False,
    lean: bool = False,
) -> PlacementPlan:
    """Place the components of a scenario on a machine.

    Raises RefusedError for more spinning threads than CPUs. `lean`: not every hop is stamped for
    every message.
    """
    row = components(scenario, lean=lean)
    pairs = edges(row, scenario)
    chosen, count = _choose_layout(scenario, machine, layout, len(row), python_handlers, workers)
    if chosen == "threads":
        parts = [range(index, index + 1) for index in range(len(row))]
    elif workers is not None:
        parts = partition([component.load for component in row], pairs, count)
    else:
        parts = _fused(row, pairs, count, round(scenario.offered_rate * RING_NS * CORE / 1e9))
    strategy = _wait_strategy(chosen, len(parts), machine.usable, wait, oversubscribe)
    worker_plans = _workers(row, parts, machine, strategy)
    worker_of = {index: worker for worker, part in enumerate(parts) for index in part}
    named = [(row[a].name, row[b].name, worker_of[a] != worker_of[b]) for a, b in pairs]
    default = THREADS_CAPACITY if chosen == "threads" else FUSED_CAPACITY
    return PlacementPlan(
        layout=chosen,
        workers=worker_plans,
        rings=tuple((a, b) for a, b, crosses in named if crosses),
        direct=tuple((a, b) for a, b, crosses in named if not crosses),
        ring_capacity=scenario.ring_capacity or default,
        usable=machine.usable,
        cores_needed=round(scenario.cores_needed(), 3),
        overloaded=_overloaded(scenario, machine, worker_plans),
        notes=tuple(_notes(scenario, machine, worker_plans, strategy)),
    )


def _choose_layout(
    scenario: Scenario,
    machine: CpuTopology,
    layout: Layout,
    count: int,
    python_handlers: bool,
    workers: int | None,
) -> tuple[Literal["threads", "fused"], int]:
    """Return the layout and the most workers it may have."""
    if workers is not None:
        if layout == "threads":
            raise RefusedError(
                f"workers {workers} has no meaning in layout threads, which has one for each of"
                f" {count} components; expected layout fused or auto"
            )
        if not 1 <= workers <= count:
            raise RefusedError(
                f"workers is {workers}; expected 1 to {count}, the number of components"
            )
        return "fused", workers
    if layout == "threads":
        return "threads", count
    peak = scenario.cores_needed() * max(1.0, scenario.peak_rate / scenario.offered_rate)
    if layout == "auto" and peak * CORE < _LOW:
        return "fused", 1
    if layout == "auto" and machine.usable >= count + 1:
        return "threads", count
    return "fused", min(count, max(1, machine.usable - python_handlers))


def _fused(
    row: Sequence[Component], pairs: Sequence[tuple[int, int]], max_workers: int, ring: int
) -> list[range]:
    """Return the partition with the lowest peak load, including the cost of its rings.

    Every message passes every border between workers once.
    """
    loads = [component.load for component in row]

    def heaviest(parts: Sequence[range]) -> int:
        last = len(parts) - 1
        borders = [(index > 0) + (index < last) for index in range(len(parts))]
        return max(
            sum(loads[index] for index in part) + ring * count
            for part, count in zip(parts, borders, strict=True)
        )

    cuts = [partition(loads, pairs, count) for count in range(1, max_workers + 1)]
    return min(cuts, key=lambda parts: (heaviest(parts), len(parts)))


def _wait_strategy(
    layout: str, count: int, usable: int, given: WaitStrategy | None, oversubscribe: bool
) -> WaitStrategy:
    enough = count <= usable
    shares = layout == "fused" and count == usable
    wait = given or ("yield" if shares else "spin")
    if wait == "spin" and not enough and not oversubscribe:
        raise RefusedError(
            f"layout {layout} would spin {count} threads on {_counted(usable, 'usable CPU')}:"
            " threads that wait keep those with work off the CPU; expected layout fused or auto,"
            " wait yield or park, or --oversubscribe"
        )
    return wait


def _workers(
    row: Sequence[Component], parts: Sequence[range], machine: CpuTopology, wait: WaitStrategy
) -> tuple[WorkerPlan, ...]:
    cpus = machine.choose(len(parts))
    return tuple(
        WorkerPlan(
            components=tuple(row[index].name for index in part),
            cpu=cpu,
            wait=wait,
            load=round(sum(row[index].load for index in part) / CORE, 3),
        )
        for part, cpu in zip(parts, cpus, strict=True)
    )


def _overloaded(
    scenario: Scenario, machine: CpuTopology, workers: Sequence[WorkerPlan]
) -> str | None:
    needed = scenario.cores_needed()
    heaviest = max(range(len(workers)), key=lambda index: workers[index].load)
    cores = min(machine.usable, len(workers))
    share = min(1.0, cores / needed, 1 / max(workers[heaviest].load, 1e-9))
    if share >= 1:
        return None
    if needed <= machine.usable:
        return (
            f"worker {heaviest} needs {workers[heaviest].load:.1f} cores and has one:"
            f" back-pressure will slow what passes through it to about {share * 100:.0f} %"
        )
    return (
        f"offered work needs {needed:.1f} cores, {machine.usable} usable:"
        f" back-pressure will slow producers to about {share * 100:.0f} %"
    )


def _notes(
    scenario: Scenario, machine: CpuTopology, workers: Sequence[WorkerPlan], wait: WaitStrategy
) -> Iterator[str]:
    bursts = scenario.cores_needed() * scenario.peak_rate / scenario.offered_rate
    if scenario.producers.burst is not None and bursts > machine.usable >= scenario.cores_needed():
        yield (
            f"bursts need {bursts:.1f} cores, {machine.usable} usable:"
            " messages wait in rings and at producers until the burst ends"
        )
    if machine.quota is not None and machine.usable < len(machine.cpus):
        yield f"a quota of {machine.quota:g} CPUs: threads are not pinned, their CPUs are shared"
    if len(workers) > machine.usable:
        yield (
            f"{len(workers)} threads ({wait}) on {_counted(machine.usable, 'usable CPU')}:"
            " latency depends on the scheduler of the system"
        )


def _shortened(names: Sequence[str]) -> Iterator[str]:
    """Abbreviate producer 0, producer 1, producer 2 to producers 0-2."""
    for kind, group in groupby(names, key=lambda name: name.partition(" ")[0]):
        numbers = [name.partition(" ")[2] for name in group]
        if len(numbers) == 1:
            yield f"{kind} {numbers[0]}".strip()
        else:
            yield f"{_PLURAL[kind]} {numbers[0]}-{numbers[-1]}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


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
    def component(kind: str, index: int, rate: float, busy_ns: float) -> Component:
        return Component(kind, index, round((rate * overhead[kind] + busy_ns) * CORE / 1e9))

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
    for source, target in sorted(edges):
        after[source].append(target)
    return after
