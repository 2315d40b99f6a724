"""`qts observe`, `qts replay`, `qts export`: watch and record a market, play it again, share it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import msgspec
import typer

from qts.cli.console import ConfigOption, JsonFile
from qts.domain import Clock, RefusedError, SystemClock, parse_duration

if TYPE_CHECKING:
    from qts.feed import Feed, FeedConfig, FeedStatus
    from qts.venues import KisConfig

ASSUMED_SYMBOLS = 2500
_LINE_S = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write the summary; - prints it.")
]
DataArgument = Annotated[
    Path,
    typer.Argument(metavar="DATA", help="A folder of records, or .jsonl[.zst], .csv, .parquet."),
]


def observe(
    config: ConfigOption = None,
    lasting: Annotated[
        str | None,
        typer.Option("--for", metavar="SPAN", help="Stop after this long: 500ms, 60s, 2h."),
    ] = None,
    symbols: Annotated[
        Path | None,
        typer.Option("--symbols", metavar="FILE", help="Instead of feed.symbols: one on a line."),
    ] = None,
    show_plan: Annotated[
        bool, typer.Option("--plan", help="Print the scan's plan and its arithmetic, and stop.")
    ] = False,
    simulated_time: Annotated[
        bool,
        typer.Option(
            "--simulated-time",
            help="Keep the time of the simulator at venues.kis.url, however fast it runs.",
        ),
    ] = False,
    json_file: JsonOption = None,
) -> int:
    """Watch the market and record it: no strategy, no orders.

    On a terminal one line shows how it goes; elsewhere a line of JSON each second does.

    Example: qts observe --for 60s --symbols symbols.txt
    """
    from qts.feed import plan_scan_offline, read_symbols

    seconds = parse_duration(lasting) if lasting else None
    report = JsonFile(json_file)
    kis, feed, home = _settings(config, symbols)
    if feed.venue != "kis":
        raise RefusedError(
            f'qts observe watches KIS, and feed.venue is "{feed.venue}"; qts run watches it'
        )
    clock: Clock = _time_of(kis.url) if simulated_time else SystemClock()
    if show_plan:
        count = len(read_symbols(feed.symbols)) if feed.symbols else ASSUMED_SYMBOLS
        made = plan_scan_offline(kis, feed, count, clock.now())
        typer.echo(made.render())
        report.write({**msgspec.to_builtins(made), "sentence": made.sentence})
        return 0
    state = _run(_observe(kis, feed, (home, clock), seconds, _line_for(report.prints)))
    report.write(state)
    return 0 if not state.lost else 1


def replay(
    data: DataArgument,
    config: ConfigOption = None,
    speed: Annotated[
        float, typer.Option("--speed", metavar="N", help="Times as fast as it was; 0: at once.")
    ] = 0.0,
    json_file: JsonOption = None,
) -> int:
    """Play a recorded day again through the same detector and observer.

    Example: qts replay record/ --speed 60
    """
    from qts.feed import Observer, QuoteIngest, read_records
    from qts.feed import replay as play

    if speed < 0:
        raise RefusedError(
            f"--speed is {speed:g}; expected 0 for at once, or times as fast as it was"
        )
    report = JsonFile(json_file)
    _, feed, _ = _settings(config, None)
    intake = QuoteIngest(feed, Observer([]), "replay", mode="REPLAY")
    began = time.perf_counter()
    records = _run(play(read_records(data), intake, SystemClock(), speed))
    summary = {
        "records": records,
        "symbols": len(intake.cache),
        "surges": intake.surges,
        "seconds": round(time.perf_counter() - began, 3),
    }
    if not report.prints:
        typer.echo("  ".join(f"{name} {value:,}" for name, value in summary.items()))
    report.write(summary)
    return 0


def export(
    data: DataArgument,
    target: Annotated[Path, typer.Argument(metavar="FILE.parquet", help="What to write.")],
) -> int:
    """Write records as one Parquet file, for pandas, polars and their kind.

    Example: qts export record/ day.parquet
    """
    from qts.feed import export_parquet, read_records

    if target.suffix != ".parquet":
        raise RefusedError(f"{target} does not end in .parquet, the only form there is")
    typer.echo(f"{export_parquet(read_records(data), target):,} rows in {target}")
    return 0


def _settings(config: Path | None, symbols: Path | None) -> tuple[KisConfig, FeedConfig, Path]:
    from qts.config import load
    from qts.embedded import default_home

    settings = load(config, os.environ)
    venues, feed = settings.venues, settings.feed
    if symbols is not None:
        feed = msgspec.structs.replace(feed, symbols=symbols)
    return venues.kis, feed, settings.home or default_home(os.environ)


def _time_of(url: str | None) -> Clock:
    from qts.simulators import SimulatedClock

    if url is None:
        raise RefusedError(
            "--simulated-time: venues.kis.url is not set; name a simulator's address"
        )
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/_control/clock", timeout=5) as reply:  # noqa: S310 - the owner's own setting
            told = msgspec.json.decode(reply.read())
        return SimulatedClock(SystemClock(), datetime.fromisoformat(told["now"]), told["speed"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RefusedError(f"--simulated-time: no simulator answers at {url} ({error})") from None


def _run(work: Any) -> Any:
    import uvloop

    return uvloop.run(work)


async def _observe(
    kis: KisConfig,
    config: FeedConfig,
    where: tuple[Path, Clock],
    seconds: float | None,
    line: _Line,
) -> FeedStatus:
    from qts.feed import Feed

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
    try:
        async with Feed.open(kis, config, *where) as feed:
            line.note(f"plan: {feed.plan.sentence}")
            if not feed.plan.granted:
                line.note(feed.plan.render().splitlines()[-1])
            running = asyncio.create_task(feed.run())
            try:
                await _show_until(feed, running, stop, seconds, line)
            finally:
                running.cancel()
                await asyncio.wait({running})
            return feed.state()
    finally:
        line.close()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def _show_until(
    feed: Feed, running: asyncio.Task[None], stop: asyncio.Event, seconds: float | None, line: _Line
) -> None:
    loop = asyncio.get_running_loop()
    ends = None if seconds is None else loop.time() + seconds
    stopped = asyncio.create_task(stop.wait())
    while not stop.is_set() and (ends is None or loop.time() < ends):
        wait = _LINE_S if ends is None else min(_LINE_S, max(0.0, ends - loop.time()))
        await asyncio.wait({stopped, running}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()  # it ends by an error only
        line.show(feed.state())
    stopped.cancel()


def _line_for(on_stderr: bool) -> _Line:
    return _Line(sys.stderr if on_stderr else sys.stdout)


class _Line:
    """States over each other on a terminal; a line of JSON for each elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._in_place = stream.isatty()

    def show(self, state: FeedStatus) -> None:
        if self._in_place:
            columns = shutil.get_terminal_size().columns
            self._stream.write(f"\r\x1b[2K{_told(state)[: columns - 1]}")
        else:
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


def _told(state: FeedStatus) -> str:
    poller, budget = state.poller, state.budget
    if not poller.open:
        return f"{state.seconds:6.0f} s  the market is closed  records {state.records:,}"
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
