"""Thirteen components that do no work: fused on few workers, beside a thread for each."""

from __future__ import annotations

import time
from functools import partial
from typing import Literal, NamedTuple

from benchmarks.machine import OtherLoad
from benchmarks.measure import Sample, Series, interleave
from benchmarks.report import Goal, Picture, Row
from qts.domain import OperationError
from qts.machine import detect_topology
from qts.router import Options, PlacementPlan, Router, RouterReport, Scenario, plan_placement
from qts.router.report import draw_latency_plot
from qts.router.scenario import (
    ProcessorSettings,
    ProducerSettings,
    Stage1Rule,
    Stage2Rule,
    StrategySettings,
)

Stamps = Literal["all", "hop-batch"]

_TYPES = range(4)
_ALWAYS_DUE = 1e9  # messages a second of each producer: more than any machine sends
_FIXED_RATE = 250_000.0  # of each of four producers: a million in all
_DRAIN_SECONDS = 20.0


class Effort(NamedTuple):
    rounds: int
    seconds: float  # of a run at full speed
    open_rounds: int
    open_seconds: float  # of a run at a fixed rate


FULL = Effort(rounds=5, seconds=0.3, open_rounds=5, open_seconds=1.0)
QUICK = Effort(rounds=2, seconds=0.1, open_rounds=1, open_seconds=0.2)


def scenario(rate: float, seconds: float) -> Scenario:
    """Return a scenario of 4 producers, 4 processors, 3 strategies and 4 types; no busy time."""
    return Scenario(
        scenario="benchmark",
        duration_secs=seconds,
        producers=ProducerSettings(
            count=4,
            messages_per_sec=rate,
            distribution={f"msg_type_{kind}": 0.25 for kind in _TYPES},
        ),
        processors=ProcessorSettings(
            count=4, processing_times_ns={f"msg_type_{kind}": 0 for kind in _TYPES}
        ),
        strategies=StrategySettings(
            count=3, processing_times_ns={f"strategy_{each}": 0 for each in range(3)}
        ),
        stage1_rules=tuple(Stage1Rule(msg_type=kind, processors=(kind,)) for kind in _TYPES),
        stage2_rules=tuple(Stage2Rule(msg_type=kind, strategy=kind % 3) for kind in _TYPES),
        ring_capacity=1024,
    )


# ---- full speed ----


def throughput(effort: Effort) -> list[Row]:
    busy = scenario(_ALWAYS_DUE, effort.seconds)
    stamps: tuple[Stamps, ...] = ("all", "hop-batch")
    plans = {stamp: _plans(busy, stamp) for stamp in stamps}
    cases = {
        f"{name} {stamp}": partial(_full_speed, busy, placed, stamp, effort.seconds)
        for stamp in stamps
        for name, placed in plans[stamp].items()
    }
    found, _ = interleave(cases, effort.rounds)
    return [row for stamp in stamps for row in _throughput_rows(found, plans[stamp], stamp)]


def _plans(busy: Scenario, stamps: Stamps) -> dict[str, PlacementPlan]:
    """Plan for this machine, for the other number of workers, and a thread for each component."""
    planned = plan_placement(busy, detect_topology(), "fused", lean=stamps != "all")
    other = 1 if len(planned.workers) > 1 else 2
    return {
        "planned": planned,
        "other": plan_placement(
            busy, detect_topology(), "fused", workers=other, oversubscribe=True
        ),
        "threads": plan_placement(
            busy, detect_topology(), "threads", wait="spin", oversubscribe=True
        ),
    }


def _throughput_rows(
    found: dict[str, Series], plans: dict[str, PlacementPlan], stamps: Stamps
) -> list[Row]:
    threads = found[f"threads {stamps}"]
    goals = (Goal("ratio", ">=", 50), Goal("ours", ">=", 8 if stamps == "all" else 25))
    return [
        Row(
            name=f"router, {_counted(len(plans[name].workers))}, stamps {stamps}",
            metric="throughput",
            unit="M messages/s",
            better="higher",
            ours=ours.median,
            peer=threads.median,
            peer_name="a spinning thread each",
            goals=goals if name == "planned" else (),
            note=f"{name}; best {ours.high:.3g} and {threads.high:.3g}{ours.remark}",
        )
        for name in ("planned", "other")
        for ours in [found[f"{name} {stamps}"]]
    ]


def _counted(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def _full_speed(busy: Scenario, placed: PlacementPlan, stamps: Stamps, seconds: float) -> Sample:
    router = Router(busy, placed, options=Options(stamps=stamps))
    others, started = OtherLoad(), time.monotonic()
    router.start()
    time.sleep(seconds)
    delivered = router.snapshot()["delivered"]
    took, disturbed = time.monotonic() - started, others.is_disturbing()
    router.stop()
    if not router.wait(_DRAIN_SECONDS):
        router.abort()
        raise OperationError(f"the router did not drain within {_DRAIN_SECONDS:g} s")
    ended = router.snapshot()
    if ended["produced"] != ended["delivered"]:
        raise OperationError(
            f"of {ended['produced']:,} messages {ended['delivered']:,} were delivered"
        )
    return Sample(delivered / took / 1e6, disturbed)


# ---- fixed rate ----


class PacedRun(NamedTuple):
    report: RouterReport
    disturbed: bool

    def total(self, name: str) -> Sample:
        return Sample(float(getattr(self.report.latency_us["total"], name)), self.disturbed)

    @property
    def longest_stall(self) -> Sample:
        floor = self.report.stall_floor
        return Sample(floor.longest_us if floor else 0.0, self.disturbed)


def open_loop(effort: Effort) -> tuple[list[Row], list[Picture]]:
    paced = scenario(_FIXED_RATE, effort.open_seconds)
    ours, threads = [], []
    for _ in range(effort.open_rounds):
        ours.append(_run_paced(paced, plan_placement(paced, detect_topology())))
        threads.append(
            _run_paced(paced, plan_placement(paced, detect_topology(), "threads", wait="yield"))
        )
    rows = [
        _latency_row(ours, threads, "p50", (Goal("ours", "<", 0.51),)),
        _latency_row(ours, threads, "p90", (Goal("ours", "<", 0.89),)),
        *(_latency_row(ours, None, name) for name in ("p95", "p99", "p99_9")),
    ]
    return rows, [_picture(ours, threads)]


def _run_paced(paced: Scenario, placed: PlacementPlan) -> PacedRun:
    router, others = Router(paced, placed, options=Options(sample=1)), OtherLoad()
    router.start()
    while not router.wait(1.0):
        pass
    disturbed = others.is_disturbing()
    report = router.report
    if report.verdict != "PASSED":
        raise OperationError(f"the run at a fixed rate failed: {report.render().splitlines()[-1]}")
    return PacedRun(report, disturbed)


def _latency_row(
    ours: list[PacedRun], threads: list[PacedRun] | None, name: str, goals: tuple[Goal, ...] = ()
) -> Row:
    """Compare with a thread for each component, or with the longest stall of the machine."""
    found = Series(tuple(run.total(name) for run in ours))
    peer = [run.total(name) for run in threads] if threads else [run.longest_stall for run in ours]
    return Row(
        name=f"router at 1 M/s, {name.replace('_', '.')}",
        metric="intended send to done",
        unit="us",
        better="lower",
        ours=found.median,
        peer=Series(tuple(peer)).median,
        peer_name="a yielding thread each" if threads else "longest stall of the machine",
        goals=goals,
        note=f"best {found.low:.3g}{found.remark}",
    )


def _picture(ours: list[PacedRun], threads: list[PacedRun]) -> Picture:
    best, peer = (min(runs, key=lambda run: run.total("p50")).report for runs in (ours, threads))
    curves = {"total": best.curves["total"], "threads": peer.curves["total"]}
    floor = best.stall_floor.longest_us if best.stall_floor else None
    return Picture(
        "router-latency", draw_latency_plot("1 M messages a second, all measured", curves, floor)
    )
