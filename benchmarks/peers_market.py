"""Peers of the market plane: nautilus_trader builds bars, TA-Lib streams compute indicators."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

_FRAMES = {1: "1-SECOND", 60: "1-MINUTE", 300: "5-MINUTE", 900: "15-MINUTE"}


def has_nautilus() -> bool:
    return importlib.util.find_spec("nautilus_trader") is not None


def has_talib() -> bool:
    return importlib.util.find_spec("talib") is not None


class Nautilus:
    """Time bars of nautilus_trader for some symbols; `on_bar` is called at each close."""

    def __init__(
        self, symbols: int, frames: tuple[int, ...], start: float, on_bar: Callable[[Any], object]
    ) -> None:
        component = importlib.import_module("nautilus_trader.common.component")
        aggregation = importlib.import_module("nautilus_trader.data.aggregation")
        data = importlib.import_module("nautilus_trader.model.data")
        provider: Any = importlib.import_module(
            "nautilus_trader.test_kit.providers"
        ).TestInstrumentProvider
        self._data = data
        self._clock = component.TestClock()
        self._clock.set_time(int(start * 1e9))
        self._instruments = [provider.equity(symbol=f"S{n}") for n in range(symbols)]
        self._aggregators: list[list[Any]] = [[] for _ in range(symbols)]
        for instrument, own in zip(self._instruments, self._aggregators, strict=True):
            for frame in frames:
                kind = data.BarType.from_str(f"{instrument.id}-{_FRAMES[frame]}-LAST-INTERNAL")
                one = aggregation.TimeBarAggregator(
                    instrument, kind, on_bar, self._clock,
                    interval_type="right-open", build_with_no_updates=False,
                )  # fmt: skip
                if hasattr(one, "start_timer"):  # in newer versions it is not started at once
                    one.start_timer()
                own.append(one)

    def ticks(self, rows: npt.NDArray[np.void]) -> list[tuple[int, Any]]:
        """Return ticks as objects of nautilus_trader, made before the clock starts."""
        objects = importlib.import_module("nautilus_trader.model.objects")
        identifiers = importlib.import_module("nautilus_trader.model.identifiers")
        buyer = importlib.import_module("nautilus_trader.model.enums").AggressorSide.BUYER
        trade = identifiers.TradeId("1")
        made = []
        for symbol, price, volume, at in rows.tolist():
            number, ns = symbol % len(self._instruments), int(at * 1e9)
            size = objects.Quantity(int(volume) or 1, 0)
            instrument = self._instruments[number].id
            tick = self._data.TradeTick(
                instrument, objects.Price(price, 2), size, buyer, trade, ns, ns
            )
            made.append((number, tick))
        return made

    def push(self, number: int, tick: Any) -> None:
        for event in self._clock.advance_time(tick.ts_event):
            event.handle()
        for aggregator in self._aggregators[number]:
            aggregator.handle_trade_tick(tick)

    def speed(self, ticks: list[tuple[int, Any]]) -> float:
        """Push the ticks and return how many millions a second."""
        began = time.perf_counter()
        for number, tick in ticks:
            self.push(number, tick)
        return len(ticks) / (time.perf_counter() - began) / 1e6


def talib_speed(symbols: int, closes: npt.NDArray[np.float64]) -> float:
    """Update five streams of TA-Lib a symbol with its closes; return millions of closes a second.

    The loop over symbols is Python's, as it is for whoever keeps a stream for each.
    """
    stream: Any = importlib.import_module("talib.stream")
    history = np.asarray(closes[:60], np.float64)
    streams = [
        (
            stream.SMA(history, 20),
            stream.EMA(history, 20),
            stream.RSI(history, 14),
            stream.MACD(history),
            stream.BBANDS(history, 20),
        )
        for _ in range(symbols)
    ]
    values = closes.tolist()
    began = time.perf_counter()
    for close in values:
        for sma, ema, rsi, macd, bands in streams:
            sma.update(close)
            ema.update(close)
            rsi.update(close)
            macd.update(close)
            bands.update(close)
    return len(values) * symbols / (time.perf_counter() - began) / 1e6
