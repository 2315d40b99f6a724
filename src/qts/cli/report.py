"""`qts report`: the daily report of an account."""

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
    print_tables,
    with_account,
)

if TYPE_CHECKING:
    from qts.dashboard import DailyReport
    from qts.database import Database
    from qts.domain import AccountKey

SCHEMA = 21  # adds the samples of runs


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

    found = with_account(config, read, broker, account, SCHEMA)
    if page is not None:
        page.write_text(render_report_html(found), encoding="utf-8")
    output.write(found)
    print_tables(*render_report_table(found), on_stderr=output.prints)
