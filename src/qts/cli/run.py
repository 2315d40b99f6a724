"""`qts run`: the main job."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

import qts
from qts.cli.console import ConfigOption, JsonFile
from qts.domain import parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qts.app import RunSummary, StartupInfo, TradingSummary


def run(
    config: ConfigOption = None,
    lasting: Annotated[
        str | None,
        typer.Option("--for", metavar="SPAN", help="Stop after this long: 500ms, 60s, 2h."),
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write the summary as JSON; - prints it."),
    ] = None,
    servers_only: Annotated[
        bool, typer.Option("--servers-only", help="Start the servers and trade nothing.")
    ] = False,
) -> int:
    """Run everything until Ctrl-C, on embedded servers unless the settings name others.

    Without a key in the settings the market is a simulated one; orders go to the paper broker
    unless the settings say otherwise.

    Example: qts run --for 60s --json summary.json
    """
    from qts.app import build_app
    from qts.config import load

    seconds = parse_duration(lasting) if lasting else None
    report = JsonFile(json_file)
    show = _Show(_console(report.prints), seconds)
    summary = build_app(load(config, os.environ)).run(seconds, show, trade=not servers_only)
    show.ended(summary)
    report.write(summary.to_json())
    return 0 if summary.verdict == "OK" else 1


def _console(on_stderr: bool) -> Console:
    console = Console(stderr=on_stderr, highlight=False)
    if not console.is_terminal:
        console.width = 200  # whoever reads this from a pipe wants whole lines
    return console


class _Show:
    """Tells the owner, on the terminal, how the run goes."""

    def __init__(self, console: Console, seconds: float | None) -> None:
        self._console = console
        self._until = f"for {seconds:g} s" if seconds else "until Ctrl-C"

    def starting(self) -> None:
        self._console.print(f"[bold]QTS {qts.__version__}[/bold] starting ...")

    def ready(self, ready: StartupInfo) -> None:
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for heading in ("service", "version", "runs as", "where"):
            table.add_column(heading, header_style="dim", overflow="fold")
        for service in ready.services:
            runs_as = f"embedded, pid {service.pid}" if service.pid else "given by the settings"
            table.add_row(service.name, service.version, runs_as, service.where)
        news = f", {ready.migrations_applied} applied now" if ready.migrations_applied else ""
        self._console.print(table)
        self._console.print(f"home    {ready.home}", soft_wrap=True)
        self._console.print(f"schema  {ready.schema_version}{news}")
        if ready.trading:
            self._console.print(f"trades  {ready.trading}", soft_wrap=True)
        if ready.dashboard:
            self._console.print(f"dashboard  {ready.dashboard}", soft_wrap=True)
        if ready.login:
            self._console.print(f"log in  {ready.login}", soft_wrap=True, markup=False)
        self._console.print(
            f"[green]Ready[/green] after {ready.seconds:.2f} s; runs {self._until}."
        )

    def stopping(self) -> None:
        self._console.print("Stopping ...")

    def ended(self, summary: RunSummary) -> None:
        if summary.trading is not None:
            self._traded(summary.trading)
        restarts = f", {len(summary.restarts)} server restarts" if summary.restarts else ""
        self._console.print(
            f"[bold]{summary.verdict}[/bold] after {summary.seconds:.2f} s{restarts}."
        )

    def _traded(self, traded: TradingSummary) -> None:
        mode = "[bold red]LIVE[/bold red]" if traded.mode == "live" else traded.mode
        self._console.print(f"\n[bold]{traded.broker}[/bold], {mode}")
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
        if traded.books_agree:
            self._console.print(
                "  [green]orders, fills and positions agree with the broker[/green]"
            )
        for difference in traded.differences:
            self._console.print(f"  [red]{difference}[/red]", soft_wrap=True)


def _figures(traded: TradingSummary) -> Iterator[tuple[str, str]]:
    attempts = ", ".join(f"{n} {state}" for state, n in traded.attempts.items()) or "none"
    yield "ticks", f"{traded.ticks:,}"
    yield "orders", f"{traded.signals:,} signals, {traded.intents:,} intents, attempts: {attempts}"
    yield "fills", f"{traded.fills:,}, positions {traded.positions:,}"
    pnl = traded.pnl
    yield (
        "profit",
        f"realised {pnl['realised']:,} won after fees, open {pnl['unrealised']:,}, "
        f"equity {pnl['equity']:,}",
    )
    if (spans := traded.tick_to_order) is not None:
        yield (
            "latency",
            f"tick to order leaving: p50 {spans.p50_ms:.1f} ms, p99 {spans.p99_ms:.1f} ms, "
            f"max {spans.max_ms:.1f} ms over {spans.orders:,} orders",
        )
    if traded.refusals:
        most = sorted(traded.refusals.items(), key=lambda each: -each[1])[:5]
        yield "refused", ", ".join(f"{code} {count:,}" for code, count in most)
    rates = [f"{kind} {rate:.1%}" for kind, rate in traded.cache.items() if rate is not None]
    yield "cache", "hit rates of the last minute: " + (", ".join(rates) or "nothing was asked")
    for stream, counts in traded.outbox.items():
        yield "outbox", f"{stream}: " + ", ".join(f"{n:,} {word}" for word, n in counts.items())
    yield "fail-safe", traded.safety
