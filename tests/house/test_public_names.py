"""The names users may rely on: a change here is a change of contract, and is made on purpose."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

PUBLIC: dict[str, str] = {
    "qts": "__version__",
    "qts.cache": "CacheConfig",
    "qts.config": """
        Config Effective Origin Setting describe load render resolve settings_of template
    """,
    "qts.database": """
        Applied Connection Database DatabaseConfig Isolation Listener Listening Migration
        MigrationStatus Notification Ping Row migrate savepoint status
    """,
    "qts.domain": """
        Clock ConfigError Failed HomeInUse MovableClock OutcomeUnknown QtsError Refused
        ScenarioError SchemaTooNew Secret ServerFailed SystemClock Unreachable
        parse_duration
    """,
    "qts.embedded": """
        Binary EmbeddedConfig Home HomeLock Postgres Servers Valkey default_home
        find_binaries
    """,
    "qts.events": "EventsConfig LaneConfig",
    "qts.router": """
        Burst Handler JournalConfig Layout LiveLine MESSAGE Options Pacing Percentiles Place
        Plan Report Router Scenario Snapshot StallFloor StrategyCount Wait Worker batch
        compiled each load plan shipped watch
    """,
    "qts.telemetry": """
        CONTENT_TYPE Ids LatencyHistogram Span TelemetryConfig Throttle bind carry configure
        context counter current_context every gauge histogram latency lines_dropped logger
        new_trace_id redact_text render shutdown span
    """,
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_locked(module: str) -> None:
    assert set(importlib.import_module(module).__all__) == set(PUBLIC[module].split())


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_there(module: str) -> None:
    face = importlib.import_module(module)
    assert [name for name in PUBLIC[module].split() if not hasattr(face, name)] == []


def test_importing_qts_is_light() -> None:
    """A strategy author pays for what he uses: `import qts` pulls in no driver and no terminal."""
    heavy = {"asyncpg", "redis", "typer", "rich", "uvloop", "opentelemetry"}
    code = "import sys, qts; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert heavy.isdisjoint(loaded.stdout.split())
