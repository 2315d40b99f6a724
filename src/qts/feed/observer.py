"""Observer: wraps every quote in a numbered record and passes it to the sinks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

Mode = Literal["normal", "burst"]
SCHEMA = 2  # 1 has no bid, ask and venue_at


class Meta(msgspec.Struct, frozen=True, gc=False):
    time: datetime
    session_id: str
    mode: str  # PROD, PAPER, SIMULATION or REPLAY: origin of the quotes
    tick_source: str
    loop_interval_ms: float


class Context(msgspec.Struct, frozen=True, gc=False):
    source: str
    stage: str
    symbol: str
    market: str


class Inputs(msgspec.Struct, frozen=True, gc=False):
    price: float
    volume: float
    kis_raw: dict[str, Any]  # the venue's message, whichever venue it is
    bid: float = 0.0  # 0: not sent
    ask: float = 0.0
    venue_at: float = 0.0  # of the last trade by the venue's clock, in seconds since 1970


class State(msgspec.Struct, frozen=True, gc=False):
    polling_mode: Mode


class Observation(msgspec.Struct, frozen=True, gc=False):
    inputs: Inputs
    computed: dict[str, float]
    state: State


class ObservationSnapshot(msgspec.Struct, frozen=True, gc=False):
    """Quote of one symbol with its context."""

    meta: Meta
    context: Context
    observation: Observation


class PatternRecord(msgspec.Struct, frozen=True, gc=False):
    """Snapshot as it is recorded, numbered within its session."""

    schema: int
    number: int
    snapshot: ObservationSnapshot


ENCODER = msgspec.json.Encoder()
DECODER = msgspec.json.Decoder(PatternRecord)


Sink = Callable[[PatternRecord], None]


class Observer:
    """Sinks are called in order: the recorder first, so that what others receive is written."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)
        self._numbers = itertools.count(1)

    def on_snapshot(self, snapshot: ObservationSnapshot) -> PatternRecord:
        record = PatternRecord(SCHEMA, next(self._numbers), snapshot)
        for sink in self._sinks:
            sink(record)
        return record
