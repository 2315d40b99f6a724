"""Simulated time: the market clock of a simulator, and the same time for its clients."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from qts.domain import Clock

_NS = 10**9


class SimulatedClock:
    """Clock for a client that runs at the speed of a simulator."""

    def __init__(self, clock: Clock, start: datetime, speed: float) -> None:
        self._clock = clock
        self._speed = speed
        self._milli = round(speed * 1000)
        self._start = start.astimezone(UTC)
        self._began_ns = self.monotonic_ns()

    def now(self) -> datetime:
        return self._start + timedelta(microseconds=(self.monotonic_ns() - self._began_ns) // 1000)

    def monotonic_ns(self) -> int:
        """Return a multiple of the machine's time, so that it continues across processes."""
        return self._clock.monotonic_ns() * self._milli // 1000

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds / self._speed)


class MarketClock:
    """Clock that can be paused and advanced, in seconds of Korean time as in `market.sessions`."""

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
        """Return the real seconds until the next second of the market."""
        if self._paused:
            return 0.2  # poll for the end of the pause
        return (_NS - self.now_ns() % _NS) / _NS / self._speed

    def set(self, speed: float | None = None, paused: bool | None = None) -> None:
        self._settle()
        self._speed = self._speed if speed is None else speed
        self._paused = self._paused if paused is None else paused

    def advance(self, seconds: float) -> None:
        """Move at once by `seconds` of the market."""
        self._settle()
        self._reached_ns += round(seconds * _NS)

    def _settle(self) -> None:
        self._reached_ns = self.now_ns()
        self._anchor_ns = self._clock.monotonic_ns()
