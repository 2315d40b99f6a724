"""Figures as rows of text: what the terminal shows, without the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal

from qts.dashboard.live_status import LiveStatus
from qts.dashboard.terminal.source import TerminalSnapshot
from qts.orders import OrderRow

Row = tuple[str, ...]

LANES = ("lane", "waits", "full", "per s", "p50 ms", "p99 ms", "p99.9", "lost", "state")
ORDERS = ("time", "symbol", "side", "quantity", "state", "filled", "strategy")
POSITIONS = ("symbol", "quantity", "average", "price", "open won", "strategy")
ALERTS = ("time", "severity", "what")
FEED = ("figure", "value")
TABLES = {"Orders": ORDERS, "Positions": POSITIONS, "Feed": FEED, "Alerts": ALERTS}
WIDTH = 80


def rows_of(name: str, seen: TerminalSnapshot) -> list[Row]:
    """Of one of TABLES."""
    if name == "Orders":
        return [_order(order) for order in seen.orders]
    if seen.live is None:
        return []
    rows = {"Positions": positions, "Feed": feed, "Alerts": alerts}[name](seen.live)
    return list(rows)


def banner(seen: TerminalSnapshot) -> tuple[str, str]:
    """Two lines: how it stands, and what it earned."""
    live = seen.live
    if live is None:
        return f"QTS  {seen.trouble}"[:WIDTH], ""
    safety, money = live.safety, live.money
    switch = "" if safety.trading else "  STOPPED"
    why = " ".join(part for part in (safety.code or "", safety.message) if part)
    suspended = f"  {safety.suspended}" if safety.suspended else ""
    first = f"{safety.state}{switch}  {live.mode.upper()} on {live.broker}  {why}{suspended}"
    second = (
        f"equity {money.equity:,.0f}  today {money.realised_today:+,.0f}"
        f"  open {money.unrealised:+,.0f}  orders {money.orders_today:,}  ticks {live.ticks:,}"
    )
    return first.strip()[:WIDTH], second[:WIDTH]


def is_calm(seen: TerminalSnapshot) -> bool:
    """Nothing stands in trading's way."""
    live = seen.live
    return live is not None and live.safety.state == "NORMAL" and live.safety.trading


def lanes(live: LiveStatus) -> Iterator[Row]:
    for name, lane in live.events.lanes.items():
        lost = lane.dropped + lane.sampled + lane.dead
        spans = (f"{span:.2f}" for span in (lane.total.p50, lane.total.p99, lane.total.p99_9))
        state = "PAUSED" if lane.paused else lane.pressure
        yield (
            name,
            f"{lane.depth:,}",
            f"{lane.depth / lane.capacity:.0%}",
            f"{live.rates.get(name, 0.0):,.0f}",
            *spans,
            f"{lost:,}",
            state,
        )


def positions(live: LiveStatus) -> Iterator[Row]:
    for held in sorted(live.positions, key=lambda each: each.symbol):
        yield (
            held.symbol,
            _number(held.quantity),
            f"{held.average_price:,.2f}",
            f"{held.price:,.2f}",
            f"{held.unrealised:+,.0f}",
            held.strategy,
        )


def feed(live: LiveStatus) -> Iterator[Row]:
    state = live.feed
    if state is None:
        yield ("feed", "none")
        return
    poller, budget = state.poller, state.budget
    yield ("market", "open" if poller.open else "closed")
    yield (
        "scan",
        f"{poller.position} of {poller.batches}, the last took {poller.last_scan_s:.2f} s",
    )
    yield ("planned", f"every {state.interval_s:.2f} s, late by {state.lag_s:.2f} s")
    yield ("requests", f"{budget.used_second} of {budget.rate_per_s} in this second")
    yield ("today", f"{budget.used_day:,} requests, {budget.left_day:,} left")
    yield ("refused", f"{poller.refused:,}, failed {poller.failed:,}")
    yield ("surges", f"{state.surges:,}, bursts {', '.join(poller.bursts) or 'none'}")
    yield ("records", f"{state.records:,}, lost {state.lost:,}")
    yield ("symbols", f"{state.symbols_known:,}, {'streaming' if state.streaming else 'polled'}")


def alerts(live: LiveStatus) -> Iterator[Row]:
    for notice in live.notices:
        what = f"{notice.code} {notice.text}".strip()
        yield (_time(datetime.fromtimestamp(notice.at, UTC)), notice.severity, what)


def frame(seen: TerminalSnapshot) -> str:
    """Everything once, as plain text."""
    parts = ["\n".join(line for line in banner(seen) if line)]
    if seen.live is not None:
        parts.append(_table(LANES, list(lanes(seen.live))))
    for name, headings in TABLES.items():
        if rows := rows_of(name, seen):
            parts.append(f"{name}\n{_table(headings, rows[:10])}")
    return "\n\n".join(parts)


def _table(headings: Row, rows: list[Row]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(headings, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (headings, *rows)
    )


def _order(order: OrderRow) -> Row:
    return (
        _time(order.created_at),
        order.symbol,
        order.side,
        _number(order.quantity),
        order.attempt_state or order.status,
        _number(order.filled),
        order.strategy_key,
    )


def _number(value: Decimal) -> str:
    return f"{value.normalize():,f}"


def _time(at: datetime) -> str:
    return f"{at.astimezone():%H:%M:%S}"
