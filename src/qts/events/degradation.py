"""Pressure of each lane and the degradation level that follows from it.

    LEVEL_0 NORMAL ⇄ LEVEL_1 P3_PAUSED ⇄ LEVEL_2 P2_P3_PAUSED ⇄ LEVEL_3 CRITICAL_ONLY

A level is entered as soon as the load requires it, and left one step at a time after
`recovery_checks` consecutive checks at lower load. Pressure begins at a lane's threshold and ends a
tenth of the lane below it. Both prevent flapping.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import msgspec

from qts.events.config import EventsConfig

HYSTERESIS = 0.1  # of the lane: how far below its threshold pressure ends


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
    """Result of one check."""

    pressures: tuple[Pressure, ...]
    level: DegradationLevel
    changed: tuple[tuple[int, Pressure], ...] = ()  # lanes whose pressure changed


class DegradationController:
    """Level computed from successive fill ratios; uses no clock and no lanes."""

    def __init__(self, config: EventsConfig) -> None:
        self._lanes = config.lanes
        self._recovery_checks = config.recovery_checks
        self._pressures = [Pressure.NORMAL] * 4
        self._lower_checks = 0
        self.level = DegradationLevel.NORMAL
        self.manual_level: DegradationLevel | None = None

    def check(self, fills: Sequence[float]) -> LoadCheck:
        changed = []
        for lane, fill in enumerate(fills):
            new = self._pressure(lane, fill)
            if new != self._pressures[lane]:
                self._pressures[lane] = new
                changed.append((lane, new))
        self._update_level()
        return LoadCheck(tuple(self._pressures), self.level, tuple(changed))

    def _pressure(self, lane: int, fill: float) -> Pressure:
        config, current = self._lanes[lane], self._pressures[lane]
        for threshold, pressure in (
            (config.critical, Pressure.CRITICAL),
            (config.warning, Pressure.WARNING),
        ):
            if fill >= (threshold if current < pressure else max(threshold - HYSTERESIS, 0.001)):
                return pressure
        return Pressure.NORMAL

    def _required_level(self) -> DegradationLevel:
        p0, p1, p2, _ = self._pressures
        if p0 == Pressure.CRITICAL:
            return DegradationLevel.CRITICAL_ONLY
        if p1 == Pressure.CRITICAL or p0 == Pressure.WARNING:
            return DegradationLevel.P2_P3_PAUSED
        if p1 == Pressure.WARNING or p2 == Pressure.CRITICAL:
            return DegradationLevel.P3_PAUSED
        return DegradationLevel.NORMAL

    def _update_level(self) -> None:
        required = self._required_level() if self.manual_level is None else self.manual_level
        if required > self.level or self.manual_level is not None:
            self.level, self._lower_checks = required, 0
        elif required == self.level:
            self._lower_checks = 0
        else:
            self._lower_checks += 1
            if self._lower_checks >= self._recovery_checks:
                self.level, self._lower_checks = DegradationLevel(self.level - 1), 0
