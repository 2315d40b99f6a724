"""Native lanes, built from settings and catalogue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from qts._native import (
    EventFactory,
    Lanes,
    TickWatcher,
    event_id,
    key_hash,
    replay_lanes,
    ticks,
    ticks_to_ns,
)
from qts.domain import Clock, EventRefusedError, LaneFullError, SystemClock
from qts.events.catalogue import COMMON_FIELDS, MAX_PAYLOAD_BYTES, Catalogue, Event, wrong_field
from qts.events.config import EventsConfig
from qts.events.payloads import Payload

__all__ = ["Lanes", "TickWatcher", "event_id", "key_hash", "ticks", "ticks_to_ns"]  # re-exported

AUDIT_ACTIONS = (
    "published",
    "taken",
    "handled",
    "retried",
    "dead",
    "collapsed",
    "dropped",
    "sampled",
    "returned",
)
# Audit record; records are in the order of the decisions of their lane.
AUDIT_DTYPE = np.dtype(
    [
        ("sequence", "u8"),
        ("other", "u8"),
        ("key", "u8"),
        ("at", "u8"),
        ("type", "u4"),
        ("lane", "u1"),
        ("action", "u1"),
        ("flags", "u1"),
        ("unused", "u1"),
    ]
)
# Record that a compiled handler's first argument points to.
EVENT_DTYPE = np.dtype(
    [
        ("sequence", "u8"),
        ("key", "u8"),
        ("timestamp", "f8"),
        ("type", "u4"),
        ("count", "u4"),
        ("values", "f8", (8,)),
    ]
)
_GIL_SLICE_EVENTS = 10_000
_WHOLE_SHARE = 1_000_000_000  # share of a sample_rate of 1


def lane_specs(config: EventsConfig) -> list[tuple[int, str, int, int, int, bool]]:
    return [
        (
            lane.queue_size,
            lane.overflow,
            max(1, round(lane.sample_rate * _WHOLE_SHARE)),
            lane.batch_size,
            round(lane.batch_window_ms * 1e6),
            lane.batch_by == "symbol",
        )
        for lane in config.lanes
    ]


def build_lanes(config: EventsConfig, catalogue: Catalogue) -> Lanes:
    """Create lanes for every type of the catalogue, without handlers and threads."""
    numbers: dict[str, int] = {}
    lanes = Lanes(
        lane_specs(config),
        Event,
        numbers,
        config.audit_records,
        round(config.gil_slice_ms * 1e6),
        _GIL_SLICE_EVENTS,
        round(config.gil_stall_ms * 1e6),
        max(1, config.pool_workers - 2),
    )
    for each in catalogue:
        numbers[each.name] = lanes.add_type(
            int(each.priority),
            each.payload,
            each.key,
            each.fields(),
            each.has_nested_fields,
            each.max_process_time_ms or 0.0,
        )
    return lanes


def event_factory(catalogue: Catalogue, clock: Clock) -> Callable[[str, Any, str], Event]:
    """Return a function that creates an event from (type, payload, source)."""
    fields = {}
    for each in catalogue:
        like = each.event(Payload(), event_id="", timestamp=0.0, source="")
        fields[each.name] = tuple(getattr(like, name) for name in Event.__struct_fields__)
    # The core reads the system clock without calling Python.
    now = None if type(clock) is SystemClock else lambda: clock.now().timestamp()

    def raise_missing(name: str) -> NoReturn:
        entry = catalogue[name]
        raise EventRefusedError(
            f"event type {entry.name} was registered after the engine was created"
        )

    def raise_source(name: str, source: object) -> NoReturn:
        raise EventRefusedError(wrong_field(name, "source", source))

    return EventFactory(Event, fields, now, raise_missing, raise_source).new_event


def refusal_callback(catalogue: Catalogue) -> Any:
    """Return the function with which the lanes raise a refusal."""

    def refuse(event: Any, reason: str) -> NoReturn:
        if reason == "not an event":
            raise EventRefusedError(f"only an Event can be published, not {type(event).__name__}")
        if reason == "stopped":
            raise EventRefusedError(
                f"{event.event_type} was published after the engine was stopped"
            )
        entry = catalogue[event.event_type]
        if reason == "priority":
            entry.check_priority(event)
        if reason == "timestamp":
            raise EventRefusedError(
                f"{entry.name}: timestamp {event.timestamp!r} is not a number of seconds since 1970"
            )
        if reason in COMMON_FIELDS:
            raise EventRefusedError(wrong_field(entry.name, reason, getattr(event, reason)))
        if reason == "full":
            raise LaneFullError(f"lane P{int(entry.priority)} is full; {entry.name} not published")
        if reason == "size":
            raise EventRefusedError(
                f"{entry.name}: a payload text is longer than {MAX_PAYLOAD_BYTES:,} characters"
            )
        if type(event.payload) is not entry.payload:
            raise EventRefusedError(
                f"{entry.name} carries {entry.payload.__name__}, not {type(event.payload).__name__}"
            )
        raise EventRefusedError(f"{entry.name}: the payload does not fit: {_misfit(entry, event)}")

    return refuse


def _misfit(entry: Any, event: Event) -> str:
    hints = entry.payload.__annotations__
    for name, bits in entry.fields():
        value = getattr(event.payload, name)
        fits = {str: 1, int: 2 | 4, float: 4, bool: 8, type(None): 16}.get(type(value), 0) & bits
        finite = not isinstance(value, float) or value - value == 0
        if not (fits and finite) and not bits & 32:
            return f"{name} = {str(value)[:40]!r} where {hints[name]} is expected, and finite"
    return "a number is too large"


def replay_audit(config: EventsConfig, records: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Repeat the recorded publishing and taking on new lanes; return the records it produces."""
    return np.frombuffer(replay_lanes(lane_specs(config), records.tobytes()), dtype=AUDIT_DTYPE)
