"""The event engine: events a second, what making one costs, and P0 under load, beside its peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks import events_under_load as load
from benchmarks import machine
from benchmarks.events_flow import NAUTILUS, PEERS, measure
from benchmarks.measure import Series
from benchmarks.percentile_plot import percentiles
from benchmarks.plot import bars
from benchmarks.report import Goal, Picture, Result, Row


class Effort(NamedTuple):
    rounds: int
    events: int  # of a trial of ours and of the fast peers
    slow_events: int  # of a trial of the slow ones
    loads: int  # rounds under load
    p0: int  # P0 events of ours in each
    peer_p0: int  # and of a peer, which takes longer, at most
    peer_s: float  # time a peer has for them


# A trial of ours lasts some 30 ms: long beside its start and its end.
FULL = Effort(15, events=300_000, slow_events=10_000, loads=10, p0=200, peer_p0=50, peer_s=1.5)
QUICK = Effort(2, events=5_000, slow_events=1_000, loads=1, p0=20, peer_p0=10, peer_s=1.0)


def run(quick: bool, say: Callable[[str], None]) -> Result:
    say("looking at the machine")
    described = machine.describe(quick)
    effort = QUICK if quick else FULL
    notes: list[str] = []
    say("events through the lanes and through each peer, in turn")
    found = measure(effort.rounds, effort.events, effort.slow_events, notes, say)
    flow, costs = _flow_rows(found), _cost_rows(found)
    say("P0 while four tasks burn CPU: ours and each peer that has priorities, in turn")
    spans = _under_load(effort, say)
    latency = _latency_rows(spans)
    if described["noisy"]:
        notes.append(f"noisy: others used {described['foreign_cpus']:g} CPUs before the start")
    return Result(
        room="events",
        machine=described,
        rows=(*flow, *costs, *latency),
        notes=tuple(notes),
        pictures=(
            Picture("events-throughput", bars("Events to one handler that does nothing", flow)),
            Picture("events-cost", bars("One event", costs)),
            Picture("events-p0", percentiles("P0 while four P2 tasks burn CPU", spans)),
        ),
    )


# ---- P0 under load ----


def _under_load(effort: Effort, say: Callable[[str], None]) -> dict[str, npt.NDArray[np.float64]]:
    """Milliseconds from when the sender of an event was to wake until it was handled."""
    cases = {
        "qts": load.ours,
        "PriorityQueue + threads": load.threads,
        "asyncio.PriorityQueue": load.one_loop,
    }
    spans: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(1, effort.loads + 1):
        say(f"  round {number} of {effort.loads}")
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
    rows.append(_rate("publish_many", many, found, fastest, Goal("ours", ">=", 10)))
    rows.append(_rate("publish_many, batch handler", found["batch"], found, fastest))
    if "compiled" in found:
        rows.append(_rate("publish_many, compiled handler", found["compiled"], found, fastest))
    return rows


def _rate(name: str, ours: Series, found: dict[str, Series], peer: str, *goals: Goal) -> Row:
    beside = found.get(peer)
    note = f"best {ours.high:.3g}{ours.remark}"
    return Row(
        name=name,
        metric="published and handled",
        unit="M events/s",
        better="higher",
        ours=ours.median,
        peer=beside.median if beside else 0.0,
        peer_name=peer if beside else f"{peer}: not installed",
        goals=goals,
        note=note,
    )


def _cost_rows(found: dict[str, Series]) -> list[Row]:
    return [
        _cost("engine.event()", found["make"], found["bare struct"], "the bare struct"),
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
