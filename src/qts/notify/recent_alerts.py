"""The latest alerts of a run, for the dashboard's live status."""

from __future__ import annotations

from collections import deque

import msgspec

from qts.notify.message import Severity

CAPACITY = 50
REPEAT_S = 1.0  # an alert repeated within this time is recorded once


class RecentAlert(msgspec.Struct, frozen=True):
    """Alert for the operator. `at` is in seconds since the Unix epoch."""

    at: float
    severity: Severity
    text: str
    code: str = ""


class RecentAlerts:
    """The last `CAPACITY` alerts, newest first. `add` may be called from any thread."""

    def __init__(self) -> None:
        self._alerts: deque[RecentAlert] = deque(maxlen=CAPACITY)

    def add(self, at: float, severity: Severity, text: str, code: str = "") -> None:
        last = self._alerts[0] if self._alerts else None
        if last is None or (last.text, last.code) != (text, code) or at - last.at > REPEAT_S:
            self._alerts.appendleft(RecentAlert(at, severity, text, code))

    def all(self) -> list[RecentAlert]:
        return list(self._alerts)
