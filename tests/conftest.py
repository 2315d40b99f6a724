"""Plugins, Hypothesis settings and the log level of all tests."""

import logging

import pytest
import structlog
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tests.no_skips",
    "tests.order",
    "tests.preloaded",
    "tests.services",
    "tests.soak",
]

# A slow example on a busy machine is no failure; each test has a timeout.
settings.register_profile("qts", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("qts")


@pytest.fixture(autouse=True)
def info_is_logged() -> None:
    """Log as at the start, whatever level the command of an earlier test has set."""
    if structlog.is_configured():
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
