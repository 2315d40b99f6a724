"""The ticks that the stops of a run have evaluated, and when, in a file that a test reads."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from qts.domain import Tick
from qts.pipeline.engine import AccountStops
from qts.pipeline.tick_publisher import TickPublisher

VARIABLE = "FAULTS_TICKS_FILE"


class EvaluatedTick(NamedTuple):
    at: float  # on the clock that all processes of a machine share
    pid: int
    symbol: str


def read(path: Path) -> list[EvaluatedTick]:
    lines = (line.split() for line in path.read_text().splitlines())
    return sorted(EvaluatedTick(float(at), int(pid), symbol) for at, pid, symbol in lines)


def install() -> None:
    """Write each tick after the stops have seen it, to the file that the environment names."""
    if not (name := os.environ.get(VARIABLE)):
        return
    file = Path(name).open("a", buffering=1)  # noqa: SIM115 - until the process ends
    watching: list[Any] = []
    create, publish = AccountStops.__init__, TickPublisher.__call__

    def created(self: AccountStops, *given: Any) -> None:
        create(self, *given)
        watching.append(self.micro_risk.stops)

    def published(self: TickPublisher, tick: Tick) -> None:
        before = self.count
        publish(self, tick)
        if self.count == before:  # not published: the stops have not seen it
            return
        for stops in watching:
            held = stops.position(tick.symbol)
            if held is not None and held["last"] == tick.price:
                file.write(f"{time.monotonic():.6f} {os.getpid()} {tick.symbol}\n")

    AccountStops.__init__ = created  # type: ignore[method-assign, assignment]
    TickPublisher.__call__ = published  # type: ignore[method-assign]
