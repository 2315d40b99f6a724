"""`qts report` and `qts explain`: what a day earned, and its difference to its backtest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qts.cli.console import (
    AccountOption,
    BrokerOption,
    ConfigOption,
    JsonFile,
    JsonFileOption,
    html_file,
    load_config,
    print_tables,
    show_progress,
    with_account,
)
from qts.domain import RefusedError

if TYPE_CHECKING:
    from datetime import date

    from qts.dashboard import DailyReport
    from qts.database import Database
    from qts.domain import AccountKey
    from qts.explain import DayExplanation, DaySources, LiveDay

REPORT_SCHEMA = 21  # adds the samples of runs


def report(
    day: Annotated[
        str, typer.Argument(metavar="DAY", help="today, yesterday, or a date such as 2026-11-16.")
    ] = "today",
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with charts.")
    ] = None,
    as_json: JsonFileOption = None,
    broker: BrokerOption = None,
    account: AccountOption = None,
    config: ConfigOption = None,
) -> None:
    """Profit, trades, refusals, incidents and latencies of a day.

    A day is a trading day in Seoul. A run keeps the reports of its days in the home, in reports/.

    Example: qts report yesterday --html report.html
    """
    from qts.dashboard import load_report, parse_day, render_report_html, render_report_table
    from qts.domain import SystemClock

    now = SystemClock().now()
    chosen, output, page = parse_day(day, now), JsonFile(as_json), html_file(html)

    async def read(database: Database, key: AccountKey) -> DailyReport:
        return await load_report(database, key, chosen, now)

    found = with_account(config, read, broker, account, REPORT_SCHEMA)
    if page is not None:
        page.write_text(render_report_html(found), encoding="utf-8")
    output.write(found)
    print_tables(*render_report_table(found), on_stderr=output.prints)


def explain(
    day: Annotated[
        str, typer.Argument(metavar="DAY", help="today, yesterday, or a date such as 2026-11-16.")
    ],
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with every order.")
    ] = None,
    as_json: JsonFileOption = None,
    broker: BrokerOption = None,
    account: AccountOption = None,
    config: ConfigOption = None,
) -> None:
    """Why a day earned something else than its backtest, in parts that add up.

    Runs the strategies of the day again over its recorded market, with the settings, states and
    account that its decision journal has (pipeline.journal). The parts are signal, gate, manual,
    delay, fill and cost.

    Example: qts explain yesterday --html explained.html
    """
    from qts import telemetry
    from qts.dashboard import parse_day
    from qts.domain import SystemClock
    from qts.explain import explain_day

    chosen = parse_day(day, SystemClock().now())
    output, page = JsonFile(as_json), html_file(html)
    with show_progress(None) as progress:
        sources, live = _read(chosen, config, broker, account)
        telemetry.configure(telemetry.TelemetryConfig(log_level="error"))
        found = explain_day(sources, live, progress)
    if page is not None:
        from qts.explain import render_explanation_html

        page.write_text(render_explanation_html(found), encoding="utf-8")
    output.write(found)
    _print(found, on_stderr=output.prints)


def _read(
    day: date, config: Path | None, broker: str | None, account: str | None
) -> tuple[DaySources, LiveDay]:
    """Return where the day is, and what its journals and its ledger have of it."""
    from qts.app import resolve_home
    from qts.dashboard import day_bounds
    from qts.explain import DaySources, load_live_day

    settings = load_config(config)
    record = settings.feed.record_dir or resolve_home(settings).path / "record"
    journals, (start, end) = settings.pipeline.journal, day_bounds(day)
    if journals is None:
        raise RefusedError(
            "pipeline.journal is not set; qts explain reads what a run decided: name the folder of"
            " the journals, and name it for runs (QTS_PIPELINE__JOURNAL=journals qts run)"
        )

    async def read(database: Database, key: AccountKey) -> tuple[DaySources, LiveDay]:
        sources = DaySources(day, start, end, key, journals, record)
        return sources, await load_live_day(database, sources)

    return with_account(config, read, broker, account)


def _print(found: DayExplanation, *, on_stderr: bool) -> None:
    from qts.explain import render_explanation_tables

    print_tables(*render_explanation_tables(found), on_stderr=on_stderr)
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)
