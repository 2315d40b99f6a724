"""`qts data download`, `import`, `list` and `check`: the catalogue of past bars and ticks."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from qts.cli.console import (
    ConfigOption,
    JsonFile,
    JsonFileOption,
    JsonOption,
    load_config,
    print_json,
    print_tables,
)
from qts.cli.file_layout import ColumnsOption, FileOptions, FileSymbolOption, MapOption, ZoneOption
from qts.domain import OperationError, RefusedError, SystemClock, Timeframe

if TYPE_CHECKING:
    from qts.config import Config
    from qts.history import (
        BarCatalogue,
        DownloadPlan,
        DownloadProgress,
        DownloadResult,
        ImportedSeries,
        SeriesInfo,
    )

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_INTERRUPTED = 130


def download(
    venue: Annotated[
        str,
        typer.Argument(metavar="VENUE", help="The venue to read: kis, upbit or a package's."),
    ],
    symbols: Annotated[
        str | None,
        typer.Option(
            "--symbols", metavar="A,B|FILE", help="Symbols, or a file of them; else feed.symbols."
        ),
    ] = None,
    bars: Annotated[Literal["1m", "1d"], typer.Option("--bars", help="Timeframe.")] = "1d",
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="2026-10-01, '30 days ago', yesterday.")
    ] = "365 days ago",
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="As --from; default: now.")
    ] = None,
    show_plan: Annotated[
        bool, typer.Option("--plan", help="Print the plan, request nothing.")
    ] = False,
    json_file: JsonFileOption = None,
    config: ConfigOption = None,
) -> int:
    """Download past bars into the catalogue; run it again to continue or to update.

    Bars that the catalogue has are not requested. Exit code 0: all stored, 1: a symbol failed or
    the venue did not answer, 130: interrupted; the same command continues.

    Example: qts data download upbit --symbols KRW-BTC,KRW-ETH --bars 1m --from "30 days ago"
    """
    from qts.app import history_is_simulated, history_rules
    from qts.history import parse_moment, plan_download

    report, settings, clock = JsonFile(json_file), load_config(config), SystemClock()
    chosen = _symbols(venue, symbols, settings)
    rules, now = history_rules(settings, venue), clock.now()
    simulated = history_is_simulated(settings, venue)
    catalogue = _catalogue(settings, simulated=simulated)
    wanted = (
        parse_moment(start, rules.zone, now),
        parse_moment(end, rules.zone, now) if end else None,
    )
    plan = plan_download(rules, catalogue, chosen, Timeframe(bars), wanted, now.timestamp())
    if simulated:
        plan.notes.append(
            "simulated data, in a catalogue of its own: the settings name no venue; see "
            "docs/data.md"
        )
    typer.echo(plan.render(), err=report.prints)
    if show_plan:
        report.write(plan)
        return 0
    try:
        result = _download(settings, venue, plan, catalogue) if plan.requests else None
    except OperationError as error:
        raise OperationError(
            f"{error}; what was read is stored, the same command continues"
        ) from None
    except asyncio.CancelledError:
        typer.echo(
            "qts: interrupted; what was read is stored, the same command continues", err=True
        )
        return _INTERRUPTED
    _report(result, report)
    return _exit_code(result)


def list_series(json: JsonOption = False, config: ConfigOption = None) -> int:
    """List the bars and ticks in the catalogue.

    Example: qts data list
    """
    settings = load_config(config)
    found: list[SeriesInfo] = []
    for simulated in (False, True):
        catalogue = _catalogue(settings, simulated=simulated)
        found += [catalogue.info(each) for each in catalogue.series()]
    if json:
        print_json(found)
    elif found:
        _print_series(found)
    else:
        typer.echo("the catalogue is empty; see qts data download --help")
    return 0


def check(json: JsonOption = False, config: ConfigOption = None) -> int:
    """Check the catalogue for damaged files and missing time.

    Exit code 1: a file is damaged.

    Example: qts data check
    """
    from qts.app import trading_calendar
    from qts.history import check_catalogue

    settings = load_config(config)
    findings = [
        finding
        for simulated in (False, True)
        for finding in check_catalogue(
            _catalogue(settings, simulated=simulated), trading_calendar(settings)
        )
    ]
    damaged = sum(each.damage for each in findings)
    if json:
        print_json({"damaged": damaged, "findings": findings})
    else:
        for each in findings:
            typer.echo(f"{'DAMAGED' if each.damage else 'note':<8} {each.where}: {each.problem}")
        typer.echo(f"{damaged} damaged" if damaged else "no damage found")
    return 1 if damaged else 0


def _catalogue(settings: Config, *, simulated: bool) -> BarCatalogue:
    from qts.app import resolve_home
    from qts.history import BarCatalogue

    return BarCatalogue(resolve_home(settings).path, simulated=simulated)


def _symbols(venue: str, given: str | None, settings: Config) -> list[str]:
    from qts.brokers import venue_of
    from qts.feed import read_symbols

    form, example = venue_of(venue).symbol_form
    if given is None or _is_path(given):
        symbols = read_symbols(Path(given) if given else settings.feed.symbols)
    else:
        symbols = list(dict.fromkeys(filter(None, map(str.strip, given.split(",")))))
    for symbol in symbols:
        if not form.fullmatch(symbol):
            raise RefusedError(
                f"--symbols: {symbol!r} is neither a file nor a symbol of {venue}, as in {example}"
            )
    return symbols


def _is_path(text: str) -> bool:
    try:
        return Path(text).exists()
    except OSError:  # a list of symbols may be longer than a file's name can be
        return False


def _download(
    settings: Config, venue: str, plan: DownloadPlan, catalogue: BarCatalogue
) -> DownloadResult:
    import uvloop

    from qts import telemetry

    telemetry.configure(telemetry.TelemetryConfig(log_level="error"))
    with catalogue.writing(), _progress(plan) as on_page:
        return uvloop.run(_run(settings, venue, plan, catalogue, on_page))


async def _run(
    settings: Config,
    venue: str,
    plan: DownloadPlan,
    catalogue: BarCatalogue,
    on_page: Callable[[DownloadProgress], None],
) -> DownloadResult:
    from qts.app import connect_history, resolve_home
    from qts.history import Downloader

    clock, symbols = SystemClock(), [each.symbol for each in plan.symbols]
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    for number in _SIGNALS:
        loop.add_signal_handler(number, task.cancel if task else loop.stop)
    home = resolve_home(settings).path
    async with connect_history(settings, venue, home, clock, symbols) as history:
        return await Downloader(plan, history, catalogue, clock, on_page).run()


@contextmanager
def _progress(plan: DownloadPlan) -> Iterator[Callable[[DownloadProgress], None]]:
    """Show a bar with rate and time left on a terminal, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _progress: None
        return
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"), TimeLeft())
    began: list[float] = []  # when the first page came: connecting is no request
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=plan.requests)

        def show(progress: DownloadProgress) -> None:
            began.append(time.perf_counter())
            rate = (progress.pages - 1) / max(0.001, began[-1] - began[0])
            del began[1:]
            text = f"{progress.pages:,} requests, {rate:.1f}/s, {progress.bars:,} bars"
            bar.update(task, completed=progress.done, description=text)

        yield show


def _report(result: DownloadResult | None, report: JsonFile) -> None:
    if result is None:
        typer.echo("nothing to download", err=report.prints)
        report.write({"pages": 0, "bars": 0, "read_again": [], "without_bars": [], "failed": {}})
        return
    typer.echo(f"{result.bars:,} bars in {result.pages:,} requests", err=report.prints)
    for symbol in result.read_again:
        typer.echo(
            f"{symbol}: stored days had changed at the venue (a split); read again", err=True
        )
    for symbol in result.without_bars:
        typer.echo(f"{symbol}: the venue has no bars; check the symbol", err=True)
    for symbol, error in result.failed.items():
        typer.echo(f"{symbol}: {error}", err=True)
    report.write(result)


def _exit_code(result: DownloadResult | None) -> int:
    return 1 if result and (result.failed or result.without_bars) else 0


def _print_series(found: list[SeriesInfo]) -> None:
    from rich.table import Table

    table = Table("venue", "symbol", "timeframe", "from (UTC)", "to (UTC)", box=None)
    for name in ("bars", "gaps", "size"):
        table.add_column(name, justify="right")
    table.add_column("")
    for each in found:
        times = [f"{moment:%Y-%m-%d %H:%M}" if moment else "" for moment in (each.start, each.end)]
        size = f"{each.size_bytes / 1024:,.0f} kB"
        note = "simulated" if each.simulated else ""
        counts = (f"{each.bars:,}", f"{each.gaps:,}", size, note)
        table.add_row(each.venue, each.symbol, each.timeframe, *times, *counts)
    print_tables(table)


TICKS = "ticks"


def import_data(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES", help="CSV (.gz, .zst), Parquet, or folders of them."),
    ],
    timeframe: Annotated[
        Literal["1s", "1m", "3m", "5m", "15m", "1h", "1d", "ticks"],
        typer.Option("--timeframe", help="Length of the bars, or ticks."),
    ],
    venue: Annotated[
        str, typer.Option("--venue", metavar="VENUE", help="Where it traded: krx, kis, upbit.")
    ],
    symbol: FileSymbolOption = None,
    symbol_column: Annotated[
        str | None,
        typer.Option("--symbol-column", metavar="COLUMN", help="As --map symbol=COLUMN."),
    ] = None,
    mapping: MapOption = None,
    columns: ColumnsOption = None,
    tz: ZoneOption = None,
    label: Annotated[
        Literal["start", "close"], typer.Option("--label", help="What the time of a bar is.")
    ] = "start",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and check everything, store nothing.")
    ] = False,
    json_file: JsonFileOption = None,
    config: ConfigOption = None,
) -> int:
    """Import bars or ticks of files into the catalogue.

    A series is replaced from its first to its last imported row. Nothing is stored if a row is
    wrong.

    Example: qts data import prices.csv --venue krx --timeframe 1d --map close=Last
    """
    from msgspec.structs import replace

    from qts.app import resolve_home
    from qts.history import BarCatalogue, import_files
    from qts.venues import market_of_venue

    report, settings = JsonFile(json_file), load_config(config)
    if symbol_column and symbol:
        raise RefusedError("--symbol and --symbol-column: expected one of them")
    market = market_of_venue(venue)
    pairs = ",".join(filter(None, (mapping, symbol_column and f"symbol={symbol_column}")))
    bars = None if timeframe == TICKS else timeframe
    layout = replace(FileOptions(pairs, columns, symbol, bars, tz).layout(), label=label)
    catalogue = BarCatalogue(resolve_home(settings).path)
    with catalogue.writing():
        imported = import_files(files, market, layout, catalogue, dry_run=dry_run)
    for each in imported:
        typer.echo(_import_line(each, dry_run=dry_run), err=report.prints)
    report.write(imported)
    return 0


def _import_line(each: ImportedSeries, *, dry_run: bool) -> str:
    what = "read, not stored" if dry_run else "stored"
    span = f"{each.start:%Y-%m-%d %H:%M} to {each.end:%Y-%m-%d %H:%M} UTC"
    return f"{each.symbol} {each.timeframe}: {each.rows:,} rows, {span}, {what}"
