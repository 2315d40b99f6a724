"""`qts data`: observe and record a market, replay and export records, list instruments."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from qts.cli.console import (
    ConfigOption,
    DurationOption,
    JsonFile,
    JsonFileOption,
    JsonOption,
    format_number,
    load_config,
    print_json,
    with_database,
)
from qts.cli.file_layout import ZoneOption
from qts.domain import Clock, RefusedError, SystemClock, check_name, nearest_name, parse_duration

if TYPE_CHECKING:
    from qts.config import Config
    from qts.database import Database
    from qts.domain import Instrument
    from qts.feed import Feed, FeedStatus, InstrumentList

ASSUMED_SYMBOLS = 2500
_LINE_S = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

DataArgument = Annotated[
    Path,
    typer.Argument(metavar="DATA", help="A folder of records, or .jsonl[.zst], .csv, .parquet."),
]


def observe(
    config: ConfigOption = None,
    duration: DurationOption = None,
    symbols: Annotated[
        Path | None,
        typer.Option(
            "--symbols", metavar="FILE", help="Instead of feed.symbols: one symbol a line."
        ),
    ] = None,
    show_plan: Annotated[
        bool, typer.Option("--plan", help="Print the scan plan and its calculation, then exit.")
    ] = False,
    held: Annotated[
        int,
        typer.Option("--held", metavar="N", min=0, help="With --plan: symbols held or on order."),
    ] = 0,
    simulated_time: Annotated[
        bool,
        typer.Option(
            "--simulated-time",
            help="Use the clock of the simulator at the url of the venue, whatever its speed.",
        ),
    ] = False,
    json_file: JsonFileOption = None,
) -> int:
    """Watch a market and record it; no strategy, no orders.

    Prints a status line on a terminal, and a line of JSON each second elsewhere.

    Example: qts data observe --duration 60s --symbols symbols.txt
    """
    import msgspec

    from qts.app import plan_observation
    from qts.feed import read_symbols

    seconds = parse_duration(duration) if duration else None
    report = JsonFile(json_file)
    settings, home = _settings(config, symbols)
    feed = settings.feed
    if len(feed.venues) > 1:
        raise RefusedError(
            f'feed.venue = "{",".join(feed.venues)}": qts data observe watches one venue; qts run'
            " watches several"
        )
    clock: Clock = SystemClock()
    if simulated_time:
        clock = _simulator_clock(feed.venue_name, settings)
    if show_plan:
        count = len(read_symbols(feed.symbols)) if feed.symbols else ASSUMED_SYMBOLS
        plan = plan_observation(settings, count, clock, held)
        typer.echo(plan.render())
        report.write({**msgspec.to_builtins(plan), "sentence": plan.description})
        return 0
    stream = sys.stderr if report.prints else sys.stdout
    state = _run(_observe(settings, (home, clock), seconds, StatusLine(stream)))
    report.write(state)
    return 0 if not state.lost else 1


def replay(
    data: DataArgument,
    config: ConfigOption = None,
    speed: Annotated[
        float,
        typer.Option("--speed", metavar="N", help="Times as fast as recorded; 0: without pauses."),
    ] = 0.0,
    tz: ZoneOption = None,
    json_file: JsonFileOption = None,
) -> int:
    """Replay recorded ticks through the surge detector.

    Example: qts data replay record/ --speed 60
    """
    from qts.feed import FileLayout, Observer, QuoteIngest, read_records
    from qts.feed import replay as play

    if speed < 0:
        raise RefusedError(
            f"--speed is {speed:g}; expected 0 for no pauses, or times as fast as recorded"
        )
    report = JsonFile(json_file)
    settings, _ = _settings(config, None)
    ingest = QuoteIngest(settings.feed, Observer([]), "replay", mode="REPLAY")
    began = time.perf_counter()
    records = _run(play(read_records(data, FileLayout(tz=tz)), ingest, SystemClock(), speed))
    summary = {
        "records": records,
        "symbols": len(ingest.cache),
        "surges": ingest.surges,
        "seconds": round(time.perf_counter() - began, 3),
    }
    if not report.prints:
        typer.echo("  ".join(f"{name} {value:,}" for name, value in summary.items()))
    report.write(summary)
    return 0


def export(
    data: DataArgument,
    target: Annotated[Path, typer.Argument(metavar="FILE.parquet", help="File to write.")],
) -> int:
    """Write recorded ticks as one Parquet file.

    Example: qts data export record/ day.parquet
    """
    from qts.feed import export_parquet, read_records

    if target.suffix != ".parquet":
        raise RefusedError(f"{target} does not end in .parquet, the only format supported")
    typer.echo(f"{export_parquet(read_records(data), target):,} rows in {target}")
    return 0


def _settings(config: Path | None, symbols: Path | None) -> tuple[Config, Path]:
    from msgspec.structs import replace

    from qts.config import load
    from qts.embedded import default_home

    settings = load(config, os.environ)
    if symbols is not None:
        settings = replace(settings, feed=replace(settings.feed, symbols=symbols))
    return settings, settings.home or default_home(os.environ)


def _simulator_clock(venue: str, settings: Config) -> Clock:
    import urllib.request

    import msgspec

    from qts.simulators import SimulatedClock

    url = getattr(getattr(settings.venues, venue, None), "url", None)
    if url is None:
        raise RefusedError(
            f"--simulated-time: venues.{venue}.url is not set; name a simulator's address"
        )
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/_control/clock", timeout=5) as reply:  # noqa: S310 - the operator's setting
            found = msgspec.json.decode(reply.read())
        return SimulatedClock(SystemClock(), datetime.fromisoformat(found["now"]), found["speed"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RefusedError(f"--simulated-time: no simulator responds at {url} ({error})") from None


def _run(work: Any) -> Any:
    import uvloop

    return uvloop.run(work)


async def _observe(
    settings: Config,
    where: tuple[Path, Clock],
    seconds: float | None,
    line: StatusLine,
) -> FeedStatus:
    from qts.app import observe_venue

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
    try:
        async with observe_venue(settings, *where) as feed:
            line.note(f"plan: {feed.plan.description}")
            if not feed.plan.granted:
                line.note(feed.plan.render().splitlines()[-1])
            running = asyncio.create_task(feed.run())
            try:
                await _show_until(feed, running, stop, seconds, line)
            finally:
                running.cancel()
                await asyncio.wait({running})
            return feed.status()
    finally:
        line.close()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def _show_until(
    feed: Feed,
    running: asyncio.Task[None],
    stop: asyncio.Event,
    seconds: float | None,
    line: StatusLine,
) -> None:
    loop = asyncio.get_running_loop()
    ends = None if seconds is None else loop.time() + seconds
    stopped = asyncio.create_task(stop.wait())
    while not stop.is_set() and (ends is None or loop.time() < ends):
        wait = _LINE_S if ends is None else min(_LINE_S, max(0.0, ends - loop.time()))
        await asyncio.wait({stopped, running}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()  # it ends only with an error
        line.show(feed.status())
    stopped.cancel()


class StatusLine:
    """Status output: one line in place on a terminal, a line of JSON for each status elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._in_place = stream.isatty()

    def show(self, state: FeedStatus) -> None:
        if self._in_place:
            columns = shutil.get_terminal_size().columns
            self._stream.write(f"\r\x1b[2K{_describe(state)[: columns - 1]}")
        else:
            import msgspec

            self._stream.write(msgspec.json.encode(state).decode() + "\n")
        self._stream.flush()

    def note(self, text: str) -> None:
        if self._in_place:
            self._stream.write(f"\r\x1b[2K{text}\n")
            self._stream.flush()

    def close(self) -> None:
        if self._in_place:
            self._stream.write("\n")
            self._stream.flush()


def _describe(state: FeedStatus) -> str:
    poller, budget = state.poller, state.budget
    if not poller.open:
        return f"{state.seconds:6.0f} s  market closed  records {state.records:,}"
    bursts = f"bursts {len(poller.bursts)}" + (" (stream)" if state.streaming else "")
    return "  ".join(
        (
            f"{state.seconds:6.0f} s",
            f"scan {poller.scans + 1}: {poller.position}/{poller.batches}",
            f"last {poller.last_scan_s:.1f} s",
            f"lag {state.lag_s:.1f} s",
            f"{budget.used_second}/s {budget.used_minute}/min",
            f"left today {budget.left_day:,}",
            bursts,
            f"refused {budget.refused}",
            f"records {state.records:,}",
        )
    )


INSTRUMENT_SCHEMA = 20  # adds the table

_INSTRUMENT_HEAD = (
    f"{'symbol':<12}{'class':<8}{'board':<8}{'tick':>12}{'lot':>12}{'minimum':>9}{'tax':>8}  name"
)


def instruments(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="PATTERN", help="Part of a symbol or a name, in any case."),
    ] = None,
    venue: Annotated[
        str | None,
        typer.Option(metavar="VENUE", help="The venue, if not feed.venue of the settings."),
    ] = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Fetch the venue's lists first; needs no key.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number of lines.")] = 50,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List or search the instruments of a venue.

    Shows what the last refresh stored: name, class, tick at the base price, lot, smallest order,
    tax on a sale, status. JSON has all rows; a backtest reads it with --instruments.

    Example: qts data instruments 삼성 --refresh
    """
    import msgspec

    from qts.venues import venue_names

    settings = load_config(config)
    chosen = venue or settings.feed.venues[0]
    check_name("venue", chosen, venue_names())

    async def read(database: Database) -> InstrumentList:
        return await _read_instruments(database, settings, chosen, refresh)

    found = with_database(config, read, INSTRUMENT_SCHEMA)
    if not found.instruments:
        raise RefusedError(
            f"no instruments of {chosen} are stored; add --refresh, or start qts run"
        )
    matching = _matching(found.instruments, chosen, pattern)
    if as_json:
        print_json(msgspec.structs.replace(found, instruments=matching))
        return
    at = f"{found.refreshed_at:%Y-%m-%d %H:%M} UTC" if found.refreshed_at else "never"
    where = f"{chosen} simulator" if found.environment == "simulator" else chosen
    typer.echo(f"{len(matching):,} of {len(found.instruments):,} at {where}, refreshed {at}")
    typer.echo("\n".join([_INSTRUMENT_HEAD, *map(_instrument_line, matching[:limit])]))
    if len(matching) > limit:
        typer.echo(f"{len(matching) - limit:,} more; see --limit")


async def _read_instruments(
    database: Database, config: Config, venue: str, refresh: bool
) -> InstrumentList:
    from qts.app import ChosenVenue
    from qts.domain import Instruments, SystemClock
    from qts.feed import InstrumentStore, InstrumentSync

    store, clock = InstrumentStore(database), SystemClock()
    if refresh:
        source = ChosenVenue.of(config, venue).instruments(clock)
        known = Instruments(await store.load(source.environment))
        await InstrumentSync(store, source, known, clock).refresh()
    return await store.newest(venue)


def _matching(known: Iterable[Instrument], venue: str, pattern: str | None) -> list[Instrument]:
    rows, word = list(known), (pattern or "").casefold()
    found = [
        each
        for each in rows
        if any(word in text.casefold() for text in (each.symbol, each.name, each.name_en))
    ]
    if pattern and not found:
        names = [text for each in rows for text in (each.symbol, each.name, each.name_en) if text]
        near = nearest_name(pattern, names)
        raise RefusedError(
            f"no instrument of {venue} matches {pattern!r}"
            + (f"; did you mean {near}?" if near else "; expected a part of a symbol or a name")
        )
    return found


def _instrument_line(each: Instrument) -> str:
    tick = format_number(each.ticks.size(each.base_price)) if each.base_price else "by price"
    tax = f"{format_number(each.sale_tax * 100)} %" if each.sale_tax else "-"
    minimum = format_number(each.min_order_value) if each.min_order_value else "-"
    names = " / ".join(dict.fromkeys(name for name in (each.name, each.name_en) if name))
    line = (
        f"{each.symbol:<12}{each.kind:<8}{each.board:<8}{tick:>12}{format_number(each.lot):>12}"
        f"{minimum:>9}{tax:>8}  {names}"
    )
    return f"{line}  {each.status}".rstrip()
