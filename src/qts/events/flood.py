"""The load of the proof of isolation: P0 paced, P1 flowing, P2 and P3 in floods."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from qts.events import payloads as p
from qts.events.event import Event

_FLOOD_P2, _FLOOD_P3 = 10_000, 50_000
_FLOOD_EVERY_S = 2.0
_STRATEGIES = 8


class Pressed(Protocol):
    """The part of an engine that is pressed."""

    def event(self, name: str, payload: p.Payload, source: str = "") -> Event: ...
    @property
    def publish(self) -> Any: ...
    @property
    def publish_many(self) -> Any: ...


class Pressers:
    """Publishers on three threads, until `stop`."""

    def __init__(
        self, engine: Pressed, stop: threading.Event, p0_per_s: float, ticks_per_s: float
    ) -> None:
        self._engine = engine
        self._stop = stop
        self._p0_per_s = p0_per_s
        self._ticks_per_s = ticks_per_s
        self.sent: list[str] = []  # the ids of P0, in order
        self.late_ms: list[float] = []  # how late the publisher itself was, each time
        self._threads = [
            threading.Thread(target=each, daemon=True)
            for each in (self._publish_p0, self._publish_ticks, self._flood)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _publish_p0(self) -> None:
        begin = time.monotonic()
        for turn in _paced(self._p0_per_s, self._stop):
            self.late_ms.append((time.monotonic() - begin - turn / self._p0_per_s) * 1e3)
            fill = p.FillPayload(
                order_id="1", symbol="005930", filled_qty=turn + 1, filled_price=1, filled_time=1
            )
            event = self._engine.event("FILL_CONFIRMED", fill, "verify")
            self.sent.append(event.event_id)
            self._engine.publish(event)

    def _publish_ticks(self) -> None:
        ticks = [
            self._engine.event("PRICE_TICK", p.PriceTick(symbol=f"{n:06}", price=1.0), "verify")
            for n in range(250)
        ]
        per_turn = max(1, round(self._ticks_per_s / 100))
        for turn in _paced(100, self._stop):
            first = turn * per_turn % len(ticks)
            self._engine.publish_many(ticks[first : first + per_turn])

    def _flood(self) -> None:
        engine = self._engine
        p2 = [
            engine.event("STRATEGY_EVALUATE", p.StrategyEvaluate(strategy_type=f"S{n}"), "verify")
            for n in range(_STRATEGIES)
        ]
        line = engine.event("LOG_WRITE", p.LogWrite(message="x"), "verify")
        report = engine.event("REPORT_GENERATE", p.ReportGenerate(report="x"), "verify")
        while not self._stop.is_set():
            engine.publish(report)
            self._in_hundreds((p2 * 13)[:100], _FLOOD_P2)
            self._in_hundreds([line] * 100, _FLOOD_P3)
            self._stop.wait(_FLOOD_EVERY_S)

    def _in_hundreds(self, events: Sequence[Event], count: int) -> None:
        for _ in range(count // 100):
            if self._stop.is_set():
                return
            self._engine.publish_many(events)


def _paced(per_s: float, stop: threading.Event) -> Iterator[int]:
    turn, begin = 0, time.monotonic()
    while not stop.is_set():
        yield turn
        turn += 1
        stop.wait(max(0.0, begin + turn / per_s - time.monotonic()))
