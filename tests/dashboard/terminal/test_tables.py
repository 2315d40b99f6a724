"""Tables of the terminal as rows of text."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from qts.dashboard import RunsPage, TerminalSnapshot, frame
from qts.dashboard.live_status import SafetyStatus
from qts.dashboard.runs import RunRow, sum_runs
from qts.dashboard.terminal.tables import (
    LANES,
    RUNS,
    TABLES,
    banner,
    is_normal,
    lanes,
    rows_of,
    runs,
)
from qts.notify import RecentAlert
from qts.orders import OrderRow
from tests.dashboard.statuses import live, snapshot


def an_order(state: str | None = "UNKNOWN") -> OrderRow:
    return OrderRow(
        intent_id=UUID(int=1),
        created_at=datetime(2026, 11, 16, 1, 2, 3, tzinfo=UTC),
        strategy_key="rsi_scalper",
        intent_type="ENTRY",
        broker="paper",
        account="0123456789abcdef",
        symbol="005930",
        side="BUY",
        order_type="LIMIT",
        quantity=Decimal("10.000"),
        price=Decimal(70_000),
        status="CREATED",
        reason_code="",
        attempt_id=None,
        attempt_no=None,
        attempt_state=state,
        error=None,
        needs_person=False,
        broker_order_id=None,
        order_state=None,
        filled=Decimal("0E-18"),
        good_until=None,
    )


def a_run(account: str, **more: Any) -> RunRow:
    fields: dict[str, Any] = {
        "account": account, "state": "active", "is_current": True, "age_s": 0.4, "epoch": 1,
        "host": "a", "pid": 7, "home": "/home", "standbys": [], "name": "scalper",
        "label": "PAPER", "currency": "KRW", "equity": Decimal(1000), "day_profit": Decimal(-5),
        "open_orders": 2, "unknown": 1, "alerts": 3, "trading": True, "safety": "NORMAL",
    } | more  # fmt: skip
    return RunRow(**fields)


def test_a_run_that_is_old_stands_in_brackets_and_is_in_no_sum() -> None:
    rows = [
        a_run("paper:11112222333"),
        a_run("upbit:1", state="silent", is_current=False, age_s=61.0, standbys=["b, process 9"]),
        a_run("kis:1", label=None, equity=None, day_profit=None, age_s=None, trading=None, name=""),
    ]
    page = RunsPage(runs=rows, totals=sum_runs(rows), own=["paper:11112222333"])
    assert [" | ".join(row) for row in runs(page)] == [
        "scalper | paper:11112222 | PAPER | active | 0 s | 1,000 | -5 | 2 | 1 | 3 | allowed",
        "scalper | upbit:1 | PAPER | silent +1 | 61 s | (1,000) | (-5) | 2 | 1 | 3 | allowed",
        "- | kis:1 | unknown | active | - | - | - | 2 | 1 | 3 | never set",
        "sum of 1/2 | KRW | PAPER | 1 not counted |  | 1,000 | -5 |  |  |  | ",
    ]
    assert all(len(row) == len(RUNS) for row in runs(page))
    assert "\nRuns\n" in frame(replace(snapshot(live()), runs=page))
    assert "\nRuns\n" not in frame(replace(snapshot(live()), runs=replace(page, runs=rows[:1])))


def test_the_banner_shows_state_and_account() -> None:
    first, second, third = banner(snapshot(live()))
    assert first == "NORMAL  PAPER on paper:9f86d081"
    assert third == "QTS trades with 1 strategy."
    assert second == "equity 100,005,000  today +1,234  open +5,000  orders 7  ticks 123,456"


def test_the_banner_shows_trouble() -> None:
    stopped = SafetyStatus(
        state="LOCKDOWN", code="FS070", message="positions differ", trading=False, suspended="x",
        may_trade=False,
    )  # fmt: skip
    shown = snapshot(live(safety=stopped))
    first, _, third = banner(shown)
    assert first == "LOCKDOWN  STOPPED  PAPER on paper:9f86d081  FS070 positions differ"
    assert third.startswith("QTS sends no order, not even a stop's: the kill switch is on")
    assert "suspended (x)" in third
    assert not is_normal(shown)
    assert is_normal(snapshot(live()))
    assert banner(snapshot(live(simulated=True)))[0] == "NORMAL  SIMULATED on paper:9f86d081"
    assert banner(TerminalSnapshot(trouble="no run")) == ("QTS  no run", "", "")


def test_the_banner_shows_how_far_the_clocks_differ() -> None:
    safety = SafetyStatus(
        state="WARNING", code="FS113", message="", trading=True, suspended="", may_trade=True,
        clock_skew_s=-3.72,
    )  # fmt: skip
    first, *_ = banner(snapshot(live(safety=safety)))
    assert first == "WARNING  PAPER on paper:9f86d081  clock -3.7 s  FS113"


def test_every_lane_has_a_row() -> None:
    rows = list(lanes(live()))
    assert [row[0] for row in rows] == ["P0", "P1", "P2", "P3"]
    assert rows[0] == ("P0", "3", "3%", "150", "0.40", "2.50", "6.10", "3", "NORMAL")
    assert all(len(row) == len(LANES) for row in rows)


def test_rows_are_as_wide_as_their_headings() -> None:
    shown = snapshot(live(), [an_order()])
    for name, headings in TABLES.items():
        rows = rows_of(name, shown)
        assert rows, name
        assert {len(row) for row in rows} == {len(headings)}, name


def test_an_order_shows_its_attempt() -> None:
    (row,) = rows_of("Orders", TerminalSnapshot(None, [an_order()]))
    assert row[1:] == ("005930", "BUY", "10", "UNKNOWN", "0", "rsi_scalper")
    (row,) = rows_of("Orders", TerminalSnapshot(None, [an_order(None)]))
    assert row[4] == "CREATED"


def test_without_a_feed_the_table_says_none() -> None:
    assert rows_of("Feed", TerminalSnapshot(live(feed=None))) == [("feed", "none")]


def test_a_frame_holds_all_tables() -> None:
    text = frame(snapshot(live(), [an_order()]))
    assert all(f"\n{name}\n" in text for name in TABLES)
    assert frame(TerminalSnapshot(trouble="no run")) == "QTS  no run"


@given(st.text(max_size=300), st.text(max_size=50))
def test_lines_of_the_banner_fit_eighty_columns(message: str, code: str) -> None:
    safety = SafetyStatus(
        state="FAIL", code=code, message=message, trading=True, suspended=message, may_trade=True
    )
    notices = [RecentAlert(0.0, "critical", message, code)]
    shown = snapshot(live(safety=safety, notices=notices))
    assert all(len(line) <= 80 for line in banner(shown)[:2])  # the third is wrapped
    assert len(rows_of("Alerts", shown)) == 1
