"""Trials of the event engine and its peers: throughput, and the cost of one event."""

from __future__ import annotations

import gc
import importlib
import itertools
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks import peers_events
from benchmarks.machine import OtherLoad
from benchmarks.measure import Case, Sample, Series, interleave
from benchmarks.peers_events import nothing
from qts.domain import OperationError
from qts.events import Event, EventEngine, EventsConfig, LaneConfig, batch, compiled
from qts.events import payloads as p

_SYMBOLS = 500
_DRAIN_S = 30.0
_CALLS = 2000  # calls in a trial that times the call alone

NAUTILUS = ("nautilus_trader publish", "nautilus_trader live data")
PEERS: dict[str, Callable[[Sequence[Any]], None]] = {
    "SimpleQueue + thread": peers_events.simple_queue,
    "PriorityQueue + thread": peers_events.priority_queue,
    "asyncio.PriorityQueue": peers_events.asyncio_priority_queue,
    "vn.py's pattern": peers_events.queue_engine,
}


def measure(
    rounds: int, events: int, slow_events: int, notes: list[str], progress: Callable[[str], None]
) -> dict[str, Series]:
    """Run all cases in turn; a trial of a slow peer has `slow_events`."""
    ticks = _ticks(_engine(events))
    many = (ticks * (events // len(ticks) + 1))[:events]
    cases: dict[str, Case] = {
        "one by one": partial(_trial, many, _one_by_one, nothing),
        "publish_many": partial(_trial, many, _all_at_once, nothing),
        "batch": partial(_trial, many, _all_at_once, batch(nothing)),
        **_compiled_case(many, notes),
        "make": partial(_new_event_cost, _engine(_CALLS)),
        "bare struct": partial(_struct_cost, ticks[0]),
        "publish": partial(_publish_cost, ticks, events),
        "SimpleQueue.put": partial(_put_cost, ticks),
    }
    for name, peer in _peers(notes).items():
        fast = name in ("SimpleQueue + thread", "nautilus_trader publish")
        cases[name] = partial(_peer_trial, many[: None if fast else slow_events], peer)
    gc.collect()
    gc.disable()
    try:
        found, placement = interleave(_report_rounds(cases, rounds, progress), rounds)
    finally:
        gc.enable()
    notes.append(f"P1 with capacity for a whole trial, so that nothing is dropped; {placement}")
    return found


def _report_rounds(
    cases: Mapping[str, Case], rounds: int, progress: Callable[[str], None]
) -> dict[str, Case]:
    """Return the cases; the first one also reports the number of the round."""
    (first, case), *others = cases.items()
    numbers = itertools.count(1)

    def reported() -> Sample:
        if (number := next(numbers)) % 5 == 1:
            progress(f"  round {number} of {rounds}")
        return case()

    return {first: reported, **dict(others)}


def _peers(notes: list[str]) -> Mapping[str, Callable[[Sequence[Any]], None]]:
    try:
        nautilus = peers_events.Nautilus()
    except ImportError:
        notes.append("nautilus_trader is not installed here: its rows have no figure")
        return PEERS
    return PEERS | dict(zip(NAUTILUS, (nautilus.publish, nautilus.live), strict=True))


def _engine(capacity: int) -> EventEngine:
    lane = LaneConfig(queue_size=max(capacity, 1), overflow="drop_oldest", batch_window_ms=10)
    return EventEngine(EventsConfig(p1=lane))


def _ticks(engine: EventEngine) -> list[Event]:
    payloads = [p.PriceTick(symbol=f"{n:06}", price=1.0 + n, volume=1.0) for n in range(_SYMBOLS)]
    return [engine.new_event("PRICE_TICK", payload, "bench") for payload in payloads]


def _one_by_one(engine: EventEngine, events: Sequence[Event]) -> None:
    publish = engine.publish
    for event in events:
        publish(event)


def _all_at_once(engine: EventEngine, events: Sequence[Event]) -> None:
    engine.publish_many(events)


def _trial(events: Sequence[Event], publish: Callable[..., None], handler: Any) -> Sample:
    """Return M events/s, from the first publish to the end of the last handler."""
    engine = _engine(len(events))
    engine.on("PRICE_TICK", handler)
    with engine:
        others, began = OtherLoad(), time.perf_counter()
        publish(engine, events)
        drained = engine.wait_drained(_DRAIN_S)
        took, disturbed = time.perf_counter() - began, others.is_disturbing()
        lane = engine.status().lanes["P1"]
    if not drained or lane.handled != len(events):
        raise OperationError(f"of {len(events):,} events {lane.handled:,} were handled")
    return Sample(len(events) / took / 1e6, disturbed)


def _peer_trial(events: Sequence[Event], peer: Callable[[Sequence[Any]], None]) -> Sample:
    others, began = OtherLoad(), time.perf_counter()
    peer(events)
    took, disturbed = time.perf_counter() - began, others.is_disturbing()
    return Sample(len(events) / took / 1e6, disturbed)


def _compiled_case(events: Sequence[Event], notes: list[str]) -> dict[str, Case]:
    try:
        numba: Any = importlib.import_module("numba")
    except ImportError:
        notes.append("numba is not installed here: no compiled handler was measured")
        return {}
    pointer = numba.types.CPointer(numba.types.uint8)
    function = numba.cfunc(numba.types.void(pointer, pointer))(_do_nothing)
    return {"compiled": partial(_trial, events, _all_at_once, compiled(function))}


def _do_nothing(_record: Any, _state: Any) -> None:
    pass


# ---- one event ----


def _new_event_cost(engine: EventEngine) -> Sample:
    payload = p.PriceTick(symbol="005930", price=75000.0)
    event, others, began = engine.new_event, OtherLoad(), time.perf_counter_ns()
    for _ in range(_CALLS):
        event("PRICE_TICK", payload, "bench")
    return Sample((time.perf_counter_ns() - began) / _CALLS, others.is_disturbing())


def _struct_cost(like: Event) -> Sample:
    """Measure the struct alone, with all thirteen fields already computed."""
    fields = tuple(getattr(like, name) for name in like.__struct_fields__)
    others, began = OtherLoad(), time.perf_counter_ns()
    for _ in range(_CALLS):
        Event(*fields)
    return Sample((time.perf_counter_ns() - began) / _CALLS, others.is_disturbing())


def _publish_cost(ticks: Sequence[Event], capacity: int) -> Sample:
    """Measure the call alone: no worker of the engine runs."""
    engine = _engine(max(capacity, _CALLS))
    engine.on("PRICE_TICK", nothing)
    events = (list(ticks) * (_CALLS // len(ticks) + 1))[:_CALLS]
    others, began = OtherLoad(), time.perf_counter_ns()
    _one_by_one(engine, events)
    return Sample((time.perf_counter_ns() - began) / _CALLS, others.is_disturbing())


def _put_cost(ticks: Sequence[Event]) -> Sample:
    fifo: queue.SimpleQueue[Event] = queue.SimpleQueue()
    events = (list(ticks) * (_CALLS // len(ticks) + 1))[:_CALLS]
    others, began = OtherLoad(), time.perf_counter_ns()
    for event in events:
        fifo.put(event)
    return Sample((time.perf_counter_ns() - began) / _CALLS, others.is_disturbing())
