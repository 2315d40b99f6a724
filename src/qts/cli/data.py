"""`qts data`: observe and record a market, replay records, export them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from qts.cli.console import ConfigOption, DurationOption, JsonFile, JsonFileOption
from qts.cli.file_layout import ZoneOption
from qts.domain import Clock, RefusedError, SystemClock, parse_duration

if TYPE_CHECKING:
    from qts.config import Config
    from qts.feed import Feed, FeedStatus

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
