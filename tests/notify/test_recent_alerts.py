"""The latest alerts of a run."""

from __future__ import annotations

from qts.notify import RecentAlerts


def test_a_repeated_alert_is_recorded_once_and_the_oldest_are_dropped() -> None:
    alerts = RecentAlerts()
    for at in (1.0, 1.2, 3.0):
        alerts.add(at, "warning", "P1 is full")
    assert [alert.at for alert in alerts.all()] == [3.0, 1.0]
    for at in range(1000):
        alerts.add(float(at * 2), "info", str(at))
    assert len(alerts.all()) == 50
