"""Small scenarios, plans and messages for tests of the router."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np
import pytest

from qts.machine import detect_topology
from qts.router import MESSAGE, PlacementPlan, Scenario, plan_placement
from qts.router.handlers import Messages

LayoutName = Literal["one worker", "two workers", "threads"]


@pytest.fixture(autouse=True)
def short_stall_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the stall measurement of reports."""
    monkeypatch.setattr("qts.router.native_router._STALL_SECONDS", 0.002)
    monkeypatch.setattr("qts.router.native_router._PING_PONGS", 100)


def scenario(
    *,
    producers: int = 2,
    types: int = 3,
    strategies: int = 2,
    rate: float = 200_000,
    seconds: float = 0.05,
    **changes: Any,
) -> Scenario:
    """Route type t through processor t to strategy t modulo their number; no busy time."""
    kinds = range(types)
    values = {
        "scenario": "small",
        "duration_secs": seconds,
        "producers": {
            "count": producers,
            "messages_per_sec": rate,
            "distribution": {f"msg_type_{kind}": 1 / types for kind in kinds},
        },
        "processors": {
            "count": types,
            "processing_times_ns": {f"msg_type_{kind}": 0 for kind in kinds},
        },
        "strategies": {
            "count": strategies,
            "processing_times_ns": {f"strategy_{each}": 0 for each in range(strategies)},
        },
        "stage1_rules": [{"msg_type": kind, "processors": [kind]} for kind in kinds],
        "stage2_rules": [{"msg_type": kind, "strategy": kind % strategies} for kind in kinds],
    }
    return msgspec.convert(values | changes, Scenario)


def plan_for(scenario: Scenario, layout: LayoutName) -> PlacementPlan:
    """Plan with yielding threads, for machines with few cores."""
    machine = detect_topology()
    if layout == "threads":
        return plan_placement(scenario, machine, "threads", wait="yield")
    return plan_placement(
        scenario, machine, "fused", workers=1 if layout == "one worker" else 2, wait="yield"
    )


def ticks(count: int, *, types: int = 3, symbols: int = 8) -> Messages:
    array = np.zeros(count, MESSAGE)
    number = np.arange(count)
    array["msg_type"] = number % types
    array["symbol_id"] = number % symbols
    array["price"] = (1_000 + number) * 10**8
    array["quantity_low"] = 1 + number % 5
    return array


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.001)
