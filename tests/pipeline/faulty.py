"""Strategies with the mistakes of a beginner, one each."""

from __future__ import annotations

import sys
from typing import Any

from qts.domain import Tick
from qts.strategies import NoParams, Strategy, View
from tests.pipeline.portfolios import signal


class Healthy(Strategy[NoParams], key="healthy"):
    def on_tick(self, tick: Tick, view: View) -> Any:  # noqa: ARG002
        yield signal(symbol=tick.symbol, at=tick.at)


class Text(Strategy[NoParams], key="text"):
    def on_tick(self, tick: Tick, view: View) -> Any:  # noqa: ARG002
        return "BUY"


class Single(Strategy[NoParams], key="single"):
    def on_tick(self, tick: Tick, view: View) -> Any:  # noqa: ARG002
        return signal(at=tick.at)


class Number(Strategy[NoParams], key="number"):
    def on_tick(self, tick: Tick, view: View) -> Any:  # noqa: ARG002
        return 7


class Mixed(Strategy[NoParams], key="mixed"):
    def on_tick(self, tick: Tick, view: View) -> Any:  # noqa: ARG002
        yield {"symbol": tick.symbol, "side": "BUY"}
        yield signal(at=tick.at)


class Listed(Strategy[NoParams], key="listed"):
    def on_tick(self, tick: Tick, view: View) -> Any:  # noqa: ARG002
        return [signal(at=tick.at), None]


class NotANumber(Strategy[NoParams], key="notanumber"):
    def on_tick(self, tick: Tick, view: View) -> Any:  # noqa: ARG002
        yield signal(at=tick.at)
        yield signal(at=tick.at, quantity=float("nan"))


class Raising(Strategy[NoParams], key="raising"):
    def on_tick(self, tick: Tick, view: View) -> Any:  # noqa: ARG002
        return self.divide(tick)

    def divide(self, tick: Tick) -> Any:
        return tick.price / 0


class Leaving(Strategy[NoParams], key="leaving"):
    def on_tick(self, tick: Tick, view: View) -> Any:  # noqa: ARG002
        sys.exit("that is enough")


class Unprintable(Strategy[NoParams], key="unprintable"):
    def on_tick(self, tick: Tick, view: View) -> Any:  # noqa: ARG002
        return [self]

    def __repr__(self) -> str:
        raise RuntimeError("no name")


class Choosy(Strategy[NoParams], key="choosy"):
    def wants(self, symbol: str) -> bool:
        raise KeyError(symbol)

    def on_tick(self, tick: Tick, view: View) -> Any:  # noqa: ARG002
        return ()


class Rigid(Strategy[NoParams], key="rigid"):
    def set_params(self, params: NoParams) -> None:  # noqa: ARG002
        raise RuntimeError("not while it runs")

    def on_tick(self, tick: Tick, view: View) -> Any:  # noqa: ARG002
        yield signal(at=tick.at)
