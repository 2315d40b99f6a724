"""The built-in watch: rules, the fail-safe and the switches become messages.

Rules are held against this process's own figures every few seconds. What the fail-safe and the
switches did is read from the database, so that it is told even when another process did it.
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
from qts.domain import Clock, OperationError
from qts.notify.message import Message, Severity, short
from qts.notify.message_store import MessageStore
from qts.notify.rules import RULES, AlertRule

log = telemetry.logger("notify")

LOOK_EVERY_S = 5.0
AGAIN_S = 900.0  # a rule that comes and goes is told so often at most

# Since the channel was opened, and not what is long over.
_SAFETY = (
    "SELECT md5('safety_log ' || id)::uuid, at, code, message, state_before, state_after, actor"
    " FROM safety_log WHERE state_before <> state_after"
    " AND at > greatest(clock_timestamp() - interval '1 hour',"
    " (SELECT min(since) FROM notification_channel)) ORDER BY id"
)
_SWITCHES = (
    "SELECT md5('kill_switch ' || scope || strategy_key || changed_at)::uuid, changed_at, scope,"
    " strategy_key, trading_enabled, reason, changed_by FROM kill_switch"
    " WHERE changed_at > greatest(clock_timestamp() - interval '1 hour',"
    " (SELECT min(since) FROM notification_channel))"
)
Samples = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]


class RuleState:
    """One rule over time."""

    def __init__(self, rule: AlertRule) -> None:
        self.rule = rule
        self._seen: deque[tuple[int, float]] = deque()
        self._since_ns: int | None = None
        self._told_ns: int | None = None

    def look(self, samples: Samples, now_ns: int) -> float | None:
        """The figure, when the owner has to be told of it now."""
        figure = self._figure(samples, now_ns)
        if figure is None or not self.rule.holds(figure):
            self._since_ns = None
            return None
        if self._since_ns is None:
            self._since_ns = now_ns
        ripe = now_ns - self._since_ns >= self.rule.for_s * 1e9
        again = self._told_ns is None or now_ns - self._told_ns >= AGAIN_S * 1e9
        if not ripe or not again:
            return None
        self._told_ns = now_ns
        return figure

    def not_told(self) -> None:
        """It could not be written down: at the next look, then."""
        self._told_ns = None

    def _figure(self, samples: Samples, now_ns: int) -> float | None:
        wanted = self.rule.labels.items()
        found = [
            value for labels, value in samples.get(self.rule.metric, ()) if wanted <= labels.items()
        ]
        if not self.rule.window_s:
            choose = min if self.rule.op == "<" else max
            return choose(found) if found else None
        self._seen.append((now_ns, sum(found)))
        while now_ns - self._seen[0][0] > self.rule.window_s * 1e9:
            self._seen.popleft()
        return self._seen[-1][1] - self._seen[0][1]


class AlertWatcher:
    def __init__(
        self,
        database: Database,
        book: MessageStore,
        channels: Sequence[str],
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        self._database = database
        self._book = book
        self._channels = channels
        self._clock = clock
        self._wake = wake
        self._changed = asyncio.Event()
        self._known: set[UUID] = set()  # told before: the database would say so, at a price
        self._rules = [RuleState(rule) for rule in RULES if not rule.told_by_event]

    async def run(self) -> None:
        """Until it is cancelled; a database that is away is asked again."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            group.create_task(self._keep_looking())

    async def look(self) -> None:
        """Once: what the rules say, and what the fail-safe and the switches did."""
        now = self._clock.now()
        samples = telemetry.metric_samples()
        now_ns = self._clock.monotonic_ns()
        for held in self._rules:
            figure = held.look(samples, now_ns)
            if figure is not None:
                try:
                    await self._tell(_of_rule(held.rule, figure, now))
                except BaseException:
                    held.not_told()
                    raise
        done = [_of_safety(row) for row in await self._database.fetch(_SAFETY)]
        done += [_of_switch(row) for row in await self._database.fetch(_SWITCHES)]
        for message in done:
            if message.event_id not in self._known:
                await self._tell(message)
        self._known = {message.event_id for message in done}

    async def _tell(self, message: Message) -> None:
        if await self._book.note(message, self._channels):
            self._wake()

    async def _listen(self) -> None:
        async with self._database.listen("qts_safety") as listener:
            async for _ in listener:
                self._changed.set()

    async def _keep_looking(self) -> None:
        while True:
            self._changed.clear()
            try:
                await self.look()
            except OperationError as error:
                log.warning("alerts cannot be looked for", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._changed.wait()


def _of_rule(rule: AlertRule, figure: float, now: datetime) -> Message:
    return Message(
        event_id=uuid5(NAMESPACE_OID, f"qts rule {rule.name} {now.isoformat()}"),
        type="ALERT",
        occurred_at=now,
        severity=rule.severity,
        title=f"{rule.name}: {rule.text}",
        body=f"it is {figure:g}; {rule.action}",
        data={"rule": rule.name, "figure": figure},
    )


def _of_safety(row: Row) -> Message:
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


def _of_switch(row: Row) -> Message:
    event_id, at, scope, strategy, enabled, reason, actor = row
    whom = f"strategy {strategy}" if scope == "strategy" else "the account"
    why = f": {reason}" if reason else ""
    return Message(
        event_id=UUID(str(event_id)),
        type="KILL_SWITCH",
        occurred_at=at,
        severity="info" if enabled else "warning",
        title=f"{whom} {'may trade' if enabled else 'is STOPPED'}",
        body=short(f"by {actor}{why}"),
        data={"scope": scope, "tradingEnabled": enabled},
    )
