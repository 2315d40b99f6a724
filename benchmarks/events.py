"""Event engine: throughput, cost of one event and of traces, P0 under load, beside peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks import events_traces, machine
from benchmarks import events_under_load as load
from benchmarks.events_flow import NAUTILUS, PEERS, measure
from benchmarks.measure import Series
from benchmarks.percentile_plot import percentiles
from benchmarks.plot import bars
from benchmarks.report import Goal, Picture, Result, Row


class Effort(NamedTuple):
    rounds: int
    events: int  # in a trial of ours and of the fast peers
    slow_events: int  # in a trial of a slow peer
    loads: int  # rounds under load
    p0: int  # P0 events in a round of ours
    peer_p0: int  # at most, in a round of a peer, which takes longer
    peer_s: float  # time limit of a peer's round


# A trial of ours lasts about 30 ms, long compared with its start and end.
FULL = Effort(15, events=300_000, slow_events=10_000, loads=10, p0=200, peer_p0=50, peer_s=1.5)
QUICK = Effort(2, events=5_000, slow_events=1_000, loads=1, p0=20, peer_p0=10, peer_s=1.0)


def run(quick: bool, progress: Callable[[str], None]) -> Result:
    progress("describing the machine")
    described = machine.describe(quick)
    effort = QUICK if quick else FULL
    notes: list[str] = []
    progress("events through the lanes and through each peer, in turn")
    found = measure(effort.rounds, effort.events, effort.slow_events, notes, progress)
    flow, costs = _flow_rows(found), _cost_rows(found)
    progress("a tick and an order with the tracing code and without it, in turn")
    traces, about = events_traces.measure(quick)
    notes += about
    progress("P0 while four tasks burn CPU: ours and each peer that has priorities, in turn")
    spans = _under_load(effort, progress)
    latency = _latency_rows(spans)
    if described["noisy"]:
        notes.append(f"noisy: others used {described['foreign_cpus']:g} CPUs before the start")
    return Result(
        machine=described,
        rows=(*flow, *costs, *traces, *latency),
        notes=tuple(notes),
        pictures=(
            Picture("events-throughput", bars("Events to one handler that does nothing", flow)),
            Picture("events-cost", bars("One event", costs)),
            Picture("events-p0", percentiles("P0 while four P2 tasks burn CPU", spans)),
        ),
    )


# ---- P0 under load ----


def _under_load(
    effort: Effort, progress: Callable[[str], None]
) -> dict[str, npt.NDArray[np.float64]]:
    """Return the ms from the time each sender was due to wake until its event was handled."""
    cases = {
        "qts": load.ours,
        "PriorityQueue + threads": load.threads,
        "asyncio.PriorityQueue": load.one_loop,
    }
    spans: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(1, effort.loads + 1):
        progress(f"  round {number} of {effort.loads}")
        spans["qts"] += load.latencies(cases["qts"], effort.p0)
        for name in list(cases)[1:]:
            spans[name] += load.latencies(cases[name], effort.peer_p0, effort.peer_s)
    return {name: np.array(each) * 1000 for name, each in spans.items()}


# ---- rows ----


def _flow_rows(found: dict[str, Series]) -> list[Row]:
    ours = found["one by one"]
    rows = [_rate("publish one by one", ours, found, "SimpleQueue + thread", Goal("ours", ">=", 3))]
    rows += [_rate("publish one by one", ours, found, name) for name in list(PEERS)[1:]]
    at_least = Goal("ratio", ">=", 1)
    rows += [_rate("publish one by one", ours, found, name, at_least) for name in NAUTILUS]
    many, fastest = found["publish_many"], "SimpleQueue + thread"
    rows.append(_rate("publish_many, plain handler", many, found, fastest, Goal("ours", ">=", 10)))
    rows.append(_rate("publish_many, batch handler", found["batch"], found, fastest))
    if "compiled" in found:
        rows.append(_rate("publish_many, compiled handler", found["compiled"], found, fastest))
    return rows


def _rate(name: str, ours: Series, found: dict[str, Series], peer: str, *goals: Goal) -> Row:
    theirs = found.get(peer)
    note = f"best {ours.high:.3g}{ours.remark}"
    return Row(
        name=name,
        metric="published and handled",
        unit="M events/s",
        better="higher",
        ours=ours.median,
        peer=theirs.median if theirs else 0.0,
        peer_name=peer if theirs else f"{peer}: not installed",
        goals=goals,
        note=note,
    )


def _cost_rows(found: dict[str, Series]) -> list[Row]:
    return [
        _cost("engine.new_event()", found["make"], found["bare struct"], "the bare struct"),
        _cost("engine.publish()", found["publish"], found["SimpleQueue.put"], "SimpleQueue.put"),
    ]


def _cost(name: str, ours: Series, peer: Series, against: str) -> Row:
    return Row(
        name=name,
        metric="cost of the call",
        unit="ns",
        better="lower",
        ours=ours.median,
        peer=peer.median,
        peer_name=against,
        note=f"best {ours.low:.3g}{ours.remark}",
    )


def _latency_rows(spans: dict[str, npt.NDArray[np.float64]]) -> list[Row]:
    ours = spans["qts"]
    goals = {"p50": 2.0, "p99": 5.0, "max": 15.0}
    return [
        Row(
            name=f"P0 under load, {part}",
            metric="wake to done",
            unit="ms",
            better="lower",
            ours=_part(ours, part),
            peer=_part(spans[peer], part),
            peer_name=peer,
            goals=(Goal("ours", "<", goals[part]),) if place == 0 else (),
            note=f"{len(ours):,} and {len(spans[peer]):,} events",
        )
        for place, peer in enumerate(name for name in spans if name != "qts")
        for part in goals
    ]


def _part(ms: npt.NDArray[np.float64], part: str) -> float:
    return float(ms.max() if part == "max" else np.percentile(ms, float(part[1:])))
