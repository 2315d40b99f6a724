"""Two instances of one class in `qts run`: symbols, parameters and state of their own."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest

from tests.acceptance.runs import Run, running
from tests.embedded.clients import until

pytestmark = pytest.mark.timeout(300)

SYMBOLS = {"left": ("005930", "035420"), "right": ("035720", "000270")}
TABLES = """
[[strategy]]
class = "tests.acceptance.instances:InAndOut"
name = "left"
symbols = ["005930", "035420"]
parameters = { labels = ["a", "b"] }

[[strategy]]
class = "tests.acceptance.instances:InAndOut"
name = "right"
symbols = ["035720", "000270"]
capital = 250_000
limits = { max_open_symbols = 1 }
parameters = { value = 200_000, labels = ["c"] }

[pipeline]
isolated_strategies = ["right"]

[simulator]
symbols = 30

[risk.limits]
orders_per_day = 100_000
orders_per_minute = 100_000
"""
ORDERS = """
SELECT i.strategy_key, i.symbol, s.reason, i.intent_type, i.quantity, i.status
  FROM order_intent i JOIN signal s ON s.id = i.signal_id ORDER BY i.created_at
"""
STATES = "SELECT strategy_key, state FROM strategy_state"


def orders(run: Run) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {"left": [], "right": []}
    for row in run.query(ORDERS):
        found.setdefault(row["strategy_key"], []).append(row)
    return found


def counts(rows: list[Any]) -> list[int]:
    return [int(row["reason"].split()[-1]) for row in rows]


def check_figures(summary: dict[str, Any]) -> None:
    """Check that the strategies and the operator together are the account."""
    found = summary["strategies"]
    assert found.keys() >= SYMBOLS.keys()
    for name in ("realised", "unrealised"):
        parts = sum(Decimal(each["pnl"][name]) for each in found.values())
        assert parts == Decimal(summary["pnl"][name])
    assert sum(each["orders"] for each in found.values()) == summary["intents"]
    assert sum(each["fills"] for each in found.values()) == summary["fills"]
    refused = summary["refusals"], summary["precheck_refusals"]
    given = sum(sum(each.values()) for each in refused)
    assert sum(each["refused"] for each in found.values()) == given
    assert Decimal(found["right"]["exposure"]) <= 300_000  # its capital, and what it gained
    assert all(found[name]["fills"] for name in SYMBOLS)


def test_two_instances_of_a_class_trade_apart_and_continue_after_a_restart(tmp_path: Path) -> None:
    home, file = tmp_path.resolve() / "home", tmp_path / "qts.toml"
    file.write_text(TABLES)
    with running(home, "--config", str(file)) as run:
        run.until("Ready")
        assert until(lambda: all(len(each) >= 3 for each in orders(run).values()), seconds=60)
        run.ends_well(SIGTERM)
        first = run.summary
    check_figures(first)
    with running(home, "--config", str(file)) as run:
        run.until("Ready")
        before = orders(run)
        more = {name: len(rows) + 2 for name, rows in before.items()}
        assert until(
            lambda: all(len(rows) >= more.get(name, 0) for name, rows in orders(run).items()),
            seconds=60,
        )
        after = orders(run)
        run.ends_well(SIGTERM)
        check_figures(run.summary)
    for name, label in (("left", "a+b"), ("right", "c")):
        rows = after[name]
        assert {row["symbol"] for row in rows} <= set(SYMBOLS[name])
        assert {row["reason"].rpartition(" ")[0] for row in rows} == {f"{name} {label}"}
        # Its own count goes on where the first run ended.
        assert len(set(counts(rows))) == len(rows)
        assert min(counts(rows[len(before[name]) :])) > max(counts(before[name]))
