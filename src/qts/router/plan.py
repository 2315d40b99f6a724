"""Which component runs on which thread and CPU: decided before a run and shown with its report.

    threads   a thread for each component, every edge a ring: only where there is a core for each
    fused     components next to each other share a worker; inside it a message passes by a direct
              call, between workers through a ring

`auto` chooses one worker for a pipeline that needs less than half a core even in its bursts: a hop
between cores costs more than the work it would take away. Otherwise it chooses
threads if one core stays free for the rest of the program, else fused on at most as many workers
as there are usable cores, one fewer when Python handlers need a core for themselves. A ring costs
both of its workers some 25 ns a message: fewer workers are taken where that is more than they save.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec

from qts.domain import RefusedError
from qts.machine import CpuTopology
from qts.router.components import Component, components, edges
from qts.router.partition import CORE, partition
from qts.router.scenario import Scenario

Layout = Literal["auto", "threads", "fused"]
WaitStrategy = Literal["spin", "yield", "park"]

THREADS_CAPACITY = 65_536
FUSED_CAPACITY = 1_024
RING_NS = 25  # what an edge between workers costs each of the two, a message
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
        """A table for a terminal."""
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
        remarks = [self.overloaded] if self.overloaded else []
        return "\n".join([*lines, *(f"  note: {text}" for text in [*remarks, *self.notes])])


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
    """Place a scenario's components on a machine; spinning threads without cores are refused.

    Lean: not every hop is stamped for every message.
    """
    row = components(scenario, lean=lean)
    joined = edges(row, scenario)
    chosen, count = _shape(scenario, machine, layout, len(row), python_handlers, workers)
    if chosen == "threads":
        parts = [range(place, place + 1) for place in range(len(row))]
    elif workers is not None:
        parts = partition([component.load for component in row], joined, count)
    else:
        parts = _fused(row, joined, count, round(scenario.offered_rate * RING_NS * CORE / 1e9))
    waiting = _wait(chosen, len(parts), machine.usable, wait, oversubscribe)
    made = _workers(row, parts, machine, waiting)
    owner = {place: index for index, part in enumerate(parts) for place in part}
    named = [(row[a].name, row[b].name, owner[a] != owner[b]) for a, b in joined]
    default = THREADS_CAPACITY if chosen == "threads" else FUSED_CAPACITY
    return PlacementPlan(
        layout=chosen,
        workers=made,
        rings=tuple((a, b) for a, b, crosses in named if crosses),
        direct=tuple((a, b) for a, b, crosses in named if not crosses),
        ring_capacity=scenario.ring_capacity or default,
        usable=machine.usable,
        cores_needed=round(scenario.cores_needed(), 3),
        overloaded=_overloaded(scenario, machine, made),
        notes=tuple(_notes(scenario, machine, made, waiting)),
    )


def _shape(
    scenario: Scenario,
    machine: CpuTopology,
    layout: Layout,
    count: int,
    python_handlers: bool,
    workers: int | None,
) -> tuple[Literal["threads", "fused"], int]:
    """The layout, and the most workers it may have."""
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
    row: Sequence[Component], joined: Sequence[tuple[int, int]], most: int, ring: int
) -> list[range]:
    """The cut whose heaviest worker is the lightest, the rings it pays for included.

    Every message passes every border between workers once.
    """
    loads = [component.load for component in row]

    def heaviest(parts: Sequence[range]) -> int:
        last = len(parts) - 1
        borders = [(index > 0) + (index < last) for index in range(len(parts))]
        return max(
            sum(loads[place] for place in part) + ring * count
            for part, count in zip(parts, borders, strict=True)
        )

    cuts = [partition(loads, joined, count) for count in range(1, most + 1)]
    return min(cuts, key=lambda parts: (heaviest(parts), len(parts)))


def _wait(
    layout: str, count: int, usable: int, named: WaitStrategy | None, oversubscribe: bool
) -> WaitStrategy:
    enough = count <= usable
    shares = layout == "fused" and count == usable
    waiting = named or ("yield" if shares else "spin")
    if waiting == "spin" and not enough and not oversubscribe:
        raise RefusedError(
            f"layout {layout} would spin {count} threads on {_counted(usable, 'usable CPU')}:"
            " those that wait keep those with work off the CPU; expected layout fused or auto,"
            " wait yield or park, or --oversubscribe to do it all the same"
        )
    return waiting


def _workers(
    row: Sequence[Component], parts: Sequence[range], machine: CpuTopology, wait: WaitStrategy
) -> tuple[WorkerPlan, ...]:
    cpus = machine.choose(len(parts))
    return tuple(
        WorkerPlan(
            components=tuple(row[place].name for place in part),
            cpu=cpu,
            wait=wait,
            load=round(sum(row[place].load for place in part) / CORE, 3),
        )
        for part, cpu in zip(parts, cpus, strict=True)
    )


def _overloaded(scenario: Scenario, machine: CpuTopology, made: Sequence[WorkerPlan]) -> str | None:
    needed = scenario.cores_needed()
    heaviest = max(range(len(made)), key=lambda index: made[index].load)
    cores = min(machine.usable, len(made))
    kept = min(1.0, cores / needed, 1 / max(made[heaviest].load, 1e-9))
    if kept >= 1:
        return None
    if needed <= machine.usable:
        return (
            f"worker {heaviest} needs {made[heaviest].load:.1f} cores and has one:"
            f" back-pressure will slow what passes through it to about {kept * 100:.0f} %"
        )
    return (
        f"offered work needs {needed:.1f} cores, {machine.usable} usable:"
        f" back-pressure will slow producers to about {kept * 100:.0f} %"
    )


def _notes(
    scenario: Scenario, machine: CpuTopology, made: Sequence[WorkerPlan], wait: WaitStrategy
) -> Iterator[str]:
    bursts = scenario.cores_needed() * scenario.peak_rate / scenario.offered_rate
    if scenario.producers.burst is not None and bursts > machine.usable >= scenario.cores_needed():
        yield (
            f"bursts need {bursts:.1f} cores, {machine.usable} usable:"
            " messages wait in rings and at producers until the quiet part"
        )
    if machine.quota is not None and machine.usable < len(machine.cpus):
        yield f"a quota of {machine.quota:g} CPUs: threads are not pinned, their CPUs are shared"
    if len(made) > machine.usable:
        yield (
            f"{len(made)} threads ({wait}) on {_counted(machine.usable, 'usable CPU')}:"
            " latency is up to the system's scheduler"
        )


def _shortened(names: Sequence[str]) -> Iterator[str]:
    """producer 0, producer 1, producer 2 -> producers 0-2"""
    for kind, group in groupby(names, key=lambda name: name.partition(" ")[0]):
        numbers = [name.partition(" ")[2] for name in group]
        if len(numbers) == 1:
            yield f"{kind} {numbers[0]}".strip()
        else:
            yield f"{_PLURAL[kind]} {numbers[0]}-{numbers[-1]}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
