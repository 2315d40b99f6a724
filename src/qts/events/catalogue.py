"""Event, and the catalogue of event types: lane, payload and delivery rules of each."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any

import msgspec

from qts.domain import EventRefusedError, nearest_name
from qts.events import payloads as p


class Priority(IntEnum):
    P0 = 0  # orders, fills, emergencies: never lost, served first
    P1 = 1  # prices and order books
    P2 = 2  # strategies and signals
    P3 = 3  # dashboard, logs, reports


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event; `EventType.event` fills in the fields that depend on the type."""

    event_id: str
    event_type: str
    priority: int
    timestamp: float  # seconds since 1970, UTC
    source: str
    payload: Any  # an instance of the payload class of the type
    requires_ack: bool = False
    max_process_time_ms: float | None = None
    can_batch: bool = False
    can_collapse: bool = False
    can_drop: bool = False
    retry_count: int = 0
    max_retries: int = 3


# Bit of each plain type, as the native lanes check field values.
_BITS: dict[object, int] = {str: 1, int: 2, float: 4, bool: 8, type(None): 16}
_ANY = 32
MAX_PAYLOAD_BYTES = 1 << 20  # as JSON
# What the fields that retries, dead letters and acknowledgements rely on must hold.
COMMON_FIELDS = {
    "event_id": "text",
    "source": "text",
    "retry_count": "a whole number from 0",
    "max_retries": "a whole number from 0",
}


class EventType(msgspec.Struct, frozen=True):
    """Entry of the catalogue."""

    name: str
    priority: Priority
    payload: type[msgspec.Struct]
    key: str | None = None  # payload field by which events of the type are grouped
    requires_ack: bool = False
    max_process_time_ms: float | None = None
    can_batch: bool = False
    can_collapse: bool = False
    can_drop: bool = False
    max_retries: int = 3

    def event(
        self, payload: msgspec.Struct, *, event_id: str, timestamp: float, source: str
    ) -> Event:
        return Event(
            event_id,
            self.name,
            int(self.priority),
            timestamp,
            source,
            payload,
            self.requires_ack,
            self.max_process_time_ms,
            self.can_batch,
            self.can_collapse,
            self.can_drop,
            0,
            self.max_retries,
        )

    def fields(self) -> list[tuple[str, int]]:
        """Return the name of each payload field with the bits of its plain types."""
        hints = typing.get_type_hints(self.payload)
        return [(name, _bits(hints[name])) for name in self.payload.__struct_fields__]

    @property
    def async_timeout_s(self) -> float | None:
        """Time after which an async handler is cancelled; P3 only."""
        if self.priority != Priority.P3 or not self.max_process_time_ms:
            return None
        return self.max_process_time_ms / 1000

    @property
    def has_nested_fields(self) -> bool:
        """Whether a field is not a plain value, so that only `check` can validate the payload."""
        return any(bits & _ANY for _, bits in self.fields())

    def check_priority(self, event: Event) -> None:
        if event.priority != self.priority:
            raise EventRefusedError(
                f"{self.name} has priority {int(self.priority)}, not {event.priority}"
            )

    def check(self, event: Event) -> None:
        """Validate every payload field and the payload's size; raise EventRefusedError."""
        try:
            data = msgspec.json.encode(event.payload)
            msgspec.json.decode(data, type=self.payload)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise EventRefusedError(f"{self.name}: the payload does not fit: {error}") from None
        if len(data) > MAX_PAYLOAD_BYTES:
            raise EventRefusedError(
                f"{self.name}: the payload has {len(data):,} bytes as JSON; "
                f"at most {MAX_PAYLOAD_BYTES:,} are allowed"
            )


class Catalogue:
    """Event types by name, in the order of their registration."""

    def __init__(self, entries: Iterable[EventType] | None = None) -> None:
        self._types: dict[str, EventType] = {}
        for each in STANDARD_TYPES if entries is None else entries:
            self.register(each)

    def register(self, new: EventType) -> EventType:
        if not new.name or new.name != new.name.upper() or not new.name.isidentifier():
            raise EventRefusedError(
                f"event type {new.name!r} is not an upper-case name such as PRICE_TICK"
            )
        if new.name in self._types:
            raise EventRefusedError(f"event type {new.name} is already registered")
        fields = new.payload.__struct_fields__
        if new.key is not None and new.key not in fields:
            raise EventRefusedError(
                f"event type {new.name}: payload {new.payload.__name__} has no field "
                f"{new.key!r}; it has {', '.join(fields)}"
            )
        if not new.payload.__struct_config__.frozen:
            raise EventRefusedError(
                f"event type {new.name}: payload {new.payload.__name__} is not frozen"
            )
        if not _is_count(new.max_retries):
            raise EventRefusedError(wrong_field(new.name, "max_retries", new.max_retries))
        if new.priority == Priority.P0 and (new.can_drop or new.can_collapse):
            raise EventRefusedError(
                f"event type {new.name}: P0 events cannot be dropped or collapsed"
            )
        self._types[new.name] = new
        return new

    def __getitem__(self, name: str) -> EventType:
        try:
            return self._types[name]
        except KeyError:
            raise EventRefusedError(f"unknown event type {name!r}{self._hint(name)}") from None

    def check(self, event: Event) -> None:
        """Check the whole contract without the native lanes; raise EventRefusedError."""
        if type(event) is not Event:
            raise EventRefusedError(f"only an Event can be published, not {type(event).__name__}")
        entry = self[event.event_type]
        entry.check_priority(event)
        for name, expected in COMMON_FIELDS.items():
            value = getattr(event, name)
            if not (isinstance(value, str) if expected == "text" else _is_count(value)):
                raise EventRefusedError(wrong_field(entry.name, name, value))
        if type(event.payload) is not entry.payload:
            raise EventRefusedError(
                f"{entry.name} carries {entry.payload.__name__}, not {type(event.payload).__name__}"
            )
        entry.check(event)

    def __iter__(self) -> Iterator[EventType]:
        return iter(self._types.values())

    def __contains__(self, name: object) -> bool:
        return name in self._types

    def __len__(self) -> int:
        return len(self._types)

    def _hint(self, name: object) -> str:
        near = nearest_name(str(name)[:100], self._types)
        return f"; did you mean {near}?" if near else "; register it first"


def wrong_field(event_type: str, field: str, value: object) -> str:
    """Return the error text for a field of an event that has another type."""
    return f"{event_type}: {field} = {str(value)[:40]!r} where {COMMON_FIELDS[field]} is expected"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _bits(annotation: Any) -> int:
    if annotation in _BITS:
        return _BITS[annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        bits = 0
        for part in typing.get_args(annotation):
            bits |= _bits(part)
        return bits
    return _ANY


def _p0(name: str, payload: type[msgspec.Struct], key: str | None) -> EventType:
    return EventType(name, Priority.P0, payload, key, requires_ack=True, max_process_time_ms=10)


def _p1(name: str, payload: type[msgspec.Struct], key: str | None) -> EventType:
    return EventType(
        name, Priority.P1, payload, key, can_batch=True, can_collapse=True, can_drop=True
    )


def _p2(name: str, payload: type[msgspec.Struct], key: str | None, can_collapse: bool) -> EventType:
    return EventType(name, Priority.P2, payload, key, can_batch=True, can_collapse=can_collapse)


def _p3(name: str, payload: type[msgspec.Struct], key: str | None) -> EventType:
    return EventType(
        name, Priority.P3, payload, key, max_process_time_ms=5000, can_batch=True, can_drop=True
    )


# A P2 event that only triggers work may be collapsed into a waiting one; an event that records
# something (a signal, a decision) may not.
STANDARD_TYPES: tuple[EventType, ...] = (
    _p0("FILL_CONFIRMED", p.FillPayload, "symbol"),
    _p0("FILL_PARTIAL", p.FillPayload, "symbol"),
    _p0("ORDER_REJECTED", p.OrderUpdatePayload, "symbol"),
    _p0("ORDER_CANCELLED", p.OrderUpdatePayload, "symbol"),
    _p0("POSITION_UPDATE", p.PositionUpdate, "symbol"),
    _p0("EMERGENCY_STOP", p.Emergency, None),
    _p0("BROKER_DISCONNECT", p.BrokerDisconnect, "broker"),
    _p0("ORDER_SENT", p.OrderUpdatePayload, "symbol"),
    _p0("FILL_RECEIVED", p.FillPayload, "symbol"),
    _p0("TRAILING_STOP_HIT", p.TrailingStopHit, "symbol"),
    _p0("ETEDA_SUSPEND", p.Emergency, None),
    _p1("PRICE_TICK", p.PriceTick, "symbol"),
    _p1("ORDERBOOK_UPDATE", p.OrderbookUpdate, "symbol"),
    _p1("VOLUME_UPDATE", p.VolumeUpdate, "symbol"),
    _p1("INDEX_UPDATE", p.IndexUpdate, "index"),
    _p1("VIX_UPDATE", p.VixUpdate, None),
    _p2("ETEDA_CYCLE_START", p.CycleStart, "strategy_type", True),
    _p2("STRATEGY_EVALUATE", p.StrategyEvaluate, "strategy_type", True),
    _p2("RISK_EVALUATE", p.EvaluatePayload, "subject", True),
    _p2("PORTFOLIO_EVALUATE", p.EvaluatePayload, "subject", True),
    _p2("INDICATOR_UPDATE", p.IndicatorUpdate, "symbol", False),
    _p2("SIGNAL_GENERATED", p.SignalPayload, "symbol", False),
    _p2("EXTRACT_COMPLETE", p.StepComplete, "symbol", False),
    _p2("TRANSFORM_COMPLETE", p.StepComplete, "symbol", False),
    _p2("STRATEGY_SIGNAL", p.SignalPayload, "symbol", False),
    _p2("ORDER_DECISION", p.OrderDecision, "symbol", False),
    _p3("DASHBOARD_UPDATE", p.DashboardUpdate, "dashboard_id"),
    _p3("LOG_WRITE", p.LogWrite, None),
    _p3("REPORT_GENERATE", p.ReportGenerate, "report"),
    _p3("NOTIFICATION_SEND", p.NotificationSend, None),
    _p3("METRIC_RECORD", p.MetricRecord, "name"),
    _p3("PERF_UPDATE", p.PerfUpdate, "name"),
)
