"""`qts data import`: files of bars or ticks into the catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from qts.cli.console import ConfigOption, JsonFile, JsonFileOption, load_config
from qts.cli.file_layout import (
    ColumnsOption,
    FileOptions,
    FileSymbolOption,
    MapOption,
    ZoneOption,
)
from qts.domain import RefusedError

if TYPE_CHECKING:
    from qts.history import ImportedSeries

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
        typer.echo(_line(each, dry_run=dry_run), err=report.prints)
    report.write(imported)
    return 0


def _line(each: ImportedSeries, *, dry_run: bool) -> str:
    what = "read, not stored" if dry_run else "stored"
    span = f"{each.start:%Y-%m-%d %H:%M} to {each.end:%Y-%m-%d %H:%M} UTC"
    return f"{each.symbol} {each.timeframe}: {each.rows:,} rows, {span}, {what}"
