"""Router: ring, throughput, latency, and the cost of a strategy in Python."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import handler_cost, machine, rings, topology
from benchmarks.plot import bars
from benchmarks.report import Picture, Result


def run(quick: bool, progress: Callable[[str], None]) -> Result:
    progress("describing the machine")
    described = machine.describe(quick)
    effort = topology.QUICK if quick else topology.FULL
    progress("ring: ours, textbook and cached index in turn")
    ring_rows, placement = rings.measure(quick)
    progress("router at full speed: fused and a thread for each component in turn")
    speed_rows = topology.throughput(effort)
    progress("router at 1 M messages a second: fused and a thread for each component in turn")
    latency_rows, pictures = topology.open_loop(effort)
    progress("strategies in Python: plain, batch view, compiled, and their peers in turn")
    handler_rows, notes = handler_cost.measure(quick)
    if described["noisy"]:
        notes.append(f"noisy: others used {described['foreign_cpus']:g} CPUs before the start")
    return Result(
        machine=described,
        rows=(*ring_rows, *speed_rows, *latency_rows, *handler_rows),
        notes=(f"while the rings ran, {placement}", *notes),
        pictures=(
            Picture("router-ring", bars("Ring, 96-byte messages", ring_rows)),
            Picture("router-throughput", bars("Router without work, 13 components", speed_rows)),
            *pictures,
            Picture("router-python", bars("A strategy in Python, cost of a message", handler_rows)),
        ),
    )
