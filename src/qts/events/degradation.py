"""Load: pressure per lane, and the ladder of degradation that follows from it.

    LEVEL_0 NORMAL ⇄ LEVEL_1 P3_PAUSED ⇄ LEVEL_2 P2_P3_PAUSED ⇄ LEVEL_3 CRITICAL_ONLY

A level is entered as soon as the load asks for it, and left one step at a time after so many calm
checks in a row. A lane's pressure begins at its mark and ends a tenth of the lane below it. Both
keep the engine from flapping.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import msgspec

from qts.events.config import EventsConfig

RELEASE = 0.1  # of the lane: how far below its mark a pressure ends


class Pressure(IntEnum):
    NORMAL = 0
    WARNING = 1
    CRITICAL = 2


class DegradationLevel(IntEnum):
    NORMAL = 0
    P3_PAUSED = 1
    P2_P3_PAUSED = 2
    CRITICAL_ONLY = 3  # P0, and of P1 only the handlers marked essential


class LoadCheck(msgspec.Struct, frozen=True):
    """What a check found."""

    pressures: tuple[Pressure, ...]
    level: DegradationLevel
    changed: tuple[tuple[int, Pressure], ...] = ()  # lanes whose pressure is new


class DegradationController:
    """Looks at fill ratios, one check after the other; holds no clock and no lane."""

    def __init__(self, config: EventsConfig) -> None:
        self._lanes = config.lanes
        self._calm_checks = config.recovery_checks
        self._pressures = [Pressure.NORMAL] * 4
        self._calm = 0
        self.level = DegradationLevel.NORMAL
        self.by_hand: DegradationLevel | None = None

    def check(self, fills: Sequence[float]) -> LoadCheck:
        changed = []
        for lane, fill in enumerate(fills):
            new = self._pressure(lane, fill)
            if new != self._pressures[lane]:
                self._pressures[lane] = new
                changed.append((lane, new))
        self._move()
        return LoadCheck(tuple(self._pressures), self.level, tuple(changed))

    def _pressure(self, lane: int, fill: float) -> Pressure:
        config, now = self._lanes[lane], self._pressures[lane]
        for mark, pressure in (
            (config.critical, Pressure.CRITICAL),
            (config.warning, Pressure.WARNING),
        ):
            if fill >= (mark if now < pressure else max(mark - RELEASE, 0.001)):
                return pressure
        return Pressure.NORMAL

    def _asked(self) -> DegradationLevel:
        p0, p1, p2, _ = self._pressures
        if p0 == Pressure.CRITICAL:
            return DegradationLevel.CRITICAL_ONLY
        if p1 == Pressure.CRITICAL or p0 == Pressure.WARNING:
            return DegradationLevel.P2_P3_PAUSED
        if p1 == Pressure.WARNING or p2 == Pressure.CRITICAL:
            return DegradationLevel.P3_PAUSED
        return DegradationLevel.NORMAL

    def _move(self) -> None:
        asked = self._asked() if self.by_hand is None else self.by_hand
        if asked > self.level or self.by_hand is not None:
            self.level, self._calm = asked, 0
        elif asked == self.level:
            self._calm = 0
        else:
            self._calm += 1
            if self._calm >= self._calm_checks:
                self.level, self._calm = DegradationLevel(self.level - 1), 0
