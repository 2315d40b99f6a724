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

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec

from qts.domain import RefusedError
from qts.machine import CpuTopology
from qts.router.components import CORE, Component, components, edges, partition
from qts.router.scenario import Scenario

Layout = Literal["auto", "threads", "fused"]
WaitStrategy = Literal["spin", "yield", "park"]

THREADS_CAPACITY = 65_536
FUSED_CAPACITY = 1_024
RING_NS = 25  # cost per message of an edge between workers, for each of the two
_LOW = CORE // 2
_PLURAL = {"producer": "producers", "processor": "processors", "strategy": "strategies"}


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
