"""Daily report of an account: what its ledger, its fail-safe and its runs say about one day.

A day is a trading day in Seoul, from midnight to midnight. Everything is read from the database, so
that a report can be repeated; a run generates one when the day is over and keeps it in the home.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import msgspec

from qts import telemetry
from qts.backtest import EquityPoint, Trade
from qts.dashboard.results import closed_trades
from qts.dashboard.run_records import RunCounts, RunSample, counted, load_samples
from qts.database import Database, Row
from qts.domain import (
    MANUAL,
    AccountKey,
    EventRefusedError,
    OperationError,
    RefusedError,
    Side,
)
from qts.events import EventEngine
from qts.events import payloads as p
from qts.orders import OrderLatency, add_up, load_owned_fills, order_latency, rounded_parts
from qts.pipeline import SEOUL

log = telemetry.logger("dashboard")

_ZERO = Decimal(0)
_WON = Decimal("0.01")

_ORDERS = (
    "SELECT status, count(*) FROM {} WHERE broker = $1 AND account = $2"
    " AND created_at >= $3 AND created_at < $4 GROUP BY status ORDER BY status"
)
_STRATEGY_ORDERS = (
    "SELECT strategy_key, count(*) FROM order_intent WHERE broker = $1 AND account = $2"
    " AND created_at >= $3 AND created_at < $4 GROUP BY strategy_key"
)
_INCIDENTS = (
    "SELECT at, code, message, state_before, state_after, actor FROM safety_log"
    " WHERE broker = $1 AND account = $2 AND at >= $3 AND at < $4 ORDER BY id LIMIT 1000"
)
_DAYS = (
    "SELECT DISTINCT (taken_at AT TIME ZONE 'Asia/Seoul')::date AS day FROM run_sample"
    " WHERE broker = $1 AND account = $2 AND taken_at >= $3 ORDER BY day"
)
SETTLE_S = 120.0  # after the close, before the report: late fills arrive
CHECK_INTERVAL_S = 30.0
REPEAT_S = 600.0
LATEST_DAYS = 7  # that are made up for after a stop


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """Entry of the fail-safe's log."""

    at: datetime
    code: str
    message: str
    state_before: str
    state_after: str
    actor: str


class DailyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of one day; None where no run recorded a figure."""

    day: date
    account: str
    generated_at: datetime
    runs: int
    realised: Decimal  # after fees
    fees: Decimal
    unrealised: Decimal | None
    equity_start: Decimal | None
    equity_end: Decimal | None
    fills: int
    trades: list[Trade]
    strategies: list[StrategyDay]
    symbols: list[GroupFigures]
    intents: dict[str, int]
    attempts: dict[str, int]
    refusals: dict[str, int]  # by the gate
    precheck_refusals: dict[str, int]
    incidents: list[Incident]
    tick_to_order_ms: OrderLatency | None
    p0: dict[str, float]
    feed: dict[str, float]
    equity: list[EquityPoint]


def day_bounds(day: date) -> tuple[datetime, datetime]:
    """Return the start and the end of a trading day."""
    began = datetime.combine(day, time(), SEOUL).astimezone(UTC)
    return began, began + timedelta(days=1)


def parse_day(text: str, now: datetime) -> date:
    """Return the day that a command names: today, yesterday or 2026-11-16."""
    today = now.astimezone(SEOUL).date()
    named = {"today": today, "yesterday": today - timedelta(days=1)}
    try:
        day = named.get(text) or date.fromisoformat(text)
    except ValueError:
        raise RefusedError(
            f"day {text[:40]!r} is not a day; expected today, yesterday or a date such as {today}"
        ) from None
    if day > today:
        raise RefusedError(f"day {day} is in the future; today is {today} in Seoul")
    return day


async def load_report(
    database: Database, account: AccountKey, day: date, now: datetime
) -> DailyReport:
    """Read the report of a day from the database."""
    began, ended = day_bounds(day)
    period = (*account, began, ended)
    fills = [
        each
        for each in await load_owned_fills(database, account, began, ended)
        if each[0]["counted"]
    ]
    trades = closed_trades([row for row, _ in fills], began)
    owned = [each for each in fills if each[0]["traded_at"] >= began]
    today = [row for row, _ in owned]
    samples = await load_samples(database, account, began, ended)
    counts = counted(samples, began)
    own = [each for each in samples if each.taken_at >= began]
    incidents = await database.fetch(_INCIDENTS, *period)
    return DailyReport(
        day=day,
        account=str(account),
        generated_at=now,
        runs=len({each.started_at for each in own}),
        realised=_won(sum((row["realised_pnl"] - row["fee"] for row in today), _ZERO)),
        fees=_won(sum((row["fee"] for row in today), _ZERO)),
        unrealised=_won(own[-1].unrealised) if own else None,
        equity_start=_won(own[0].equity) if own else None,
        equity_end=_won(own[-1].equity) if own else None,
        fills=len(today),
        trades=trades,
        strategies=strategy_days(
            group_fills(owned, Counter(trade.strategy or MANUAL for trade in trades)),
            {row[0]: row[1] for row in await database.fetch(_STRATEGY_ORDERS, *period)},
            counts.strategy_refusals,
            own[-1].counts.held if own else None,
        ),
        symbols=group_fills(
            [(row, row["symbol"]) for row in today], Counter(trade.symbol for trade in trades)
        ),
        intents=await _counts(database, "order_intent", period),
        attempts=await _counts(database, "order_attempt", period),
        refusals=counts.refusals,
        precheck_refusals=counts.precheck_refusals,
        incidents=[Incident(**dict(row.items())) for row in incidents],
        tick_to_order_ms=await order_latency(database, [account], began, ended),
        p0=_p0(counts),
        feed=_feed(counts, own),
        equity=[_point(each) for each in own],
    )


class ReportSchedule:
    """When a run has to generate a report: after the market's close, and when the day is over.

    `closes_at` returns when trading of a day ends; None on a day without trading.
    """

    def __init__(
        self,
        database: Database,
        account: AccountKey,
        folder: Path,
        closes_at: Callable[[date], datetime | None],
        engine: EventEngine,
    ) -> None:
        self._database = database
        self._account = account
        self._folder = folder
        self._closes_at = closes_at
        self._engine = engine
        self._requested_ns: dict[date, int] = {}

    async def run(self) -> None:
        """Publish REPORT_GENERATE for each day that is due, until cancelled."""
        while True:
            try:
                if (day := await self.due(self._engine.clock.now())) is not None:
                    self._request(day)
            except (OperationError, EventRefusedError) as error:
                if due := telemetry.log_every(600.0, "daily report"):
                    log.warning("daily report not requested; retrying", error=str(error), **due)
            await self._engine.clock.sleep(CHECK_INTERVAL_S)

    def _request(self, day: date) -> None:
        """Publish the event, and again when there is no report long after it."""
        now_ns, last_ns = self._engine.clock.monotonic_ns(), self._requested_ns.get(day)
        if last_ns is None or now_ns - last_ns >= REPEAT_S * 1e9:
            payload = p.ReportGenerate(
                report="daily",
                data={
                    "day": str(day),
                    "account": list(self._account),
                    "folder": str(self._folder),
                },
            )
            self._engine.try_publish(self._engine.new_event("REPORT_GENERATE", payload, "report"))
            self._requested_ns = {day: now_ns}

    async def due(self, now: datetime) -> date | None:
        """Return the oldest day of a run whose report is missing or older than its end."""
        since = now - timedelta(days=LATEST_DAYS)
        for row in await self._database.fetch(_DAYS, *self._account, since):
            day: date = row["day"]
            closes_at, (_, ended) = self._closes_at(day), day_bounds(day)
            if closes_at is None or now < closes_at + timedelta(seconds=SETTLE_S):
                continue
            made_at = self._generated_at(day)
            if made_at is None or made_at < ended <= now:
                return day
        return None

    def _generated_at(self, day: date) -> datetime | None:
        """Return when the report of this account was made; None: it was not."""
        try:
            text = (self._folder / f"{day}.json").read_bytes()
            head = msgspec.json.decode(text, type=_ReportHead)
        except (OSError, msgspec.DecodeError):
            return None
        return head.generated_at if head.account == str(self._account) else None


class _ReportHead(msgspec.Struct):
    account: str
    generated_at: datetime


async def _counts(
    database: Database, table: Literal["order_intent", "order_attempt"], period: tuple[Any, ...]
) -> dict[str, int]:
    return {row[0]: row[1] for row in await database.fetch(_ORDERS.format(table), *period)}


def _p0(counts: RunCounts) -> dict[str, float]:
    """Return the latency of P0: of the worst minute."""
    if not counts.p0_events:
        return {}
    return {
        "events": counts.p0_events,
        "p50_ms": round(counts.p0_p50_ms, 3),
        "p99_ms": round(counts.p0_p99_ms, 3),
        "max_ms": round(counts.p0_max_ms, 3),
    }


def _feed(counts: RunCounts, samples: Sequence[RunSample]) -> dict[str, float]:
    if not samples:
        return {}
    while_open = [each.counts for each in samples if each.counts.market_open]
    streaming = sum(each.streaming for each in while_open)
    return {
        "ticks": counts.ticks,
        "streaming_ratio": round(streaming / len(while_open), 4) if while_open else 0.0,
        "worst_scan_lag_s": round(counts.scan_lag_s, 2),
        "polls_failed": counts.polls_failed,
        "quotes_lost": counts.quotes_lost,
    }


def _point(sample: RunSample) -> EquityPoint:
    invested = float(sample.equity - sample.cash)
    return EquityPoint(sample.taken_at.timestamp(), float(sample.equity), invested)


def _won(value: Decimal | int) -> Decimal:
    return Decimal(value).quantize(_WON)


# Figures by strategy and by symbol; those of all names are the account's.


class GroupFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one strategy or one symbol; `realised` is after fees."""

    name: str
    fills: int
    trades: int
    bought: Decimal
    sold: Decimal
    fees: Decimal
    realised: Decimal


class StrategyDay(GroupFigures, frozen=True, kw_only=True):
    """Figures of one strategy; what it holds is of the last sample, None where there is none."""

    orders: int = 0
    refusals: dict[str, int] = {}
    unrealised: Decimal | None = None
    exposure: Decimal | None = None


def group_fills(fills: Sequence[tuple[Row, str]], trades: Mapping[str, int]) -> list[GroupFigures]:
    """Return the figures of each name; fees and profit add up to those of the account."""
    names, figures = sorted({name for _, name in fills}), add_up(fills)
    fees = rounded_parts({name: figures[name].fees for name in names})
    realised = rounded_parts({name: figures[name].net for name in names})
    found = []
    for name in names:
        value = dict.fromkeys(Side, _ZERO)
        for row, owner in fills:
            if owner == name:
                value[Side(row["side"])] += row["quantity"] * row["price"]
        found.append(
            GroupFigures(
                name=name,
                fills=figures[name].fills,
                trades=trades.get(name, 0),
                bought=value[Side.BUY].quantize(_WON),
                sold=value[Side.SELL].quantize(_WON),
                fees=fees[name],
                realised=realised[name],
            )
        )
    return found


def strategy_days(
    groups: Sequence[GroupFigures],
    orders: Mapping[str, int],
    refusals: Mapping[str, int],
    held: Mapping[str, tuple[Decimal, Decimal]] | None,
) -> list[StrategyDay]:
    """Return the figures of every strategy that traded, ordered, was refused or holds something."""
    traded = {each.name: each for each in groups}
    refused: dict[str, dict[str, int]] = {}
    for text, count in refusals.items():
        name, _, code = text.rpartition(" ")
        refused.setdefault(name, {})[code] = count
    names = sorted({*traded, *orders, *refused, *(held or {})})
    still = {name: (held or {}).get(name, (_ZERO, _ZERO)) for name in names}
    unrealised = rounded_parts({name: each[0] for name, each in still.items()})
    exposure = rounded_parts({name: each[1] for name, each in still.items()})
    found = []
    for name in names:
        fields = msgspec.structs.asdict(traded.get(name) or _no_fills(name))
        found.append(
            StrategyDay(
                **fields,
                orders=orders.get(name, 0),
                refusals=refused.get(name, {}),
                unrealised=None if held is None else unrealised[name],
                exposure=None if held is None else exposure[name],
            )
        )
    return found


def _no_fills(name: str) -> GroupFigures:
    won = dict.fromkeys(("bought", "sold", "fees", "realised"), _ZERO)
    return GroupFigures(name=name, fills=0, trades=0, **won)
