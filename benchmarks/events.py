"""The event engine: events a second, what making one costs, and P0 under load, beside its peers."""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks import events_under_load as load
from benchmarks import machine, peers_events
from benchmarks.curves import percentiles
from benchmarks.machine import Others
from benchmarks.measure import Case, Sample, Series, interleave
from benchmarks.peers_events import nothing
from benchmarks.plot import bars
from benchmarks.report import Goal, Picture, Result, Row
from qts.domain import Failed
from qts.events import Engine, Event, EventsConfig, LaneConfig, batch, compiled
from qts.events import payloads as p

_SYMBOLS = 500
_DRAIN_S = 30.0
_ONES = 2000  # events made, or published, in a trial that times the call alone

NAUTILUS = ("nautilus_trader publish", "nautilus_trader live data")
PEERS: dict[str, Callable[[Sequence[Any]], None]] = {
    "SimpleQueue + thread": peers_events.simple_queue,
    "PriorityQueue + thread": peers_events.priority_queue,
    "asyncio.PriorityQueue": peers_events.asyncio_priority_queue,
    "vn.py's pattern": peers_events.queue_engine,
}


class Effort(NamedTuple):
    rounds: int
    events: int  # of a trial of ours and of the fast peers
    slow_events: int  # of a trial of the slow ones
    loads: int  # rounds under load
    p0: int  # P0 events in each


FULL = Effort(rounds=15, events=100_000, slow_events=10_000, loads=10, p0=200)
QUICK = Effort(rounds=2, events=5_000, slow_events=1_000, loads=1, p0=20)


def run(quick: bool, say: Callable[[str], None]) -> Result:
    say("looking at the machine")
    described = machine.describe(quick)
    effort = QUICK if quick else FULL
    notes: list[str] = []
    say("events through the lanes and through each peer, in turn")
    found = _flow(effort, notes)
    flow, costs = _flow_rows(found), _cost_rows(found)
    say("P0 while four tasks burn CPU: ours and each peer that has priorities, in turn")
    spans = _under_load(effort)
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


# ---- events a second ----


def _flow(effort: Effort, notes: list[str]) -> dict[str, Series]:
    ticks = _ticks(_engine(effort.events))
    many = (ticks * (effort.events // len(ticks) + 1))[: effort.events]
    cases: dict[str, Case] = {
        "one by one": partial(_trial, many, _one_by_one, nothing),
        "publish_many": partial(_trial, many, _all_at_once, nothing),
        "batch": partial(_trial, many, _all_at_once, batch(nothing)),
        **_compiled_case(many, notes),
        "make": partial(_made, _engine(_ONES)),
        "bare struct": partial(_struct, ticks[0]),
        "publish": partial(_published, ticks, effort.events),
        "SimpleQueue.put": partial(_put, ticks),
    }
    for name, peer in _peers(notes).items():
        fast = name in ("SimpleQueue + thread", "nautilus_trader publish")
        cases[name] = partial(_peer_trial, many[: None if fast else effort.slow_events], peer)
    gc.collect()
    gc.disable()
    try:
        found, placement = interleave(cases, effort.rounds)
    finally:
        gc.enable()
    notes.append(
        f"P1 as it is, with room for a whole trial, so that nothing is dropped; {placement}"
    )
    return found


def _peers(notes: list[str]) -> Mapping[str, Callable[[Sequence[Any]], None]]:
    try:
        nautilus = peers_events.Nautilus()
    except ImportError:
        notes.append("nautilus_trader is not installed here: its rows hold no figure of it")
        return PEERS
    return PEERS | dict(zip(NAUTILUS, (nautilus.publish, nautilus.live), strict=True))


def _engine(room: int) -> Engine:
    lane = LaneConfig(queue_size=max(room, 1), overflow="drop_oldest", batch_window_ms=10)
    return Engine(EventsConfig(p1=lane))


def _ticks(engine: Engine) -> list[Event]:
    payloads = [p.PriceTick(symbol=f"{n:06}", price=1.0 + n, volume=1.0) for n in range(_SYMBOLS)]
    return [engine.event("PRICE_TICK", payload, "bench") for payload in payloads]


def _one_by_one(engine: Engine, events: Sequence[Event]) -> None:
    publish = engine.publish
    for event in events:
        publish(event)


def _all_at_once(engine: Engine, events: Sequence[Event]) -> None:
    engine.publish_many(events)


def _trial(events: Sequence[Event], publish: Callable[..., None], handler: Any) -> Sample:
    """Millions of events a second, from the first publish to the end of the last handler."""
    engine = _engine(len(events))
    engine.on("PRICE_TICK", handler)
    with engine:
        others, began = Others(), time.perf_counter()
        publish(engine, events)
        drained = engine.drained(_DRAIN_S)
        took, disturbed = time.perf_counter() - began, others.disturb()
        lane = engine.status().lanes["P1"]
    if not drained or lane.handled != len(events):
        raise Failed(f"of {len(events):,} events {lane.handled:,} were handled")
    return Sample(len(events) / took / 1e6, disturbed)


def _peer_trial(events: Sequence[Event], peer: Callable[[Sequence[Any]], None]) -> Sample:
    others, began = Others(), time.perf_counter()
    peer(events)
    took, disturbed = time.perf_counter() - began, others.disturb()
    return Sample(len(events) / took / 1e6, disturbed)


def _compiled_case(events: Sequence[Event], notes: list[str]) -> dict[str, Case]:
    try:
        numba: Any = importlib.import_module("numba")
    except ImportError:
        notes.append("no numba here: a compiled handler was not measured")
        return {}
    pointer = numba.types.CPointer(numba.types.uint8)
    function = numba.cfunc(numba.types.void(pointer, pointer))(_glance)
    return {"compiled": partial(_trial, events, _all_at_once, compiled(function))}


def _glance(_record: Any, _state: Any) -> None:
    pass


# ---- one event ----


def _made(engine: Engine) -> Sample:
    payload = p.PriceTick(symbol="005930", price=75000.0)
    event, others, began = engine.event, Others(), time.perf_counter_ns()
    for _ in range(_ONES):
        event("PRICE_TICK", payload, "bench")
    return Sample((time.perf_counter_ns() - began) / _ONES, others.disturb())


def _struct(like: Event) -> Sample:
    """What the thirteen fields cost when they are all at hand."""
    fields = tuple(getattr(like, name) for name in like.__struct_fields__)
    others, began = Others(), time.perf_counter_ns()
    for _ in range(_ONES):
        Event(*fields)
    return Sample((time.perf_counter_ns() - began) / _ONES, others.disturb())


def _published(ticks: Sequence[Event], room: int) -> Sample:
    """The call alone: nothing runs that could take what is published."""
    engine = _engine(max(room, _ONES))
    engine.on("PRICE_TICK", nothing)
    events = (list(ticks) * (_ONES // len(ticks) + 1))[:_ONES]
    others, began = Others(), time.perf_counter_ns()
    _one_by_one(engine, events)
    return Sample((time.perf_counter_ns() - began) / _ONES, others.disturb())


def _put(ticks: Sequence[Event]) -> Sample:
    line: Any = importlib.import_module("queue").SimpleQueue()
    events = (list(ticks) * (_ONES // len(ticks) + 1))[:_ONES]
    others, began = Others(), time.perf_counter_ns()
    for event in events:
        line.put(event)
    return Sample((time.perf_counter_ns() - began) / _ONES, others.disturb())


# ---- P0 under load ----


def _under_load(effort: Effort) -> dict[str, npt.NDArray[np.float64]]:
    """Milliseconds from sending to handled."""
    cases = {
        "qts": load.ours,
        "PriorityQueue + threads": load.threads,
        "asyncio.PriorityQueue": load.one_loop,
    }
    spans: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(effort.loads):
        for name, case in cases.items():
            spans[name] += load.latencies(case, effort.p0)
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
            metric="sent to handled",
            unit="ms",
            better="lower",
            ours=_part(ours, part),
            peer=_part(spans[peer], part),
            peer_name=peer,
            goals=(Goal("ours", "<", goals[part]),) if place == 0 else (),
            note=f"{len(ours):,} events each",
        )
        for place, peer in enumerate(name for name in spans if name != "qts")
        for part in goals
    ]


def _part(ms: npt.NDArray[np.float64], part: str) -> float:
    return float(ms.max() if part == "max" else np.percentile(ms, float(part[1:])))
