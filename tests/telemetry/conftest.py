"""Captured log lines, and telemetry restored after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from qts import telemetry
from tests.telemetry.log_lines import Lines


@pytest.fixture(autouse=True)
def telemetry_restored() -> Iterator[None]:
    telemetry.logger("tests")  # as after any import of a package: lines go to standard error
    before = structlog.get_config()
    structlog.reset_defaults()
    yield
    telemetry.shutdown()
    structlog.configure(**before)


@pytest.fixture
def lines() -> Lines:
    """Capture JSON log lines of every level."""
    stream = Lines()
    telemetry.configure(telemetry.TelemetryConfig(log_level="debug", log_format="json"), stream)
    return stream
