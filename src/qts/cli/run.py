"""`qts run`, and `qts ops lease` and `handover` between the runs of a pair."""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

import qts
from qts import telemetry
from qts.cli.console import (
    AccountOption,
    ConfigOption,
    DurationOption,
    JsonFile,
    JsonFileOption,
    JsonOption,
    print_json,
    with_run_accounts,
)
from qts.domain import RefusedError, parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from qts.app import RunSummary, StartupInfo, TradingSummary
    from qts.brokers import LeaseStatus
    from qts.database import Database
    from qts.domain import AccountKey
    from qts.roles import RoleStatus


class RoleName(Enum):
    all = "all"
    feed = "feed"
    strategies = "strategies"
    execution = "execution"


RELEASE_COMMAND = 'qts failsafe release --reason "..."'


def run(
    config: ConfigOption = None,
    duration: DurationOption = None,
    json_file: JsonFileOption = None,
    servers_only: Annotated[
        bool, typer.Option("--servers-only", help="Start the servers without trading.")
    ] = False,
    standby: Annotated[
        bool,
        typer.Option("--standby", help="Trade only once the active run has ended or is lost."),
    ] = False,
    role: Annotated[
        RoleName,
        typer.Option("--role", help="One part of the system, joined with the others by NATS."),
    ] = RoleName.all,
) -> int:
    """Run the trading system; paper broker and simulated market by default.

    Runs until Ctrl-C, on embedded servers unless the settings name others. The market is
    simulated while the settings have no venue key; orders go to the paper broker unless the
    settings name a venue's. With --standby it holds no account and sends nothing until the
    run that trades the same accounts on the same PostgreSQL has ended, froze or was cut off.
    With --role the feed, the strategies and the orders are separate processes, on one
    machine or several (docs/roles.md).

    Example: qts run --duration 60s --json summary.json
    """
    from qts.config import load

    if standby and servers_only:
        raise RefusedError("--standby and --servers-only exclude each other; give one of them")
    if role is not RoleName.all and servers_only:
        raise RefusedError("--role and --servers-only exclude each other; give one of them")
    seconds = parse_duration(duration) if duration else None
    report = JsonFile(json_file)
    settings = load(config, os.environ)

    from qts.app import build_app  # after the input is checked: it takes most of a second

    output = _RunOutput(_console(report.prints), seconds)
    app = build_app(settings)
    summary = app.run(seconds, output, trade=not servers_only, standby=standby, role=role.value)
    output.ended(summary)
    report.write(summary.to_json())
    return 0 if summary.verdict == "OK" else 1


def _console(on_stderr: bool) -> Console:
    from rich.console import Console

    console = Console(stderr=on_stderr, highlight=False)
    if not console.is_terminal:
        console.width = 200  # a pipe gets whole lines
    return console


class _RunOutput:
    """What a run prints: the start-up table, then the summary.

    Log lines on a terminal follow the table; a line of level error ends the wait.
    """

    def __init__(self, console: Console, seconds: float | None) -> None:
        self._console = console
        self._until = f"for {seconds:g} s" if seconds else "until Ctrl-C"

    def starting(self) -> None:
        telemetry.hold_lines()
        self._console.print(f"[bold]QTS {qts.__version__}[/bold] starting ...")

    def standing_by(self, ready: StartupInfo) -> None:
        line = f"[green]Standing by[/green] for {ready.standby}; runs {self._until}."
        self._console.print(line, soft_wrap=True)
        telemetry.release_lines()

    def ready(self, ready: StartupInfo) -> None:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for heading in ("service", "version", "runs as", "where"):
            table.add_column(heading, header_style="dim", overflow="fold")
        for service in ready.services:
            runs_as = f"embedded, pid {service.pid}" if service.pid else "external"
            table.add_row(service.name, service.version, runs_as, service.where)
        applied = f", {ready.migrations_applied} applied now" if ready.migrations_applied else ""
        self._console.print(table)
        self._console.print(f"home    {ready.home}", soft_wrap=True)
        self._console.print(f"schema  {ready.schema_version}{applied}")
        if ready.trading:
            self._console.print(f"trades  {ready.trading}", soft_wrap=True)
        if ready.dashboard:
            self._console.print(f"dashboard  {ready.dashboard}", soft_wrap=True)
        if ready.login:
            # The link contains a token: elsewhere than on a terminal it would be kept in a log.
            shown = ready.login if self._console.file.isatty() else "qts dashboard --link admin"
            self._console.print(f"log in  {shown}", soft_wrap=True, markup=False)
        if ready.lockdown:
            line = f"LOCKDOWN  {ready.lockdown}; no orders until: {RELEASE_COMMAND}"
            self._console.print(line, style="bold red", markup=False, soft_wrap=True)
        self._console.print(
            f"[green]Ready[/green] after {ready.seconds:.2f} s; runs {self._until}."
        )
        telemetry.release_lines()

    def stopping(self) -> None:
        self._console.print("Stopping ...")

    def ended(self, summary: RunSummary) -> None:
        if summary.trading is not None:
            self._print_trading(summary.trading)
        if summary.link is not None:
            self._print_link(summary.link)
        restarts = f", {len(summary.restarts)} server restarts" if summary.restarts else ""
        self._console.print(
            f"[bold]{summary.verdict}[/bold] after {summary.seconds:.2f} s{restarts}."
        )

    def _print_link(self, link: RoleStatus) -> None:
        """Print what was sent and received, and what was missing: figures that are not zero."""
        counts = {name: getattr(link, name) for name in link.__struct_fields__}
        found = [f"{name.replace('_', ' ')} {n:,}" for name, n in counts.items() if n]
        text = ", ".join(found) or "nothing sent or received"
        self._console.print(f"  {'link':<11}{text}", soft_wrap=True)

    def _print_trading(self, traded: TradingSummary) -> None:
        from rich.table import Table

        mode = "[bold red]LIVE[/bold red]" if traded.mode == "live" else traded.mode
        self._console.print(f"\n[bold]{traded.broker}[/bold], {mode}")
        if len(traded.venues) > 1:
            for name, text in _venues(traded):
                self._console.print(f"  {name:<11}{text}", soft_wrap=True)
        for name, text in _figures(traded):
            self._console.print(f"  {name:<11}{text}", soft_wrap=True)
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for heading in ("  lane", "published", "handled", "merged", "p50 ms", "p99 ms", "max ms"):
            table.add_column(heading, header_style="dim", justify="right")
        for name, lane in traded.lanes.items():
            counts = (f"{n:,}" for n in (lane.published, lane.handled, lane.dropped))
            spans = (f"{span:.3f}" for span in (lane.p50_ms, lane.p99_ms, lane.max_ms))
            table.add_row(name, *counts, *spans)
        self._console.print(table)
        self._print_strategies(traded)
        if traded.books_agree:
            self._console.print("  [green]orders, fills and positions match the broker[/green]")
        for difference in traded.differences:
            self._console.print(f"  [red]{difference}[/red]", soft_wrap=True)
        for key, strategy in traded.strategies.items():
            if strategy.state == "disabled":
                line = f"  strategy {key} was disabled: {strategy.reason}"
                self._console.print(line, style="red", markup=False, soft_wrap=True)

    def _print_strategies(self, traded: TradingSummary) -> None:
        from rich.table import Table
        from rich.text import Text

        if not traded.strategies:
            return
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        table.add_column("  strategy", header_style="dim")
        for heading in ("orders", "fills", "refused", "realised", "fees", "open", "held"):
            table.add_column(heading, header_style="dim", justify="right")
        for name, each in traded.strategies.items():
            counts = (f"{count:,}" for count in (each.orders, each.fills, each.refused))
            values = (each.pnl["realised"], each.fees, each.pnl["unrealised"], each.exposure)
            won = (f"{value:,.0f}" for value in values)
            table.add_row(Text(f"  {name}"), *counts, *won)
        self._console.print(table)


def _venues(traded: TradingSummary) -> Iterator[tuple[str, str]]:
    for venue, each in traded.venues.items():
        attempts = sum(each.attempts.values())
        books = "match" if each.books_agree else "DIFFER"
        yield (
            venue,
            f"{each.broker}: {each.ticks:,} ticks, {attempts:,} attempts, {each.fills:,} fills, "
            f"positions {each.positions:,}, equity {each.pnl['equity']:,}, {each.safety}, "
            f"books {books}",
        )


def _figures(traded: TradingSummary) -> Iterator[tuple[str, str]]:
    attempts = ", ".join(f"{n} {state}" for state, n in traded.attempts.items()) or "none"
    yield "ticks", f"{traded.ticks:,}"
    if traded.bars:
        yield "bars", f"{traded.bars:,}; {traded.router.delivered:,} delivered to strategies"
    yield "orders", f"{traded.signals:,} signals, {traded.intents:,} intents, attempts: {attempts}"
    yield "fills", f"{traded.fills:,}, positions {traded.positions:,}"
    if traded.baseline:
        held = (f"{quantity.normalize():f} {name}" for name, quantity in traded.baseline.items())
        yield "holdings", "held before QTS, left alone: " + ", ".join(held)
    if traded.dust:
        yield "dust", "too small to sell: " + ", ".join(traded.dust)
    pnl = traded.pnl
    yield (
        "PnL",
        f"realised {pnl['realised']:,} won after fees, unrealised {pnl['unrealised']:,}, "
        f"equity {pnl['equity']:,}",
    )
    if (spans := traded.tick_to_order) is not None:
        yield (
            "latency",
            f"tick to order: p50 {spans.p50_ms:.1f} ms, p99 {spans.p99_ms:.1f} ms, "
            f"max {spans.max_ms:.1f} ms over {spans.orders:,} orders",
        )
    for name, refusals in (
        ("PreCheck", traded.precheck_refusals),
        ("gate", traded.refusals),
    ):
        if refusals:
            top = sorted(refusals.items(), key=lambda each: -each[1])[:5]
            yield name, "refused: " + ", ".join(f"{code} {count:,}" for code, count in top)
    rates = [f"{kind} {rate:.1%}" for kind, rate in traded.cache.items() if rate is not None]
    yield "cache", "hit rates of the last minute: " + (", ".join(rates) or "no reads")
    for stream, counts in traded.outbox.items():
        yield "outbox", f"{stream}: " + ", ".join(f"{n:,} {state}" for state, n in counts.items())
    yield "fail-safe", traded.safety


LEASE_SCHEMA = 29  # adds the lease


def lease(
    account: AccountOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Show which run holds an account, its epoch, and which runs stand by.

    Example: qts ops lease
    """
    from qts.brokers import read_lease

    async def read(database: Database, keys: list[AccountKey]) -> list[LeaseStatus]:
        return [await read_lease(database, key) for key in keys]

    found = with_run_accounts(config, read, account, LEASE_SCHEMA)
    if as_json:
        print_json({"accounts": found})
    else:
        typer.echo("\n".join(map(_lease_line, found)))


def handover(account: AccountOption = None, config: ConfigOption = None) -> None:
    """Let the standby take over: the active run finishes its orders and ends.

    Refused without an active run or a standby.

    Example: qts ops handover
    """
    from qts.app import hand_over

    found = with_run_accounts(config, hand_over, account, LEASE_SCHEMA)
    typer.echo("\n".join(map(_lease_line, found)))


def _lease_line(lease: LeaseStatus) -> str:
    from qts.app import describe_lease

    standbys = ", ".join(lease.standbys) or "none"
    requested = "; handover requested" if lease.is_held and lease.handover_at else ""
    return f"{lease.account}  {describe_lease(lease)}{requested}; standby: {standbys}"
