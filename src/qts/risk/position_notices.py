"""Notices about the positions that the stops watch, each once per position or period.

GR070  its trailing stop moved more than 60 times in a minute
GR071  its worst price has used 80 % of the adverse excursion that closes it
GR072  it has been held for 80 % of its time limit
AN001  its price jumped
AN020  the open profit of all positions jumped
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from qts import telemetry
from qts.domain import Clock
from qts.risk.config import StopsConfig

NEAR = 0.8  # of a limit
MAX_MOVES = 60  # of a trailing stop in a minute
PERIOD_S = 60.0


class _Seen:
    """A position at the last check."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.entered_ns: int = row["entered_ns"]
        self.last: float = row["last"]
        self.trailing: float | None = row["trailing"]
        self.moves: deque[int] = deque(maxlen=MAX_MOVES + 1)  # when its trailing stop moved
        self.raised: set[str] = set()


class PositionNotices:
    """Compares the stops' positions from check to check; for the thread of the micro risk loop."""

    def __init__(
        self, config: StopsConfig, trip: Callable[[str, str], object], clock: Clock
    ) -> None:
        self._config = config
        self._trip = trip
        self._clock = clock
        self._throttle = telemetry.LogThrottle(clock.monotonic_ns)
        self._seen: dict[str, _Seen] = {}
        self._profit: tuple[dict[str, float], float] | None = None  # quantities, open profit

    def check(
        self, rows: Mapping[str, Mapping[str, Any]], limits_s: Mapping[str, float], equity: float
    ) -> None:
        """Compare positions by symbol, with the longest time that each may be held (0: any)."""
        self._seen = {symbol: each for symbol, each in self._seen.items() if symbol in rows}
        for symbol, row in rows.items():
            seen = self._seen.get(symbol)
            if seen is None or seen.entered_ns != row["entered_ns"]:
                seen = self._seen[symbol] = _Seen(row)
            self._check_limits(symbol, row, seen, limits_s.get(symbol, 0.0))
            self._check_moves(symbol, row, seen)
            seen.last, seen.trailing = row["last"], row["trailing"]
        self._check_profit(rows, equity)

    def _check_limits(
        self, symbol: str, row: Mapping[str, Any], seen: _Seen, limit_s: float
    ) -> None:
        average, sign = row["average"], 1.0 if row["quantity"] > 0 else -1.0
        worst = sign * (average - row["worst"]) / average if average > 0 else 0.0
        if worst >= NEAR * row["mae_full"]:
            text = f"{symbol}: {worst:.2%}, closed at {row['mae_full']:.2%}"
            self._raise_once(seen, "GR071", text)
        held_s = (self._clock.monotonic_ns() - row["entered_ns"]) / 1e9
        if limit_s > 0 and held_s >= NEAR * limit_s:
            text = f"{symbol}: held for {held_s:.0f} s, closed after {limit_s:.0f} s"
            self._raise_once(seen, "GR072", text)

    def _check_moves(self, symbol: str, row: Mapping[str, Any], seen: _Seen) -> None:
        now_ns = self._clock.monotonic_ns()
        if row["trailing"] != seen.trailing and seen.trailing is not None:
            seen.moves.append(now_ns)
            is_often = len(seen.moves) > MAX_MOVES and now_ns - seen.moves[0] < PERIOD_S * 1e9
            if is_often and self._throttle.every(PERIOD_S, ("GR070", symbol)):
                self._trip("GR070", f"{symbol}: more than {MAX_MOVES} times in a minute")
        if abs(row["last"] - seen.last) > self._config.jump * seen.last and self._throttle.every(
            PERIOD_S, ("AN001", symbol)
        ):
            self._trip("AN001", f"{symbol}: from {seen.last:g} to {row['last']:g}")

    def _check_profit(self, rows: Mapping[str, Mapping[str, Any]], equity: float) -> None:
        held = {symbol: row["quantity"] for symbol, row in rows.items()}
        profit = sum((row["last"] - row["average"]) * row["quantity"] for row in rows.values())
        before, self._profit = self._profit, (held, profit)
        if before is None or before[0] != held or equity <= 0:
            return
        change = (profit - before[1]) / equity
        if abs(change) > self._config.profit_jump and self._throttle.every(PERIOD_S, "AN020"):
            self._trip("AN020", f"by {change:+.2%} of the equity between two checks")

    def _raise_once(self, seen: _Seen, code: str, text: str) -> None:
        if code not in seen.raised:
            seen.raised.add(code)
            self._trip(code, text)
