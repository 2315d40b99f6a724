"""Prices of symbols over a tape, thinned for a chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from qts.backtest.bar_tape import BarTape
from qts.backtest.tape import Tape

Prices = list[tuple[float, float]]  # times and prices
_Columns = tuple[npt.NDArray[np.int32], npt.NDArray[np.float64], npt.NDArray[np.float64]]


def price_series(
    tape: Tape | BarTape, symbols: Sequence[str], points: int = 600
) -> dict[str, Prices]:
    """Return about so many prices of each symbol, the last of equal spans of time.

    Reads the tape once more, twice if it does not say when it ends.
    """
    first, last = _span(tape)
    bucket_s = max((last - first) / points, 1e-6)
    found: dict[str, dict[int, tuple[float, float]]] = {symbol: {} for symbol in symbols}
    for symbol, price, at in _columns(tape):
        for name, series in found.items():
            if name not in tape.symbols:
                continue
            rows = np.flatnonzero(symbol == tape.symbols.index(name))
            if not len(rows):
                continue
            bucket = ((at[rows] - first) // bucket_s).astype(np.int64)
            is_last = np.concatenate([np.diff(bucket) > 0, [True]])
            chosen = rows[is_last]
            values = zip(at[chosen].tolist(), price[chosen].tolist(), strict=True)
            series.update(zip(bucket[is_last].tolist(), values, strict=True))
    return {name: [series[key] for key in sorted(series)] for name, series in found.items()}


def _columns(tape: Tape | BarTape) -> Iterator[_Columns]:
    if isinstance(tape, BarTape):
        yield tape.rows["symbol"], tape.rows["close"], tape.rows["at"]
        return
    for chunk in tape:
        valid = (chunk.price > 0) & np.isfinite(chunk.price)
        yield chunk.symbol[valid], chunk.price[valid], chunk.at[valid]


def _span(tape: Tape | BarTape) -> tuple[float, float]:
    first, last = np.inf, -np.inf
    for _, _, at in _columns(tape):
        if len(at):
            first, last = min(first, float(at[0])), float(at[-1])
    return first, last
