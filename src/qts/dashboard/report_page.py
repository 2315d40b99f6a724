"""Daily report as a table of the terminal, as files of the home, and as a notification."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import NAMESPACE_OID, uuid5

import msgspec

from qts.backtest import HtmlPage
from qts.dashboard.daily_report import DailyReport, GroupFigures, StrategyDay, load_report
from qts.database import Database
from qts.domain import AccountKey
from qts.notify import Message
from qts.pipeline import SEOUL

if TYPE_CHECKING:
    from rich.table import Table

_GROUP_HEADS = ("fills", "trades", "bought", "sold", "fees", "realised")
_STRATEGY_HEADS = ("open", "held", "orders", "refused")
_NO_RUN = "not recorded: no run in this day"


def figures(report: DailyReport) -> Iterator[tuple[str, str]]:
    """Yield the figures as names and formatted values."""
    yield "day", f"{report.day} (Asia/Seoul)"
    yield "account", report.account
    yield "profit realised", f"{_signed(report.realised)}, after {report.fees:,.0f} fees"
    yield "unrealised", _NO_RUN if report.unrealised is None else _signed(report.unrealised)
    yield "equity", _equity(report)
    yield "trades", _trades(report)
    yield "fills", f"{report.fills:,}"
    yield "orders", _listed(report.intents)
    yield "attempts", _listed(report.attempts)
    yield "refused, gate", _listed(report.refusals)
    yield "refused, PreCheck", _listed(report.precheck_refusals)
    yield "incidents", f"{len(report.incidents):,}" if report.incidents else "none"
    latency = report.tick_to_order_ms
    yield (
        "tick to order",
        f"p50 {latency.p50_ms:,.1f} ms, p99 {latency.p99_ms:,.1f} ms, max {latency.max_ms:,.1f} ms"
        if latency
        else "no orders",
    )
    yield "P0, worst minute", _p0(report.p0)
    yield "feed", _feed(report.feed)
    yield "runs", f"{report.runs:,}"


async def generate_report(
    database: Database, account: AccountKey, day: date, folder: Path, now: datetime
) -> DailyReport:
    """Write the report of a day into the folder, as HTML and as JSON, and return it."""
    report = await load_report(database, account, day, now)
    await asyncio.to_thread(_write, report, folder)
    return report


def report_message(report: DailyReport) -> Message:
    """Return the notification about a report; the same day has the same id."""
    return Message(
        event_id=uuid5(NAMESPACE_OID, f"qts report {report.account} {report.day}"),
        type="DAILY_REPORT",
        occurred_at=report.generated_at,
        title=f"Daily report {report.day}: {report.realised:+,.0f} won realised",
        body=summary_line(report),
        data={"day": str(report.day), "account": report.account},
    )


def summary_line(report: DailyReport) -> str:
    """Return the report in one line, for a notification."""
    if not report.fills:
        traded = "no trades"
    else:
        wins = sum(trade.profit > 0 for trade in report.trades)
        traded = f"{len(report.trades):,} trades ({wins:,} won), {report.fills:,} fills"
    refused = sum(report.refusals.values()) + sum(report.precheck_refusals.values())
    parts = [
        traded,
        f"equity {_equity(report)}" if report.equity_end is not None else "",
        f"unrealised {_signed(report.unrealised)}" if report.unrealised else "",
        f"{refused:,} refused" if refused else "",
        f"{len(report.incidents):,} incidents" if report.incidents else "no incidents",
    ]
    return ", ".join(part for part in parts if part)


def render_report_table(report: DailyReport) -> list[Table]:
    """Return the tables of the terminal: figures, strategies, symbols, incidents."""
    from rich.table import Table
    from rich.text import Text

    main = Table(show_header=False, box=None, pad_edge=False)
    main.add_column(style="dim")
    main.add_column()
    for name, value in figures(report):
        style = "red" if report.realised < 0 else "green"
        main.add_row(name, Text(value, style if name == "profit realised" else ""))
    tables = [main]
    for title, groups in _grouped(report):
        if groups:
            heads = _heads(groups[0])
            table = Table(title, *heads, box=None, pad_edge=False, header_style="dim")
            for column in table.columns[1:]:
                column.justify = "right"
            for group in groups:
                table.add_row(*map(Text, _group_cells(group)))
            tables.append(table)
    if report.incidents:
        table = Table("time", "code", "state", "message", box=None, pad_edge=False)
        for each in report.incidents:
            at = f"{each.at.astimezone(SEOUL):%H:%M:%S}"
            state = f"{each.state_before} > {each.state_after}"
            table.add_row(at, each.code, state, Text(each.message))
        tables.append(table)
    return tables


def render_report_html(report: DailyReport) -> str:
    """Return the report as one self-contained HTML page."""
    page = HtmlPage(f"QTS daily report, {report.day}", SEOUL)
    page.figures(figures(report))
    if not report.fills:
        page.text("No trades on this day.")
    if report.equity:
        page.heading("Equity, won")
        page.equity(report.equity)
    if report.trades:
        page.heading("Profit of each trade, won")
        page.profits(report.trades)
    for title, groups in _grouped(report):
        if groups:
            page.heading(f"By {title}, won")
            page.table((title, *_heads(groups[0])), [_group_row(group) for group in groups])
    if report.trades:
        page.heading("Trades")
        page.trades(report.trades)
    for title, codes in (("gate", report.refusals), ("PreCheck", report.precheck_refusals)):
        if codes:
            page.heading(f"Refused by the {title}")
            page.table(("code", "count"), [(code, f"{count:,}") for code, count in codes.items()])
    if report.incidents:
        page.heading("Incidents")
        page.table(
            ("time", "code", "state", "by", "message"),
            [
                (
                    f"{each.at.astimezone(SEOUL):%H:%M:%S}",
                    each.code,
                    f"{each.state_before} > {each.state_after}",
                    each.actor,
                    (each.message, "text"),
                )
                for each in report.incidents
            ],
        )
    return page.render()


def _grouped(report: DailyReport) -> tuple[tuple[str, Sequence[GroupFigures]], ...]:
    return (("strategy", report.strategies), ("symbol", report.symbols))


def _heads(group: GroupFigures) -> tuple[str, ...]:
    own = _STRATEGY_HEADS if isinstance(group, StrategyDay) else ()
    return (*own, *_GROUP_HEADS)


def _group_cells(group: GroupFigures) -> tuple[str, ...]:
    won = (group.bought, group.sold, group.fees, group.realised)
    counts: tuple[str, ...] = (f"{group.fills:,}", f"{group.trades:,}")
    if isinstance(group, StrategyDay):
        still = (group.unrealised, group.exposure)
        held = ("-" if value is None else f"{value:,.0f}" for value in still)
        refused = " ".join(f"{code} {count:,}" for code, count in group.refusals.items())
        counts = (*held, f"{group.orders:,}", refused or "none", *counts)
    return (group.name, *counts, *(f"{value:,.0f}" for value in won))


def _group_row(group: GroupFigures) -> tuple[str | tuple[str, str], ...]:
    *cells, realised = _group_cells(group)
    kind = "gain" if group.realised > 0 else "loss" if group.realised < 0 else ""
    return (*cells, (realised, kind))


def _trades(report: DailyReport) -> str:
    if not report.fills:
        return "no trades"
    wins = [trade for trade in report.trades if trade.profit > 0]
    return f"{len(report.trades):,} round trips, {len(wins):,} with a profit"


def _equity(report: DailyReport) -> str:
    start, end = report.equity_start, report.equity_end
    if start is None or end is None:
        return _NO_RUN
    return f"{start:,.0f} → {end:,.0f} won"


def _p0(p0: Mapping[str, float]) -> str:
    if not p0:
        return "no events"
    spans = ", ".join(f"{name} {p0[f'{name}_ms']:.2f} ms" for name in ("p50", "p99", "max"))
    return f"{spans}; {p0['events']:,.0f} events in the day"


def _feed(feed: Mapping[str, float]) -> str:
    if not feed:
        return _NO_RUN
    return (
        f"{feed['ticks']:,.0f} ticks, stream connected {feed['streaming_ratio']:.0%} of the time, "
        f"worst scan lag {feed['worst_scan_lag_s']:g} s, {feed['polls_failed']:,.0f} failed polls"
    )


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"


def _signed(value: Decimal) -> str:
    return f"{value:+,.0f} won"


def _write(report: DailyReport, folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _replace(folder / f"{report.day}.html", render_report_html(report).encode())
    # Last: its presence says that the report is there.
    text = msgspec.json.format(msgspec.json.encode(report), indent=2)
    _replace(folder / f"{report.day}.json", text)


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_suffix(path.suffix + ".draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    draft.replace(path)
