"""Strategy on two averages that can end its process or the study, once, where a test says so."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from qts import Bar, IntentType, Side, Signal, Strategy, View


class Params(msgspec.Struct, frozen=True):
    fast: Annotated[int, Meta(ge=1)] = 2
    slow: int = 10

    def __post_init__(self) -> None:
        if self.fast >= self.slow:
            raise ValueError("fast must be below slow")


class Cross(Strategy[Params], key="cross"):
    kind = "PORTFOLIO"
    timeframes = ("1d",)

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        if folder := os.environ.get("TEST_OPTIMISE_FOLDER"):
            _on_start(params, Path(folder))

    def on_bar(self, bar: Bar, view: View) -> Iterable[Signal]:
        closes = view.bars(bar.symbol, "1d", self.params.slow)["close"]
        if len(closes) < self.params.slow:
            return
        is_up = closes[-self.params.fast :].mean() > closes.mean()
        if not view.quantity(bar.symbol):
            if is_up:
                yield Signal(symbol=bar.symbol, side=Side.BUY, at=bar.at)
        elif not is_up:
            exits = IntentType.EXIT_SIGNAL
            yield Signal(symbol=bar.symbol, side=Side.SELL, at=bar.at, intent_type=exits)


def _on_start(params: Params, folder: Path) -> None:
    """Count the start; obey a file `worker-FAST`, `parent-FAST` or `interrupt-FAST` once."""
    with (folder / "starts").open("a") as file:
        file.write(f"{params.fast} {params.slow}\n")
    parent = multiprocessing.parent_process()  # not getppid: a server forks the workers
    if parent is None:
        return
    for name, process, number in (
        ("worker", os.getpid(), signal.SIGKILL),
        ("parent", parent.pid or 0, signal.SIGKILL),
        ("interrupt", parent.pid or 0, signal.SIGINT),
    ):
        order = folder / f"{name}-{params.fast}"
        if order.exists():
            order.unlink()
            os.kill(process, number)
            if name == "parent":
                os.kill(os.getpid(), number)
            signal.pause()  # until the parent ends its workers
