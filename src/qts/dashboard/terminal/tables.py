"""Figures of the terminal: their source in cache and database, and their rows of text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Protocol

import msgspec

from qts.cache import CacheStore
from qts.dashboard.live_status import LiveReading, LiveStatus, VenueStatus, Verdict, read_text
from qts.dashboard.runs import RunsPage, StoredRunStatus, accounts_of_run, load_runs, status_prefix
from qts.dashboard.verdict import Observed, RunState, StoredState, judge, read_stored
from qts.database import Database
from qts.domain import AccountKey, OperationError, SystemClock
from qts.feed import FeedStatus
from qts.orders import OrderRow, list_orders
from qts.risk import KillSwitch

MAX_ORDERS = 50


class TerminalSnapshot(msgspec.Struct, frozen=True):
    """Status at one moment; `trouble` says why figures are missing, if they are."""

    live: LiveStatus | None = None
    orders: list[OrderRow] = []
    trouble: str = ""
    verdict: Verdict = Verdict(state="unknown", en="", ko="")
    run: RunState = "unknown"
    stored: StoredRunStatus | None = None  # in the database, of a run whose live status is not here
    runs: RunsPage | None = None  # all runs on the database; None: not read


class StatusSource(Protocol):
    async def read(self) -> TerminalSnapshot: ...

    async def kill(self, actor: str) -> None:
        """Stop trading of every account of the run."""
        ...

    async def choose(self, account: str) -> None:
        """Show the run of another account, as BROKER:DIGEST, from the next reading on."""
        ...


class LiveStatusSource:
    """Status of the run of these accounts, or of the run that was chosen."""

    def __init__(
        self, store: CacheStore, database: Database, prefix: str, *accounts: AccountKey
    ) -> None:
        self._accounts = accounts
        self._own = accounts
        self._store = store
        self._database = database
        self._own_prefix = self._prefix = prefix
        self._clock = SystemClock()
        self._live = LiveReading(self._clock)

    async def choose(self, account: str) -> None:
        keys = await accounts_of_run(self._database, account)
        self._accounts = tuple(keys)
        self._prefix = status_prefix(self._own_prefix, self._own[0], keys[0])
        self._live = LiveReading(self._clock)

    async def read(self) -> TerminalSnapshot:
        problems: dict[str, str] = {}
        await self._read_live(problems)
        orders: list[OrderRow] = []
        stored: StoredState | None = None
        runs: RunsPage | None = None
        try:
            orders = await self._read_orders()
            stored = await read_stored(self._database, *self._accounts)
            runs = await load_runs(self._database, self._accounts)
        except OperationError as error:
            problems["database"] = " ".join(str(error).split())
        live, age_s = self._live.status, self._live.age_s
        seen = Observed(live=live, age_s=age_s, stored=stored, problems=problems)
        status = stored.status if stored is not None and live is None else None
        trouble = "; ".join(problems.values())
        if seen.run not in ("reporting", "remote") and (age_s := seen.status_age_s) is not None:
            trouble = f"status is {age_s:.0f} s old"
        return TerminalSnapshot(live, orders, trouble, judge(seen), seen.run, status, runs)

    async def _read_live(self, problems: dict[str, str]) -> None:
        try:
            if (text := await read_text(self._store, self._prefix)) is None:
                self._live = LiveReading(self._clock)
            else:
                self._live.update(text)
        except (OperationError, msgspec.DecodeError, UnicodeError) as error:
            problems["status"] = " ".join(str(error).split())

    async def _read_orders(self) -> list[OrderRow]:
        orders = [
            row
            for key in self._accounts
            for row in await list_orders(self._database, key, limit=MAX_ORDERS)
        ]
        return sorted(orders, key=lambda row: row.created_at, reverse=True)[:MAX_ORDERS]

    async def kill(self, actor: str) -> None:
        for key in self._accounts:
            await KillSwitch(self._database, key).set(False, actor, "stopped in qts top")


Row = tuple[str, ...]

LANES = ("lane", "depth", "used", "per s", "p50 ms", "p99 ms", "p99.9", "lost", "state")
ORDERS = ("time", "symbol", "side", "quantity", "state", "filled", "strategy")
POSITIONS = ("symbol", "quantity", "average", "price", "price age", "open won", "strategy")
ALERTS = ("time", "severity", "alert")
FEED = ("figure", "value")
TABLES = {"Orders": ORDERS, "Positions": POSITIONS, "Feed": FEED, "Alerts": ALERTS}
RUNS = ("run", "account", "mode", "state", "age", "equity", "today", "open", "?", "!", "switch")
WIDTH = 80


def rows_of(name: str, snapshot: TerminalSnapshot) -> list[Row]:
    """Return the rows of one of TABLES."""
    if name == "Orders":
        venues = {each.account: each.venue for each in _venues(snapshot.live)}
        return [_order(order, venues.get(order.account, "")) for order in snapshot.orders]
    if snapshot.live is None:
        return []
    rows = {"Positions": positions, "Feed": feed, "Alerts": alerts}[name](snapshot.live)
    return list(rows)


def banner(snapshot: TerminalSnapshot) -> tuple[str, str, str]:
    """Return three lines: the safety state, the account, and whether QTS trades."""
    live, sentence = snapshot.live, snapshot.verdict.en
    if live is None and snapshot.stored is not None:
        return _stored_banner(snapshot.stored, snapshot.trouble), "", sentence
    if live is None:
        return f"QTS  {snapshot.trouble}".strip()[:WIDTH], "", sentence
    safety, account = live.safety, live.money
    switch = "  STOPPED" if snapshot.verdict.state == "stopped" else ""
    reason = " ".join(part for part in (safety.code or "", safety.message) if part)
    clock = f"  clock {safety.clock_skew_s:+.1f} s" if abs(safety.clock_skew_s or 0) > 0.5 else ""
    standbys = min((len(each.standbys) for each in live.leases), default=0)
    pair = f"  standby {standbys}" if standbys else ""
    where = f"{live.label} on {_accounts(live)}{pair}{clock}"
    old = f"{snapshot.trouble}  " if snapshot.trouble else ""
    first = f"{old}{safety.state}{switch}  {where}  {reason}"
    second = (
        f"equity {account.equity:,.0f}  today {account.realised_today:+,.0f}"
        f"  open {account.unrealised:+,.0f}  orders {account.orders_today:,}  ticks {live.ticks:,}"
    )
    return first.strip()[:WIDTH], second[:WIDTH], sentence


def _stored_banner(stored: StoredRunStatus, trouble: str) -> str:
    """Return the line of a run whose live status is in another cache."""
    status, old = stored.status, f"{trouble}  " if trouble else ""
    money = f"  equity {_won(status.money.equity)}" if status.money and not trouble else ""
    account = AccountKey(*stored.account.split(":", 1)).short
    return f"{old}{status.label} on {account}  {status.name}{money}"[:WIDTH]


def runs(page: RunsPage) -> Iterator[Row]:
    """Yield a row for each run, then the sums of what is known now.

    Figures that are old stand in brackets.
    """
    for each in page.runs:
        shown = _number_of if each.is_current else _bracketed
        yield (
            each.name or "-",
            AccountKey(*each.account.split(":", 1)).short,
            each.label or "unknown",
            f"{each.state} +{len(each.standbys)}" if each.standbys else each.state,
            "-" if each.age_s is None else f"{each.age_s:.0f} s",
            shown(each.equity, "{:,.0f}"),
            shown(each.day_profit, "{:+,.0f}"),
            f"{each.open_orders:,}",
            f"{each.unknown:,}",
            f"{each.alerts:,}",
            "never set" if each.trading is None else "allowed" if each.trading else "STOPPED",
        )
    for total in page.totals:
        missing = f"{len(total.missing)} not counted" if total.missing else ""
        yield (
            f"sum of {total.counted}/{total.accounts}",
            total.currency,
            total.label,
            missing,
            "",
            _number_of(total.equity, "{:,.0f}"),
            _number_of(total.day_profit, "{:+,.0f}"),
            *[""] * 4,
        )


def _number_of(value: Decimal | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _bracketed(value: Decimal | None, form: str) -> str:
    return "-" if value is None else f"({form.format(value)})"


def _won(value: Decimal) -> str:
    return f"{value:,.0f}"


def _venues(live: LiveStatus | None) -> list[VenueStatus]:
    """Return the venues of a run on several; none of a run on one."""
    return live.venues if live is not None and len(live.venues) > 1 else []


def _accounts(live: LiveStatus) -> str:
    """Return the account; of several the venue of each, and its state where it is not NORMAL."""
    if not _venues(live):
        return AccountKey(live.broker, live.account).short
    return ", ".join(
        f"{each.venue} {'' if each.safety.state == 'NORMAL' else each.safety.state}"
        f"{'' if each.safety.trading else ' STOPPED'}".rstrip()
        for each in live.venues
    )


def is_normal(snapshot: TerminalSnapshot) -> bool:
    """Return whether QTS trades, and the state is NORMAL and recent."""
    live = snapshot.live
    if live is None and snapshot.run == "remote":
        return not snapshot.trouble and snapshot.verdict.state == "trading"
    if live is None or snapshot.trouble:
        return False
    return live.safety.state == "NORMAL" and snapshot.verdict.state == "trading"


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
    for position in sorted(live.positions, key=lambda each: each.symbol):
        where = f"{position.venue} " if _venues(live) else ""
        yield (
            f"{where}{position.symbol} {position.name}".rstrip(),
            _number(position.quantity),
            f"{position.average_price:,.2f}",
            f"{position.price:,.2f}",
            "" if position.price_age_s is None else f"{position.price_age_s:.1f} s",
            f"{position.unrealised:+,.0f}",
            " ".join(filter(None, (position.strategy, position.note))),
        )


def feed(live: LiveStatus) -> Iterator[Row]:
    several = _venues(live)
    for each in several:
        yield (each.venue, f"{each.ticks:,} ticks")
        yield from _feed(each.feed)
    if not several and live.feed is None:
        yield ("feed", "none")
    elif not several and live.feed is not None:
        yield from _feed(live.feed)


def _feed(state: FeedStatus) -> Iterator[Row]:
    poller, budget = state.poller, state.budget
    yield ("market", "open" if poller.open else "closed")
    yield (
        "scan",
        f"{poller.position} of {poller.batches}, last took {poller.last_scan_s:.2f} s",
    )
    yield ("planned", f"every {state.interval_s:.2f} s, lag {state.lag_s:.2f} s")
    yield ("requests", f"{budget.used_second} of {budget.rate_per_s} in this second")
    yield ("today", f"{budget.used_day:,} requests, {budget.left_day:,} left")
    yield ("refused", f"{poller.refused:,}, failed {poller.failed:,}")
    yield ("surges", f"{state.surges:,}, bursts {', '.join(poller.bursts) or 'none'}")
    yield ("records", f"{state.records:,}, lost {state.lost:,}, {state.recording}")
    yield ("watched", state.watched)
    yield ("symbols", f"{state.symbols_known:,}, {'streaming' if state.streaming else 'polled'}")


def alerts(live: LiveStatus) -> Iterator[Row]:
    for alert in live.notices:
        text = f"{alert.code} {alert.text}".strip()
        yield (_time(datetime.fromtimestamp(alert.at, UTC)), alert.severity, text)


def frame(snapshot: TerminalSnapshot) -> str:
    """Return the banner and all tables as plain text."""
    parts = ["\n".join(line for line in banner(snapshot) if line)]
    if snapshot.live is not None:
        parts.append(_table(LANES, list(lanes(snapshot.live))))
    for name, headings in TABLES.items():
        if rows := rows_of(name, snapshot):
            parts.append(f"{name}\n{_table(headings, rows[:10])}")
    if snapshot.runs is not None and len(snapshot.runs.runs) > 1:
        parts.append(f"Runs\n{_table(RUNS, list(runs(snapshot.runs)))}")
    return "\n\n".join(parts)


def _table(headings: Row, rows: list[Row]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(headings, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (headings, *rows)
    )


def _order(order: OrderRow, venue: str) -> Row:
    return (
        _time(order.created_at),
        f"{venue} {order.symbol} {order.name}".strip(),
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
