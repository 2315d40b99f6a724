"""A place to read log lines from, and telemetry put back as it was after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from qts import telemetry
from tests.telemetry.log_lines import Lines


@pytest.fixture(autouse=True)
def telemetry_restored() -> Iterator[None]:
    telemetry.logger("tests")  # as any import of a room has it: lines go to standard error
    before = structlog.get_config()
    structlog.reset_defaults()
    yield
    telemetry.shutdown()
    structlog.configure(**before)


@pytest.fixture
def lines() -> Lines:
    """JSON logs of every level, from now on, land here."""
    stream = Lines()
    telemetry.configure(telemetry.TelemetryConfig(log_level="debug", log_format="json"), stream)
    return stream
