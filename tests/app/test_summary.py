"""Summary of a run: what makes its verdict FAILED."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from qts.app import RunSummary, TradingSummary

PLAIN: dict[str, Any] = {
    "mode": "paper",
    "broker": "paper",
    "tick_to_order": None,
    "safety": "NORMAL",
    "books_agree": True,
    **dict.fromkeys(("ticks", "signals", "intents", "fills", "positions"), 0),
    **{key: {} for key in ("lanes", "attempts", "pnl", "cache", "outbox", "refusals")},
}


def strategy(state: str) -> dict[str, Any]:
    return {"state": state, "reason": "", "signals": 1, "errors": 2}


@pytest.mark.parametrize(
    ("other", "failed"),
    [
        ({}, False),
        ({"safety": "WARNING"}, False),
        ({"strategies": {"a": strategy("running")}}, False),
        ({"strategies": {"a": strategy("running"), "b": strategy("disabled")}}, True),
        ({"safety": "LOCKDOWN"}, True),
        ({"books_agree": False}, True),
    ],
)
def test_run_fails_by_its_ledger_a_lockdown_or_a_disabled_strategy(
    other: dict[str, Any], failed: bool
) -> None:
    traded = msgspec.convert({**PLAIN, **other}, TradingSummary)
    assert traded.failed is failed


def test_strategies_are_a_key_of_the_flat_object() -> None:
    traded = msgspec.convert({**PLAIN, "strategies": {"a": strategy("disabled")}}, TradingSummary)
    run = RunSummary(
        verdict="FAILED", seconds=1.0, services=[], schema_version=1, restarts=[], trading=traded
    )
    (found,) = run.to_json()["strategies"].values()
    assert found.items() >= strategy("disabled").items()
    assert found.keys() >= {"orders", "refused", "refusals", "fees", "pnl", "exposure"}
    assert "failed" not in run.to_json()
