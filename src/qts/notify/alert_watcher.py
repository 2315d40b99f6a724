"""Built-in alerting: alert rules, the fail-safe and the kill switches become messages.

The rules are checked against the metrics of this process every few seconds. Changes of the
fail-safe and the kill switches are read from the database, so that changes by other processes are
reported too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from uuid import NAMESPACE_OID, UUID, uuid5

from qts import telemetry
from qts.database import Database, Row
from qts.domain import AccountKey, Clock, OperationError
from qts.notify.message import Message, Severity, short
from qts.notify.message_store import MessageStore
from qts.notify.rules import RULES, AlertRule

log = telemetry.logger("notify")

CHECK_INTERVAL_S = 5.0
REPEAT_INTERVAL_S = 900.0  # shortest interval between two messages of one rule

# Changes since the first channel was registered, at most an hour old.
_SAFETY = (
    "SELECT md5('safety_log ' || id)::uuid, at, code, message, state_before, state_after, actor"
    " FROM safety_log WHERE broker = $1 AND account = $2 AND state_before <> state_after"
    " AND at > greatest(clock_timestamp() - interval '1 hour',"
    " (SELECT min(since) FROM notification_channel)) ORDER BY id"
)
_SWITCHES = (
    "SELECT md5('kill_switch ' || $1 || $2 || scope || strategy_key || changed_at)::uuid,"
    " changed_at, scope, strategy_key, trading_enabled, reason, changed_by FROM kill_switch"
    " WHERE broker = $1 AND account = $2"
    " AND changed_at > greatest(clock_timestamp() - interval '1 hour',"
    " (SELECT min(since) FROM notification_channel))"
)
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
    """Periodic check of the rules, the fail-safe and the kill switches."""

    def __init__(
        self,
        database: Database,
        store: MessageStore,
        channels: Sequence[str],
        clock: Clock,
        wake: Callable[[], None],
        account: AccountKey | None,
    ) -> None:
        self._database = database
        self._store = store
        self._channels = channels
        self._clock = clock
        self._wake = wake
        self._account = account
        self._changed = asyncio.Event()
        self._enqueued: set[UUID] = set()  # saves an insert that the database would ignore
        self._rules = [RuleState(rule) for rule in RULES if not rule.reported_by_event]

    async def run(self) -> None:
        """Check until cancelled; retry while the database is unreachable."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            group.create_task(self._check_periodically())

    async def check(self) -> None:
        """Enqueue messages of rules that hold, and of fail-safe and kill switch changes."""
        now = self._clock.now()
        samples = telemetry.metric_samples()
        now_ns = self._clock.monotonic_ns()
        for state in self._rules:
            value = state.check(samples, now_ns)
            if value is not None:
                try:
                    await self._enqueue(_rule_message(state.rule, value, now))
                except BaseException:
                    state.not_sent()
                    raise
        changes: list[Message] = []
        if self._account is not None:
            safety = await self._database.fetch(_SAFETY, *self._account)
            switches = await self._database.fetch(_SWITCHES, *self._account)
            changes = [*map(_safety_message, safety), *map(_switch_message, switches)]
        for message in changes:
            if message.event_id not in self._enqueued:
                await self._enqueue(message)
        self._enqueued = {message.event_id for message in changes}

    async def _enqueue(self, message: Message) -> None:
        if await self._store.enqueue(message, self._channels):
            self._wake()

    async def _listen(self) -> None:
        async with self._database.listen("qts_safety") as listener:
            async for _ in listener:
                self._changed.set()

    async def _check_periodically(self) -> None:
        while True:
            self._changed.clear()
            try:
                await self.check()
            except OperationError as error:
                log.warning("alert check failed; retrying", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_INTERVAL_S):
                    await self._changed.wait()


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


def _safety_message(row: Row) -> Message:
    event_id, at, code, text, before, after, actor = row
    severity: Severity = {"FAIL": "critical", "LOCKDOWN": "critical", "WARNING": "warning"}.get(  # type: ignore[assignment]
        after, "info"
    )
    return Message(
        event_id=UUID(str(event_id)),
        type="FAIL_SAFE",
        occurred_at=at,
        severity=severity,
        title=f"Fail-safe {before} to {after}: {code}",
        body=short(f"{text} (by {actor})"),
        data={"code": code, "state": after},
    )


def _switch_message(row: Row) -> Message:
    event_id, at, scope, strategy, enabled, reason, actor = row
    subject = f"strategy {strategy}" if scope == "strategy" else "the account"
    return Message(
        event_id=UUID(str(event_id)),
        type="KILL_SWITCH",
        occurred_at=at,
        severity="info" if enabled else "warning",
        title=f"{subject} {'may trade' if enabled else 'is STOPPED'}",
        body=short(f"by {actor}" + (f": {reason}" if reason else "")),
        data={"scope": scope, "tradingEnabled": enabled},
    )
