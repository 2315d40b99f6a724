"""Handlers of lane P3 in a run: live status, metrics, log lines, notifications, daily report.

    DASHBOARD_UPDATE            ─▶ Valkey, where the views read it
    METRIC_RECORD, PERF_UPDATE  ─▶ table of recorded metrics, which /metrics shows
    LOG_WRITE                   ─▶ the log
    NOTIFICATION_SEND           ─▶ stored, unless it is already; the senders of the run wake up
    REPORT_GENERATE             ─▶ files of the daily report, and its notification

They share no memory with the run: with events.p3.isolation = "process" they are built in the lane's
process, from settings that travel through its pipe. Connections open on first use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar
from uuid import NAMESPACE_OID, uuid5

import msgspec

from qts import telemetry
from qts.cache import CacheConfig, CacheStore, StoreWrite
from qts.dashboard.live_status import KEY, TTL_MS
from qts.dashboard.report_page import generate_report, report_message
from qts.database import Database, DatabaseConfig
from qts.domain import AccountKey, OperationError, Secret, SystemClock
from qts.events import Event, EventEngine, Publisher, factory
from qts.notify import STORED, Message, MessageStore, wake_senders
from qts.telemetry import TelemetryConfig

log = telemetry.logger("dashboard")

STATUS_WRITTEN = telemetry.recorded(
    "qts_status_written_seconds", "Unix time of the live status that the views can read."
)
ORDER_LATENCY = telemetry.recorded(
    "qts_order_latency_seconds",
    "Time from the tick that a strategy decided on to the request of its order.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
_LEVELS = {"debug": log.debug, "info": log.info, "warning": log.warning, "error": log.error}

T = TypeVar("T")


class LaneSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the handlers need where they run."""

    account: AccountKey
    database_url: Secret
    database: DatabaseConfig
    cache_url: Secret
    cache: CacheConfig
    telemetry: TelemetryConfig
    channels: tuple[str, ...]  # of notifications
    reports: Path
    metrics: Path  # file of the recorded metrics

    def __reduce__(self) -> Any:
        """Pickle with the secrets: only a lane's process gets them, through its pipe."""
        return _restore, (msgspec.json.encode(self, enc_hook=_reveal),)


OpenStore = Callable[[Secret, CacheConfig], AbstractAsyncContextManager[CacheStore]]


def register_handlers(engine: EventEngine, settings: LaneSettings, open_store: OpenStore) -> None:
    """Register the handlers of P3 with the engine of a run; `open_store` is a named function."""
    for name, make, more in (
        ("DASHBOARD_UPDATE", StatusWriter, (open_store,)),
        ("METRIC_RECORD", MetricRecorder, ()),
        ("PERF_UPDATE", MetricRecorder, ()),
        ("LOG_WRITE", LogWriter, ()),
        ("NOTIFICATION_SEND", NotificationWriter, ()),
        ("REPORT_GENERATE", ReportWriter, ()),
    ):
        made: Any = partial(make, settings, *more)
        made.__wrapped__ = make  # its name in alerts
        engine.on(name, factory(made))


class StatusWriter:
    """Writes the status to Valkey, newest version last."""

    def __init__(
        self, settings: LaneSettings, open_store: OpenStore, _publisher: Publisher
    ) -> None:
        self._key = settings.cache.prefix + KEY
        self._metrics = telemetry.MetricTable.attach(settings.metrics)
        self._store = _OnLoop(lambda: open_store(settings.cache_url, settings.cache))

    async def __call__(self, event: Event) -> None:
        data = event.payload.data
        version: int = data["ver"]
        fields = {"ver": str(version), "json": data["json"]}
        try:
            store = await self._store.get()
            await store.write([StoreWrite.of(self._key, version, TTL_MS, fields)])
        except OperationError as error:  # the next status comes in a quarter of a second
            if due := telemetry.log_every(10.0, "live"):
                log.warning("status not published", error=str(error), **due)
        else:
            self._metrics.record(STATUS_WRITTEN, version / 1000)


class MetricRecorder:
    """Records name and value for /metrics."""

    def __init__(self, settings: LaneSettings, _publisher: Publisher) -> None:
        self._metrics = telemetry.MetricTable.attach(settings.metrics)

    def __call__(self, event: Event) -> None:
        self._metrics.record(event.payload.name, event.payload.value)


class LogWriter:
    """Writes a line to the log."""

    def __init__(self, _settings: LaneSettings, _publisher: Publisher) -> None:
        pass

    def __call__(self, event: Event) -> None:
        write = _LEVELS.get(event.payload.level, log.info)
        write(event.payload.message, source=event.source)


class NotificationWriter:
    """Stores a notification, at most one of a code in a minute, and wakes the senders."""

    def __init__(self, settings: LaneSettings, _publisher: Publisher) -> None:
        self._account = settings.account
        self._channels = settings.channels
        self._database = _OnLoop(lambda: open_database(settings))

    async def __call__(self, event: Event) -> None:
        if not self._channels:
            return
        database = await self._database.get()
        if event.source != STORED:
            channel = event.payload.channel
            wanted = tuple(each for each in self._channels if channel in ("", each))
            await MessageStore(database).enqueue(self._message(event), wanted)
        await wake_senders(database)

    def _message(self, event: Event) -> Message:
        code, text = event.payload.code, event.payload.text
        once = f"{code} {int(event.timestamp) // 60}" if code else event.event_id
        return Message(
            event_id=uuid5(NAMESPACE_OID, f"qts event {self._account} {once}"),
            type="ALERT",
            occurred_at=datetime.fromtimestamp(event.timestamp, UTC),
            title=f"{code or event.source or 'QTS'}: {text}"[:400],
            body=f"from {event.source}" if event.source else "from a handler",
            data={"code": code},
        )


class ReportWriter:
    """Writes the report of a day and stores the notification about it."""

    def __init__(self, settings: LaneSettings, _publisher: Publisher) -> None:
        self._settings = settings

    async def __call__(self, event: Event) -> None:
        settings, data = self._settings, event.payload.data
        day = date.fromisoformat(data["day"])
        account = AccountKey(*data["account"]) if "account" in data else settings.account
        folder = Path(data.get("folder", settings.reports))
        async with open_database(settings) as database:
            report = await generate_report(database, account, day, folder, SystemClock().now())
            if settings.channels:
                await MessageStore(database).enqueue(report_message(report), settings.channels)
                await wake_senders(database)


def open_database(settings: LaneSettings) -> AbstractAsyncContextManager[Database]:
    """Open a pool of one connection."""
    config = msgspec.structs.replace(settings.database, pool_min=1, pool_max=1)
    return Database.open(settings.database_url, config)


class _OnLoop(Generic[T]):
    """Resource that the first use opens on its event loop, and the end of that loop closes."""

    def __init__(self, open_resource: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._open = open_resource
        self._task: asyncio.Task[None] | None = None
        self._resource: asyncio.Future[T] | None = None

    async def get(self) -> T:
        if self._task is None or self._task.done() or self._resource is None:
            self._resource = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._hold(self._resource))
        return await asyncio.shield(self._resource)

    async def _hold(self, opened: asyncio.Future[T]) -> None:
        try:
            async with self._open() as resource:
                opened.set_result(resource)
                await asyncio.Event().wait()
        except OperationError as error:
            if not opened.done():
                opened.set_exception(error)


def _reveal(value: object) -> str:
    if isinstance(value, Secret):
        return value.reveal()
    return str(value)


def _restore(text: bytes) -> LaneSettings:
    """Return the settings in the lane's process, and log there as the run does.

    To standard error: only one process may rotate a log file.
    """
    settings = msgspec.json.decode(
        text, type=LaneSettings, dec_hook=lambda kind, value: kind(value)
    )
    telemetry.configure(msgspec.structs.replace(settings.telemetry, log_file=None))
    return settings
