"""Handlers that run in a lane's process and append a line to a trace file for each call."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qts.events import Event, EventHandler, Publisher, batch
from qts.events import payloads as p

TRACE = "QTS_TEST_TRACE"


def write(*words: object) -> None:
    """Append one line in one write, so that a kill right after it cannot tear it."""
    line = " ".join(map(str, (os.getpid(), *words))) + "\n"
    file = os.open(os.environ[TRACE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)


def lines(path: Path) -> list[list[str]]:
    text = path.read_text() if path.exists() else ""
    return [line.split()[1:] for line in text.splitlines()]


def pids(path: Path) -> set[int]:
    return {int(line.split()[0]) for line in path.read_text().splitlines()}


def note(event: Event) -> None:
    write(event.payload.symbol, event.retry_count)


def note_line(event: Event) -> None:
    write(event.payload.message, event.retry_count)


def note_price(event: Event) -> None:
    write("chart", event.payload.price)


def guard_price(event: Event) -> None:
    write("risk", event.payload.price)


def fail_twice(event: Event) -> None:
    write(event.payload.symbol, event.retry_count)
    if event.retry_count < 2:
        raise ValueError("not yet")


def fail(event: Event) -> None:
    raise ValueError(f"no {event.payload.symbol}")


def exit_on_poison(event: Event) -> None:
    """End the process at the symbol `poison`."""
    write(event.payload.symbol, event.retry_count)
    if event.payload.symbol == "poison":
        os._exit(3)


def sys_exit_on_poison(event: Event) -> None:
    """Call sys.exit, which by itself would end only the thread."""
    write(event.payload.message, event.retry_count)
    if event.payload.message == "poison":
        sys.exit("poison")


def kill_on_negative_strength(events: Sequence[Event]) -> None:
    write("batch", *(event.payload.symbol for event in events))
    if any(event.payload.strength < 0 for event in events):
        os.kill(os.getpid(), signal.SIGKILL)


def note_batch(events: Sequence[Event]) -> None:
    write("batch", *(event.payload.symbol for event in events))


def note_rows(rows: npt.NDArray[np.void], symbols: Sequence[str]) -> None:
    write("rows", *symbols, *rows["values"][:, 0])


async def note_async(event: Event) -> None:
    await asyncio.sleep(0)
    write(event.payload.symbol, event.retry_count)


def busy_for_1_ms(event: Event) -> None:
    """Run pure Python for a millisecond, then write a line."""
    end = time.perf_counter() + 0.001
    while time.perf_counter() < end:
        sum(range(100))
    write(event.event_type, event.event_id)


def sleep(_event: Event) -> None:
    write("asleep")
    time.sleep(3600)


def sleep_50_ms(_event: Event) -> None:
    time.sleep(0.05)


class Strategy:
    """Strategy that publishes from the process that created it."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._created_in = os.getpid()

    def __call__(self, event: Event) -> None:
        write("created", self._created_in == os.getpid())
        signal_ = p.SignalPayload(symbol=event.payload.strategy_type, side="BUY", strength=0.5)
        self._publisher.emit("STRATEGY_SIGNAL", signal_, "STRATEGY")
        fill = p.FillPayload(
            order_id="ORD1", symbol="a", filled_qty=1.0, filled_price=2.0, filled_time=3.0
        )
        self._publisher.publish(self._publisher.new_event("FILL_CONFIRMED", fill, "STRATEGY"))


def many_signals(publisher: Publisher) -> Callable[[Event], None]:
    def handle(event: Event) -> None:
        if event.payload.strength == 0:
            for number in range(50):
                payload = p.SignalPayload(symbol=f"s{number}", side="BUY", strength=1.0)
                publisher.emit("SIGNAL_GENERATED", payload)
        write(event.payload.symbol)

    return handle


def publish_invalid(publisher: Publisher) -> Callable[[Event], None]:
    def handle(event: Event) -> None:
        publisher.emit(
            "SIGNAL_GENERATED", p.SignalPayload(symbol="x", side="BUY", strength=float("nan"))
        )

    return handle


def make_batch(_publisher: Publisher) -> EventHandler:
    return batch(note_batch)


def failing_factory(_publisher: Publisher) -> EventHandler:
    raise RuntimeError("no model file")
