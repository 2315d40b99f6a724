"""Alerting: rules that hold become messages, and what a run raises stays open until acknowledged.

The rules are checked against the metrics of this process every few seconds. The latest alerts are
in memory, for the views; the database has each until an operator acknowledges it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from uuid import NAMESPACE_OID, uuid5

import msgspec

from qts import telemetry
from qts.database import Database
from qts.domain import AccountKey, Clock, OperationError, RefusedError
from qts.notify.message import Message, Severity
from qts.notify.rules import RULES, AlertRule

log = telemetry.logger("notify")


CAPACITY = 50
MAX_UNSTORED = 1000
REPEAT_S = 1.0  # an alert repeated within this time is recorded once
SAME_CODE_S = 5.0  # a code may be shown before it is stored by at most this time

CHECK_INTERVAL_S = 5.0
REPEAT_INTERVAL_S = 900.0  # shortest interval between two messages of one rule
WRITE_INTERVAL_S = 0.25


class RecentAlert(msgspec.Struct, frozen=True):
    """Alert for the operator. `at` is in seconds since the Unix epoch."""

    at: float
    severity: Severity
    text: str
    code: str = ""


class RecentAlerts:
    """The last `CAPACITY` alerts, newest first. `add` may be called from any thread.

    Warnings and critical ones wait to be stored (`AlertWriter`), the latest `MAX_UNSTORED`.
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


_ADD = (
    "INSERT INTO alert AS a (account, severity, code, message, first_at, last_at)"
    " VALUES ($1, $2, $3, $4, $5, $5)"
    " ON CONFLICT (account, severity, code, md5(message)) WHERE acknowledged_at IS NULL"
    " DO UPDATE SET times = a.times + 1, last_at = greatest(a.last_at, $5)"
)
_LIST = (
    "SELECT id, account, severity, code, message, first_at, last_at, times, acknowledged_at,"
    " acknowledged_by, note FROM alert"
    " WHERE account = ANY ($1::text[]) AND ($3 OR acknowledged_at IS NULL)"
    " ORDER BY acknowledged_at IS NOT NULL, last_at DESC LIMIT $2"
)
_ACKNOWLEDGE = (
    "UPDATE alert SET acknowledged_at = clock_timestamp(), acknowledged_by = $3, note = $4"
    " WHERE account = ANY ($1::text[]) AND acknowledged_at IS NULL"
    " AND ($2::bigint[] IS NULL OR id = ANY ($2))"
)


class StoredAlert(msgspec.Struct, frozen=True, kw_only=True):
    """Alert of a run; `times` counts how often it came while it was open."""

    id: int
    account: str
    severity: Severity
    code: str
    message: str
    first_at: datetime
    last_at: datetime
    times: int
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    note: str


class AlertStore:
    """Warnings and critical alerts of the runs of these accounts."""

    def __init__(self, database: Database, accounts: Sequence[AccountKey]) -> None:
        self._database = database
        self._accounts = [str(key) for key in accounts]

    async def add(self, alert: RecentAlert) -> None:
        """Add an alert of the first account; one that is open already counts up."""
        at = datetime.fromtimestamp(alert.at, UTC)
        account = self._accounts[0]
        await self._database.execute(_ADD, account, alert.severity, alert.code, alert.text, at)

    async def rows(self, limit: int, *, acknowledged: bool) -> list[StoredAlert]:
        """Return open alerts, newest first, then acknowledged ones if they are asked for."""
        rows = await self._database.fetch(_LIST, self._accounts, limit, acknowledged)
        return [StoredAlert(**dict(row.items())) for row in rows]

    async def mark_acknowledged(self, ids: Sequence[int] | None, actor: str, note: str) -> int:
        """Acknowledge open alerts, all of them without `ids`; return how many were open."""
        done = await self._database.execute(_ACKNOWLEDGE, self._accounts, ids, actor, note)
        count = int(done.split()[-1])
        if ids and not count:
            raise RefusedError(
                f"alert {', '.join(map(str, ids))} is not open; see qts ops alerts list"
            )
        return count


class AlertWriter:
    """Task of a run that stores its alerts; while the database is away, they wait in memory."""

    def __init__(self, store: AlertStore, alerts: RecentAlerts, clock: Clock) -> None:
        self._store = store
        self._alerts = alerts
        self._clock = clock

    async def run(self) -> None:
        while True:
            await self.write()
            await self._clock.sleep(WRITE_INTERVAL_S)

    async def write(self) -> None:
        while (alert := self._alerts.next_unstored()) is not None:
            try:
                await self._store.add(alert)
            except OperationError as error:
                if due := telemetry.log_every(10.0, "alerts not stored"):
                    log.warning("alert not stored; retrying", error=str(error), **due)
                return
            self._alerts.stored(alert)
