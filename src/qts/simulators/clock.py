"""The market's clock: runs at a multiple of the machine's, can be paused and pushed on."""

from __future__ import annotations

from qts.domain import Clock

_NS = 10**9


class MarketClock:
    """Seconds in Korean time, as `market.sessions` counts them."""

    def __init__(self, clock: Clock, start: int, speed: float = 1.0) -> None:
        self._clock = clock
        self._speed = speed
        self._paused = False
        self._anchor_ns = clock.monotonic_ns()
        self._reached_ns = start * _NS

    @property
    def speed(self) -> float:
        return self._speed

    @property
    def paused(self) -> bool:
        return self._paused

    def now_ns(self) -> int:
        passed = 0 if self._paused else self._clock.monotonic_ns() - self._anchor_ns
        return self._reached_ns + int(passed * self._speed)

    def now(self) -> int:
        return self.now_ns() // _NS

    def until_next_s(self) -> float:
        """Seconds of the machine until the market's next one; a paused clock is looked at often."""
        if self._paused:
            return 0.2
        return (_NS - self.now_ns() % _NS) / _NS / self._speed

    def set(self, speed: float | None = None, paused: bool | None = None) -> None:
        self._settle()
        self._speed = self._speed if speed is None else speed
        self._paused = self._paused if paused is None else paused

    def push(self, seconds: float) -> None:
        """Go on at once by so many seconds of the market."""
        self._settle()
        self._reached_ns += round(seconds * _NS)

    def _settle(self) -> None:
        self._reached_ns = self.now_ns()
        self._anchor_ns = self._clock.monotonic_ns()
