"""The ring between two threads on two CPUs, beside textbook rings."""

from __future__ import annotations

from functools import partial

from benchmarks.measure import Placement, Sample, Series, interleave
from benchmarks.report import Goal, Row
from qts import _native
from qts.machine import detect_topology

_CAPACITY = 1024
_BATCH = 64
_ROUNDS, _QUICK_ROUNDS = 21, 3
_MESSAGES, _QUICK_MESSAGES = 1 << 20, 1 << 17
_TRIPS, _QUICK_TRIPS = 100_000, 10_000

# name -> ring, way; a rate in M messages/s, or the ns of a round trip
_RATES = {
    "textbook": ("textbook", "one"),
    "one": ("ours", "one"),
    "cached": ("cached", "one"),
    "copy": ("ours", "copy"),
    "in place": ("ours", "in_place"),
}
_TRIPS_OF = {"trip": "ours", "textbook trip": "textbook", "cached trip": "cached"}


def measure(quick: bool) -> tuple[list[Row], Placement]:
    messages, trips = (_QUICK_MESSAGES, _QUICK_TRIPS) if quick else (_MESSAGES, _TRIPS)
    cases = {name: partial(_rate, *how, messages) for name, how in _RATES.items()}
    cases |= {name: partial(_round_trip, ring, trips) for name, ring in _TRIPS_OF.items()}
    found, placement = interleave(cases, _QUICK_ROUNDS if quick else _ROUNDS)
    return _rows(found), placement


def _rows(found: dict[str, Series]) -> list[Row]:
    textbook, cached = "textbook, one at a time", "cached index, one at a time"
    fast = (Goal("ratio", ">=", 3),)
    return [
        _row("ring, one at a time", found["one"], found["textbook"], textbook, _at_least(1.5)),
        _row("ring, one at a time", found["one"], found["cached"], cached),
        _row(f"ring, {_BATCH} copied at once", found["copy"], found["textbook"], textbook, fast),
        _row(f"ring, {_BATCH} in place", found["in place"], found["textbook"], textbook, fast),
        _trip(found["trip"], found["textbook trip"], "textbook", (Goal("ratio", "<=", 0.8),)),
        _trip(found["trip"], found["cached trip"], "cached index"),
    ]


def _at_least(bound: float) -> tuple[Goal, ...]:
    return (Goal("ratio", ">=", bound),)


def _row(name: str, ours: Series, peer: Series, against: str, goals: tuple[Goal, ...] = ()) -> Row:
    return Row(
        name=name,
        metric="throughput",
        unit="M messages/s",
        better="higher",
        ours=ours.median,
        peer=peer.median,
        peer_name=against,
        goals=goals,
        note=f"best {ours.high:.3g} and {peer.high:.3g}{ours.remark}",
    )


def _trip(ours: Series, peer: Series, against: str, goals: tuple[Goal, ...] = ()) -> Row:
    return Row(
        name="ring, round trip",
        metric="round trip",
        unit="ns",
        better="lower",
        ours=ours.median,
        peer=peer.median,
        peer_name=against,
        goals=goals,
        note=f"best {ours.low:.3g} and {peer.low:.3g}{ours.remark}",
    )


def _rate(ring: str, way: str, messages: int) -> Sample:
    ns, disturbed = _native.bench_ring(ring, way, _CAPACITY, _BATCH, messages, _cpus())
    return Sample(messages / ns * 1e3, disturbed)


def _round_trip(ring: str, trips: int) -> Sample:
    ns, disturbed = _native.bench_ring(ring, "round_trip", _CAPACITY, 1, trips, _cpus())
    return Sample(ns / trips, disturbed)


def _cpus() -> tuple[int, int]:
    first, second = detect_topology().choose(2)
    return (-1, -1) if first is None or second is None else (first, second)
