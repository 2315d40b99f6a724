"""Lane P3 of a run: every type is handled, in threads and in a process, also when it is paused."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from qts import telemetry
from qts.app.account_configs import SimulatedVenue
from qts.app.trading import TradingSystem
from qts.cache import CacheConfig
from qts.cache.redis import RedisStore
from qts.config import Config
from qts.dashboard import LiveStatus, read_live
from qts.dashboard.lane_handlers import STATUS_WRITTEN, LaneSettings
from qts.dashboard.live_status import TTL_MS
from qts.database import Database, DatabaseConfig
from qts.domain import Secret
from qts.embedded import Home
from qts.events import Catalogue, DegradationLevel, Event, Priority
from qts.events import payloads as p
from qts.pipeline import SEOUL
from qts.telemetry import TelemetryConfig
from tests.accounts import PAPER, trading_system
from tests.dashboard.timing import TIMEOUT_S
from tests.outbox.kit import until

P3_TYPES = [each.name for each in Catalogue() if each.priority == Priority.P3]


class Run:
    """A run on a simulated market, with its status as another process reads it."""

    def __init__(self, trading: TradingSystem, store: RedisStore, folder: Path) -> None:
        self.trading = trading
        self.folder = folder
        self._store = store

    async def live(self) -> LiveStatus | None:
        return await read_live(self._store, self.trading.accounts[0].config.cache.prefix)

    async def status(self, holds: Callable[[LiveStatus], object]) -> LiveStatus:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                live = await self.live()
                if live is not None and holds(live):
                    return live
                await asyncio.sleep(0.02)

    def emit(self, name: str, payload: p.Payload, source: str = "test") -> None:
        self.trading.engine.emit(name, payload, source)


@asynccontextmanager
async def running(
    database: Database, valkey_url: Secret, folder: Path, isolation: str = "thread"
) -> AsyncIterator[Run]:
    home = Home.at(folder / "home")
    home.create_directories()
    config = msgspec.convert(
        {
            "feed": {"venue": "upbit"},
            "simulator": {"symbols": 20, "speed": 60},
            "cache": {
                "prefix": f"p3-{os.getpid()}:",
                "socket_timeout_ms": 5000,
                "connect_timeout_ms": 5000,
            },
            "pipeline": {"strategies": ["tests.acceptance.turner:Turner"]},
            "notify": {"log": True, "batch_window_s": 0},
            "events": {"p3": {"queue_size": 50_000, "overflow": "sample", "isolation": isolation}},
        },
        Config,
    )
    simulated = SimulatedVenue(home, config.simulator, "upbit")
    await asyncio.to_thread(simulated.__enter__)
    try:
        settings = await asyncio.to_thread(simulated.settings, config)
        settings = msgspec.structs.replace(settings, home=home.path)
        async with (
            trading_system(settings, database, simulated.keys) as trading,
            RedisStore.open(valkey_url, settings.cache) as store,
        ):
            async with trading.open(valkey_url):
                yield Run(trading, store, home.path / "reports")
            assert await read_live(store, trading.accounts[0].config.cache.prefix) is None
    finally:
        await asyncio.to_thread(simulated.__exit__)


def sample(metric: str, **labels: str) -> float | None:
    found = telemetry.metric_samples().get(metric, [])
    return next((value for given, value in found if labels.items() <= given.items()), None)


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_every_type_of_p3_is_handled(
    isolation: str, database: Database, valkey_url: Secret, tmp_path: Path
) -> None:
    async with running(database, valkey_url, tmp_path, isolation) as run:
        trading, engine = run.trading, run.trading.engine
        if isolation == "process":
            assert engine.pids()["P3"] not in (0, os.getpid())
        first = await run.status(lambda live: live.ticks and live.money.equity)
        await run.status(lambda live: live.at > first.at)  # DASHBOARD_UPDATE, again and again
        assert first.pid == os.getpid()

        async def metrics_are_exported() -> bool:  # METRIC_RECORD and PERF_UPDATE
            orders = sample("qts_order_latency_seconds_count") or 0
            return bool(sample("qts_equity_won") and sample("qts_lane_rate", lane="P1") and orders)

        await until(metrics_are_exported, TIMEOUT_S)
        equity = (await run.status(lambda live: live.money.equity)).money.equity
        assert sample("qts_equity_won") == pytest.approx(float(equity), rel=0.2)
        run.emit("METRIC_RECORD", p.MetricRecord(name='my "own"', value=4.5))
        run.emit("LOG_WRITE", p.LogWrite(message="a line"))
        run.emit("NOTIFICATION_SEND", p.NotificationSend(text="look here", code="MINE"))
        today = trading.clock.now().astimezone(SEOUL).date()
        run.emit("REPORT_GENERATE", p.ReportGenerate(report="daily", data={"day": str(today)}))

        async def is_all_there() -> bool:
            rows = await database.fetch("SELECT message FROM notification_log WHERE state = 'SENT'")
            texts = " ".join(row[0] for row in rows)
            files = (run.folder / f"{today}.json").exists()
            return files and "MINE: look here" in texts and "Daily report" in texts

        await until(is_all_there, TIMEOUT_S)
        assert sample("qts_recorded", name='my "own"') == 4.5
        assert b'qts_recorded{name="my \\"own\\""} 4.5' in telemetry.render_metrics()
        p3 = engine.status().lanes["P3"]
        assert p3.handled > len(P3_TYPES)
        assert (p3.dead, p3.dropped, p3.sampled) == (0, 0, 0)
        for name in P3_TYPES:
            assert engine.runtime._handlers.handlers_of(name), name


async def test_a_paused_p3_keeps_the_last_status_and_its_age(
    database: Database, valkey_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(database, valkey_url, tmp_path) as run:
        engine = run.trading.engine
        await run.status(lambda live: live.ticks)
        engine.degrade(DegradationLevel.P3_PAUSED)
        published: Counter[str] = Counter()
        try_publish = engine.try_publish

        def counting(event: Event) -> bool:
            published[event.event_type] += 1
            return try_publish(event)

        monkeypatch.setattr(engine, "try_publish", counting)
        await asyncio.sleep(TTL_MS / 1000 + 2)  # time itself is what is tested: the TTL passes
        written = run.trading._status._metrics.get(STATUS_WRITTEN)
        paused = await run.live()
        assert paused is not None, "the status expired while P3 was paused"
        assert run.trading.clock.now().timestamp() - paused.at > 5
        assert paused.at == pytest.approx(written or 0, abs=0.01)
        assert published["DASHBOARD_UPDATE"] <= 1  # one waits; nothing piles up behind it
        engine.degrade(None)
        await run.status(lambda live: live.at > paused.at + 5)


async def test_a_fail_safe_message_is_sent_while_p3_is_paused(
    database: Database, valkey_url: Secret, tmp_path: Path
) -> None:
    async with running(database, valkey_url, tmp_path) as run:
        await run.status(lambda live: live.ticks)
        run.trading.engine.degrade(DegradationLevel.P3_PAUSED)
        await run.trading.accounts[0].fail_safe.trip("FS070", "a test")

        async def is_sent() -> bool:
            rows = await database.fetch("SELECT message FROM notification_log WHERE state = 'SENT'")
            return any("FS070" in row[0] for row in rows)

        await until(is_sent, TIMEOUT_S)
        assert run.trading.engine.status().lanes["P3"].paused


async def test_a_full_p3_loses_no_stored_message(
    database: Database, valkey_url: Secret, tmp_path: Path
) -> None:
    """SAMPLE refuses nine of ten events of a full lane; the message was stored before."""
    async with running(database, valkey_url, tmp_path) as run:
        engine = run.trading.engine
        await run.status(lambda live: live.ticks)
        engine.pause(Priority.P3)
        line = p.LogWrite(message="flood", level="debug")
        engine.publish_many([engine.new_event("LOG_WRITE", line) for _ in range(50_100)])
        assert engine.status().lanes["P3"].sampled
        await run.trading.accounts[0].fail_safe.trip("FS070", "a test")

        async def are_sent() -> bool:
            rows = await database.fetch("SELECT message FROM notification_log WHERE state = 'SENT'")
            return any("FS070" in row[0] for row in rows)

        await until(are_sent, TIMEOUT_S)


def test_secrets_travel_only_by_pickle(tmp_path: Path) -> None:
    """The settings of the handlers show no secret; the lane's process gets them whole."""
    settings = LaneSettings(
        account=PAPER,
        database_url=Secret("postgresql://u:hidden@h/d"),
        database=DatabaseConfig(),
        cache_url=Secret("redis://:hidden@h"),
        cache=CacheConfig(),
        telemetry=TelemetryConfig(),
        channels=("log",),
        reports=tmp_path,
        metrics=tmp_path / "m",
    )
    assert "hidden" not in repr(settings)
    try:
        copy: Any = pickle.loads(pickle.dumps(settings))  # noqa: S301 - our own bytes
    finally:
        telemetry.shutdown()
    assert copy == settings
