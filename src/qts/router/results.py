"""Reports and snapshots from the counters of the native router."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from qts import _native
from qts.router.plan import PlacementPlan
from qts.router.progress import RunSnapshot
from qts.router.report import (
    Percentiles,
    QueueLocation,
    RouterReport,
    StallFloor,
    StrategyCount,
    StreamDigest,
)

_STALL_SECONDS = 0.2
_PING_PONGS = 20_000


def collect_report(
    native: _native.Router, scenario: str, plan: PlacementPlan, offered: int | None
) -> RouterReport:
    """Return the report without times and notes; `offered` is None for a live router."""
    totals = native.totals()
    undelivered = totals["produced"] - totals["delivered"]
    return RouterReport(
        scenario=scenario,
        offered=totals["produced"] if offered is None else offered,
        produced=totals["produced"],
        delivered=totals["delivered"],
        undelivered=undelivered,
        violations=totals["violations"],
        gaps=totals["gaps"],
        reordered=totals["reordered"],
        seconds=0.0,
        plan=plan.to_json(),
        latency_us={name: Percentiles(**row) for name, row in native.latencies().items()},
        stall_floor=_stall_floor(),
        undelivered_at=tuple(_undelivered_at(native, undelivered)),
        failures=tuple(failures(native)),
        per_strategy=tuple(
            StrategyCount(strategy=id_, delivered=delivered, violations=violations, gaps=gaps)
            for id_, delivered, violations, gaps in native.strategies()
        ),
        rss_mb=_rss_mb(),
        curves={name: tuple(points) for name, points in native.curves().items()},
    )


def streams(native: _native.Router) -> tuple[StreamDigest, ...]:
    return tuple(
        StreamDigest(strategy=a, producer=b, msg_type=c, delivered=count, digest=f"{digest:016x}")
        for a, b, c, count, digest in native.streams()
    )


def failures(native: _native.Router) -> Iterator[str]:
    """Yield a line for each failure: component, message, error."""
    for component, message, text in native.failures():
        at = "" if component == "journal" else f" at {message!r}"
        lines = text.strip().splitlines() or ["no reason given"]
        yield f"{component} failed{at}: {lines[-1]}"  # the last line of a traceback
    for worker in native.stuck():
        yield f"{worker} did not return"


def snapshot(native: _native.Router) -> RunSnapshot:
    totals = native.totals()
    depths = {"stage1": 0, "processing": 0, "stage2": 0, "strategies": 0}
    for place, count in native.waiting():
        depths[_stage_before(place)] += count
    return {
        "produced": totals["produced"],
        "processed": totals["processed"],
        "delivered": totals["delivered"],
        "depths": depths,
        "latency_us": native.recent(),
    }


def _undelivered_at(native: _native.Router, undelivered: int) -> Iterator[QueueLocation]:
    known = 0
    for place, count in native.waiting():
        known += count
        yield QueueLocation(place, count)
    if undelivered > known:
        yield QueueLocation(", ".join(native.stuck()) or "nowhere: lost", undelivered - known)


def _stage_before(place: str) -> str:
    """Return the stage a message waits for, from the name of its edge: `a to b, type 3`."""
    target = place.partition(" to ")[2] or place
    for start, stage in (("stage1", "stage1"), ("processor", "processing"), ("stage2", "stage2")):
        if target.startswith(start):
            return stage
    return "strategies"


def _stall_floor() -> StallFloor:
    floor = _native.stall_floor(_STALL_SECONDS)
    return StallFloor(
        seconds=floor["duration_ns"] / 1e9,
        over_1us=floor["over_1us"],
        over_20us=floor["over_20us"],
        longest_us=floor["longest_ns"] / 1000,
        share_lost=floor["share_lost"],
        ping_pong_ns=_native.ping_pong(_PING_PONGS),
    )


def _rss_mb() -> float:
    """Return the resident memory now, or its peak where the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return round(peak / (1e6 if sys.platform == "darwin" else 1e3), 1)
