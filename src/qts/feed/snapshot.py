"""What was seen, in the form every consumer relies on: snapshot, and the record that wraps it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

Mode = Literal["normal", "burst"]
SCHEMA = 1


class Meta(msgspec.Struct, frozen=True, gc=False):
    time: datetime
    session_id: str
    mode: str  # PROD, PAPER, SIMULATION or REPLAY: where the quotes come from
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
    kis_raw: dict[str, Any]  # the venue's own words, whichever venue it is


class State(msgspec.Struct, frozen=True, gc=False):
    polling_mode: Mode


class Observation(msgspec.Struct, frozen=True, gc=False):
    inputs: Inputs
    computed: dict[str, float]
    state: State


class ObservationSnapshot(msgspec.Struct, frozen=True, gc=False):
    """One look at one symbol; nothing in it is a judgement."""

    meta: Meta
    context: Context
    observation: Observation


class PatternRecord(msgspec.Struct, frozen=True, gc=False):
    """A snapshot as it is kept: numbered within its session."""

    schema: int
    number: int
    snapshot: ObservationSnapshot


ENCODER = msgspec.json.Encoder()
DECODER = msgspec.json.Decoder(PatternRecord)
