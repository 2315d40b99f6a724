"""The native lanes, built from settings and catalogue; nothing else here touches the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from qts._native import EventMaker, Lanes, TickWatch, event_id, replay_lanes
from qts.domain import Clock, EventRefusedError, LaneFullError, SystemClock
from qts.events.catalogue import LARGEST_PAYLOAD, Catalogue
from qts.events.config import EventsConfig
from qts.events.event import Event
from qts.events.payloads import Payload

__all__ = [
    "AUDIT_ACTIONS",
    "AUDIT_DTYPE",
    "EVENT_DTYPE",
    "Lanes",
    "TickWatch",
    "build_lanes",
    "event_factory",
    "event_id",
    "replay_audit",
    "specs",
]

AUDIT_ACTIONS = (
    "published",
    "taken",
    "handled",
    "retried",
    "dead",
    "collapsed",
    "dropped",
    "sampled",
)
# One audit record, in the order in which its lane decided.
AUDIT_DTYPE = np.dtype(
    [
        ("sequence", "u8"),
        ("other", "u8"),
        ("key", "u8"),
        ("at", "u8"),
        ("type", "u4"),
        ("lane", "u1"),
        ("deed", "u1"),
        ("flags", "u1"),
        ("unused", "u1"),
    ]
)
# What a compiled handler's first argument points to.
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
_HOLD_EVENTS = 10_000


def specs(config: EventsConfig) -> list[tuple[int, str, int, int, int, bool]]:
    return [
        (
            lane.queue_size,
            lane.overflow,
            max(1, round(1 / lane.sample_rate)),
            lane.batch_size,
            round(lane.batch_window_ms * 1e6),
            lane.batch_by == "symbol",
        )
        for lane in config.lanes
    ]


def build_lanes(config: EventsConfig, catalogue: Catalogue) -> Lanes:
    """Lanes that know every type of the catalogue and have no handlers and no threads yet."""
    numbers: dict[str, int] = {}
    lanes = Lanes(
        specs(config),
        Event,
        numbers,
        config.audit_records,
        round(config.gil_slice_ms * 1e6),
        _HOLD_EVENTS,
        round(config.gil_stall_ms * 1e6),
        max(1, config.pool_workers - 2),
    )
    for each in catalogue:
        numbers[each.name] = lanes.add_type(
            int(each.priority),
            each.payload,
            each.key,
            each.fields(),
            each.deep,
            each.max_process_time_ms or 0.0,
        )
    return lanes


def event_factory(catalogue: Catalogue, clock: Clock) -> Callable[[str, Any, str], Event]:
    """Makes an event of a type, now, from (type, payload, source)."""
    fields = {}
    for each in catalogue:
        like = each.event(Payload(), event_id="", timestamp=0.0, source="")
        fields[each.name] = tuple(getattr(like, name) for name in Event.__struct_fields__)
    # A clock that was handed in is asked; the machine's own is read without a way through Python.
    now = None if type(clock) is SystemClock else lambda: clock.now().timestamp()

    def missing(name: str) -> NoReturn:
        known = catalogue[name]
        raise EventRefusedError(f"event type {known.name} was registered after the engine was made")

    return EventMaker(Event, fields, now, missing).make


def refusal(catalogue: Catalogue) -> Any:
    """Words for what the lanes refuse."""

    def refuse(event: Any, why: str) -> NoReturn:
        if why == "not an event":
            raise EventRefusedError(f"only an Event can be published, not {type(event).__name__}")
        if why == "stopped":
            raise EventRefusedError(
                f"{event.event_type} was published after the engine was stopped"
            )
        if why == "type":
            catalogue[event.event_type]
        known = catalogue[event.event_type]
        if why == "priority":
            raise EventRefusedError(
                f"{known.name} has priority {int(known.priority)}, not {event.priority}"
            )
        if why == "timestamp":
            raise EventRefusedError(
                f"{known.name}: timestamp {event.timestamp!r} is no moment; "
                "write seconds since 1970"
            )
        if why == "full":
            raise LaneFullError(
                f"{known.name} found no room in lane P{int(known.priority)} in the time given"
            )
        if why == "size":
            raise EventRefusedError(
                f"{known.name}: a text in the payload is longer than {LARGEST_PAYLOAD:,} characters"
            )
        if type(event.payload) is not known.payload:
            raise EventRefusedError(
                f"{known.name} carries {known.payload.__name__}, not {type(event.payload).__name__}"
            )
        raise EventRefusedError(f"{known.name}: the payload does not fit: {_misfit(known, event)}")

    return refuse


def _misfit(known: Any, event: Event) -> str:
    hints = known.payload.__annotations__
    for name, bits in known.fields():
        value = getattr(event.payload, name)
        fits = {str: 1, int: 2 | 4, float: 4, bool: 8, type(None): 16}.get(type(value), 0) & bits
        finite = not isinstance(value, float) or value - value == 0
        if not (fits and finite) and not bits & 32:
            return f"{name} = {str(value)[:40]!r} where {hints[name]} is expected, and finite"
    return "a number is too large"


def replay_audit(config: EventsConfig, records: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """The records that the same publishing and taking makes again, drop by drop."""
    return np.frombuffer(replay_lanes(specs(config), records.tobytes()), dtype=AUDIT_DTYPE)
