"""`qts dev lanes`: the event lanes under load."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from qts.cli.console import ConfigOption, JsonFile, JsonFileOption
from qts.domain import parse_duration

if TYPE_CHECKING:
    from qts.events import EngineStatus, Event, EventEngine

_INTERVAL_S = 0.5


def lanes(
    duration: Annotated[
        str, typer.Option("--duration", "--for", metavar="TIME", help="How long to run.")
    ] = "10s",
    json_file: JsonFileOption = None,
    config: ConfigOption = None,
) -> int:
    """Flood the event lanes and show them live.

    Shows depth, latency and the merged, dropped and sampled events of P0 to P3.

    Example: qts dev lanes --duration 5s
    """
    from qts.config import resolve
    from qts.events import EventEngine

    seconds = parse_duration(duration)
    output = JsonFile(json_file)
    engine = EventEngine(resolve(config, os.environ).config.events)
    _register(engine)
    with engine, _flood(engine):
        _show(engine, seconds, quiet=output.prints)
    status = engine.status()
    output.write(status)
    return 0 if all(lane.balanced for lane in status.lanes.values()) else 1


def panel(status: EngineStatus, rates: dict[str, float]) -> list[str]:
    """Return the status of the lanes as a table."""
    lines = [
        f"{'Lane':5}{'Depth':>9}{'Max':>9}  {'Status':9}{'p99 ms':>10}{'events/s':>12}"
        f"{'merged':>11}{'dropped':>9}{'sampled':>11}{'dead':>6}"
    ]
    for name, lane in status.lanes.items():
        state = "PAUSED" if lane.paused else {"NORMAL": "OK"}.get(lane.pressure, lane.pressure)
        lines.append(
            f"{name:5}{lane.depth:9,}{lane.capacity:9,}  {state:9}{lane.total.p99:10.2f}"
            f"{rates.get(name, 0):12,.0f}{lane.collapsed:11,}{lane.dropped:9,}"
            f"{lane.sampled:11,}{lane.dead:6,}"
        )
    lines.append(f"{status.level}; dead letters: {status.dead_letters}")
    return lines


def _show(engine: EventEngine, seconds: float, quiet: bool) -> None:
    before, began = engine.status(), time.monotonic()
    last, shown = began, 0
    in_place = sys.stdout.isatty()
    while time.monotonic() - began < seconds:
        time.sleep(min(_INTERVAL_S, seconds))
        now, status = time.monotonic(), engine.status()
        rates = {
            name: (lane.handled - before.lanes[name].handled) / (now - last)
            for name, lane in status.lanes.items()
        }
        before, last = status, now
        if quiet:
            continue
        lines = panel(status, rates)
        typer.echo((f"\x1b[{shown}A" if in_place and shown else "") + "\n".join(lines))
        shown = len(lines)


def _register(engine: EventEngine) -> None:
    engine.on("FILL_*", ignore)
    engine.on("PRICE_TICK", ignore)
    engine.on("STRATEGY_EVALUATE", compute)
    engine.on("LOG_WRITE", sleep)


# Module-level functions: an isolated lane imports its handlers by name.
def ignore(_event: Event) -> None:
    """Do nothing."""


def compute(_event: Event) -> None:
    sum(number * number for number in range(20_000))


def sleep(_event: Event) -> None:
    time.sleep(0.0005)


@contextlib.contextmanager
def _flood(engine: EventEngine) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=_publish, args=(engine, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _publish(engine: EventEngine, stop: threading.Event) -> None:
    from qts.events import payloads as p

    fill = p.FillPayload(order_id="1", symbol="005930", filled_qty=1, filled_price=1, filled_time=1)
    ticks = [
        engine.new_event("PRICE_TICK", p.PriceTick(symbol=f"{n:06}", price=1.0), "demo")
        for n in range(500)
    ]
    evaluations = [
        engine.new_event("STRATEGY_EVALUATE", p.StrategyEvaluate(strategy_type=f"S{n}"), "demo")
        for n in range(50)
    ]
    line = engine.new_event("LOG_WRITE", p.LogWrite(message="demo"), "demo")
    while not stop.wait(0.01):
        engine.emit("FILL_CONFIRMED", fill, "demo")
        engine.publish_many(ticks)
        engine.publish_many(evaluations)
        engine.publish_many([line] * 1000)
