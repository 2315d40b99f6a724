"""A run trades, its positions equal the venue's, and no ending loses or doubles an order."""

from __future__ import annotations

import functools
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.runs import COMPILED, SLOW_MARKET, Run, holdings_and_positions, running
from tests.embedded.clients import until

pytestmark = pytest.mark.timeout(300)  # a busy machine starts servers slowly

FILLS = "SELECT count(*) FROM fill"
# More than one order for an intent, by the venue's own record of the identifiers it was given.
DOUBLED = """
SELECT i.id FROM order_intent i JOIN order_attempt a ON a.order_intent_id = i.id
  JOIN paper_order p ON p.identifier = a.identifier GROUP BY i.id HAVING count(*) > 1
"""
# Filled by the venue beyond what was intended.
OVERFILLED = """
SELECT p.order_id FROM paper_order p JOIN order_attempt a ON a.identifier = p.identifier
  JOIN order_intent i ON i.id = a.order_intent_id
  JOIN (SELECT order_id, sum(quantity) AS filled FROM paper_fill GROUP BY order_id) f
    ON f.order_id = p.order_id
 WHERE f.filled > i.quantity
"""
UNKNOWN_TO_US = """
SELECT p.order_id FROM paper_order p
 WHERE NOT EXISTS (SELECT FROM order_attempt a WHERE a.identifier = p.identifier)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path.resolve() / "home"


def fills(run: Run) -> int:
    return int(run.query(FILLS)[0][0])


def has_filled(run: Run, expected: int) -> bool:
    return fills(run) >= expected


def test_run_trades_and_its_books_are_the_venues(home: Path) -> None:
    with running(home, **COMPILED) as run:
        run.until("Ready")
        assert until(lambda: fills(run) > 3, seconds=120)
        run.ends_well(signal.SIGTERM)
        summary = run.summary
    assert summary["verdict"] == "OK"
    assert summary["mode"] == "paper"
    assert summary["books_agree"] is True
    assert summary["ticks"] > 100
    assert summary["signals"] == summary["intents"] > 0
    assert sum(summary["attempts"].values()) >= summary["intents"]
    assert summary["fills"] > 0
    assert 0 < summary["positions"] <= 15  # risk.limits.max_open_symbols, under a storm of signals
    # FILL_RECEIVED, POSITION_UPDATE, FILL_*, and ORDER_SENT for most.
    assert summary["lanes"]["P0"]["handled"] >= 2 * summary["fills"]
    assert summary["lanes"]["P1"]["handled"] == summary["lanes"]["P1"]["published"]
    assert summary["outbox"]["everbit.trade.command"]["pending"] == 0
    assert summary["outbox"]["everbit.trade.command"]["dead"] == 0
    assert summary["tick_to_order"]["orders"] > 0
    assert summary["cache"]["price"] is not None
    assert {"realised", "unrealised", "equity"} == summary["pnl"].keys()
    assert "orders, fills and positions match the broker" in run.output


def test_kill_switch_stops_orders_within_a_second_and_outlives_a_restart(home: Path) -> None:
    kill = [sys.executable, "-m", "qts", "kill"]
    environ = {"QTS_HOME": str(home), "PATH": ""}
    with running(home, QTS_RISK__LIMITS__MAX_OPEN_SYMBOLS="200") as run:
        run.until("Ready")
        assert until(lambda: fills(run) > 3, seconds=120)
        subprocess.run([*kill, "on", "--reason", "test"], env=environ, check=True)
        (when,) = run.query("SELECT changed_at FROM kill_switch WHERE scope = 'account'")
        assert until(lambda: _seconds_since(run, when[0]) > 3)
        late = run.query(
            "SELECT count(*) FROM order_attempt WHERE sent_at > $1::timestamptz + interval '1 s'",
            when[0],
        )
        assert late[0][0] == 0
        run.ends_well(signal.SIGTERM)
    with running(home) as again:
        before = len(again.errors)  # of the first run
        again.until("Ready")
        assert until(lambda: "G_KILL_SWITCH" in again.errors[before:], seconds=120)
        again.ends_well(signal.SIGTERM)
        assert again.summary["attempts"] == {}
        by_gate, by_precheck = (again.summary[n] for n in ("refusals", "precheck_refusals"))
        assert "G_KILL_SWITCH" in {**by_gate, **by_precheck}


@pytest.mark.soak
def test_killed_at_random_it_comes_back_with_the_venues_books(home: Path) -> None:
    chance = random.Random(20261115)  # noqa: S311 - reproducible on purpose
    wide = {
        "QTS_RISK__LIMITS__MAX_OPEN_SYMBOLS": "200",
        "QTS_RISK__LIMITS__ORDERS_PER_MINUTE": "9999",
    }
    for _ in range(3):
        with running(home, **wide) as run:
            run.until("Ready")
            expected = fills(run) + chance.randint(1, 6)
            assert until(functools.partial(has_filled, run, expected), seconds=120)
            run.end(signal.SIGKILL)
    with running(home, **wide) as last:
        last.until("Ready")
        last.until_resolved()
        assert last.query(DOUBLED) == []
        assert last.query(OVERFILLED) == []
        assert last.query(UNKNOWN_TO_US) == []
        venue, ours = holdings_and_positions(last)
        assert venue
        last.ends_well(signal.SIGTERM)
        assert last.summary["books_agree"] is True
        assert last.summary["positions"] > 0
        assert ours


def test_stop_under_load_is_clean_and_quick(home: Path) -> None:
    with running(home, QTS_RISK__LIMITS__MAX_OPEN_SYMBOLS="200") as run:
        run.until("Ready")
        assert until(lambda: fills(run) > 2, seconds=120)
        run.ends_well(signal.SIGTERM)
        assert run.summary["books_agree"] is True
        assert run.summary["attempts"].get("UNKNOWN", 0) == 0


def test_faulty_strategy_is_disabled_alone_and_fails_the_run(home: Path) -> None:
    strategies = "tests.pipeline.faulty:Text,tests.acceptance.turner:Turner"
    with running(home, QTS_PIPELINE__STRATEGIES=strategies) as run:
        run.until("Ready")
        assert until(lambda: fills(run) > 2, seconds=120)
        run.until_resolved()
        assert run.end(signal.SIGTERM) == 1
        summary, errors = run.summary, run.errors
    assert summary["verdict"] == "FAILED"
    assert summary["safety"] not in ("FAIL", "LOCKDOWN")  # a slow machine warns
    assert summary["books_agree"] is True
    assert summary["strategies"]["turner"]["state"] == "running"
    disabled = summary["strategies"]["text"]
    assert (disabled["state"], disabled["errors"], disabled["signals"]) == ("disabled", 20, 0)
    assert "returned 'BUY'" in disabled["reason"]
    assert f"strategy text was disabled: {disabled['reason']}" in run.output
    assert errors.count('"event": "strategy returned a bad signal"') == 1
    assert errors.count('"event": "strategy disabled"') == 1


def test_strategy_that_cannot_be_loaded_is_refused_in_one_line(home: Path) -> None:
    with running(home, "--for", "1s", QTS_PIPELINE__STRATEGIES="nowhere:Nothing") as run:
        assert run.end() == 2
        (line,) = [line for line in run.errors.splitlines() if line.startswith("qts:")]
    assert "nowhere:Nothing" in line


def test_a_strategy_that_loads_for_long_costs_no_lease(home: Path) -> None:
    strategy = "tests.acceptance.slow_loader:SlowLoader"
    with running(home, "--for", "1s", QTS_PIPELINE__STRATEGIES=strategy, **SLOW_MARKET) as run:
        run.until("Ready after")
        (account,) = run.query("SELECT epoch FROM account")
        run.ends_well()
    assert account["epoch"] == 1
    assert "account lease lost" not in run.errors


def _seconds_since(run: Run, when: object) -> float:
    (row,) = run.query("SELECT extract(epoch FROM clock_timestamp() - $1::timestamptz)", when)
    return float(row[0])
