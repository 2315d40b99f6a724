"""Built-in alerting: rules that hold become messages, and the latest alerts are kept for the views.

The rules are checked against the metrics of this process every few seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from uuid import NAMESPACE_OID, uuid5

import msgspec

from qts import telemetry
from qts.domain import Clock, OperationError
from qts.notify.message import Message, Severity
from qts.notify.rules import RULES, AlertRule

CAPACITY = 50
MAX_UNSTORED = 1000
REPEAT_S = 1.0  # an alert repeated within this time is recorded once
SAME_CODE_S = 5.0  # a code may be shown before it is stored by at most this time


class RecentAlert(msgspec.Struct, frozen=True):
    """Alert for the operator. `at` is in seconds since the Unix epoch."""

    at: float
    severity: Severity
    text: str
    code: str = ""


class RecentAlerts:
    """The last `CAPACITY` alerts, newest first. `add` may be called from any thread.

    Warnings and critical ones wait to be stored (alert_store.py), the latest `MAX_UNSTORED`.
    """

    def __init__(self) -> None:
        self._alerts: deque[RecentAlert] = deque(maxlen=CAPACITY)
        self._unstored: deque[RecentAlert] = deque(maxlen=MAX_UNSTORED)

    def add(self, at: float, severity: Severity, text: str, code: str = "") -> None:
        last = self._alerts[0] if self._alerts else None
        if last is None or (last.text, last.code) != (text, code) or at - last.at > REPEAT_S:
            alert = RecentAlert(at, severity, text, code)
            self._alerts.appendleft(alert)
            if severity != "info":
                self._unstored.append(alert)

    def next_unstored(self) -> RecentAlert | None:
        """Return the oldest alert that waits to be stored."""
        return self._unstored[0] if self._unstored else None

    def stored(self, alert: RecentAlert) -> None:
        """Wait no more for an alert; it is gone already where newer ones displaced it."""
        if self._unstored and self._unstored[0] is alert:
            self._unstored.popleft()

    def add_message(self, message: Message) -> None:
        """Add a message; a fail-safe code that is listed since its time is not listed twice."""
        at, code = message.occurred_at.timestamp(), str(message.data.get("code", ""))
        if code and any(each.code == code and each.at > at - SAME_CODE_S for each in self.all()):
            return
        self.add(at, message.severity, f"{message.title}: {message.body}", code)

    def all(self) -> list[RecentAlert]:
        return list(self._alerts)


log = telemetry.logger("notify")

CHECK_INTERVAL_S = 5.0
REPEAT_INTERVAL_S = 900.0  # shortest interval between two messages of one rule

Samples = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]


class RuleState:
    """One rule over time."""

    def __init__(self, rule: AlertRule) -> None:
        self.rule = rule
        self._history: deque[tuple[int, float]] = deque()
        self._since_ns: int | None = None
        self._sent_ns: int | None = None

    def check(self, samples: Samples, now_ns: int) -> float | None:
        """Return the value if a message is due now, else None."""
        value = self._value(samples, now_ns)
        if value is None or not self.rule.holds(value):
            self._since_ns = None
            return None
        if self._since_ns is None:
            self._since_ns = now_ns
        lasted = now_ns - self._since_ns >= self.rule.for_s * 1e9
        repeat = self._sent_ns is None or now_ns - self._sent_ns >= REPEAT_INTERVAL_S * 1e9
        if not lasted or not repeat:
            return None
        self._sent_ns = now_ns
        return value

    def not_sent(self) -> None:
        """Make the message due again at the next check: it could not be stored."""
        self._sent_ns = None

    def _value(self, samples: Samples, now_ns: int) -> float | None:
        required = self.rule.labels.items()
        values = [
            value
            for labels, value in samples.get(self.rule.metric, ())
            if required <= labels.items()
        ]
        if not self.rule.window_s:
            choose = min if self.rule.op == "<" else max
            return choose(values) if values else None
        self._history.append((now_ns, sum(values)))
        while now_ns - self._history[0][0] > self.rule.window_s * 1e9:
            self._history.popleft()
        return self._history[-1][1] - self._history[0][1]


class AlertWatcher:
    """Periodic check of the rules against the metrics of this process."""

    def __init__(self, publish: Callable[[Message], Awaitable[None]], clock: Clock) -> None:
        self._publish = publish
        self._clock = clock
        self._rules = [RuleState(rule) for rule in RULES if not rule.reported_by_event]

    async def run(self) -> None:
        """Check until cancelled; retry while the database is unreachable."""
        while True:
            try:
                await self.check()
            except OperationError as error:
                log.warning("alert check failed; retrying", error=str(error))
            await self._clock.sleep(CHECK_INTERVAL_S)

    async def check(self) -> None:
        """Publish messages of the rules that hold."""
        now = self._clock.now()
        samples = telemetry.metric_samples()
        now_ns = self._clock.monotonic_ns()
        for state in self._rules:
            value = state.check(samples, now_ns)
            if value is not None:
                try:
                    await self._publish(_rule_message(state.rule, value, now))
                except BaseException:
                    state.not_sent()
                    raise
                log.warning("alert raised", rule=state.rule.name, value=value)


def _rule_message(rule: AlertRule, value: float, now: datetime) -> Message:
    return Message(
        event_id=uuid5(NAMESPACE_OID, f"qts rule {rule.name} {now.isoformat()}"),
        type="ALERT",
        occurred_at=now,
        severity=rule.severity,
        title=f"{rule.name}: {rule.text}",
        body=f"value {value:g}; {rule.action}",
        data={"rule": rule.name, "figure": value},
    )
