"""Plugins, Hypothesis settings and the log level of all tests."""

import gc
import logging
from collections.abc import Generator

import pytest
import structlog
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tests.no_skips",
    "tests.order",
    "tests.preloaded",
    "tests.services",
    "tests.soak",
    "tests.time_limit",
]

# A slow example on a busy machine is no failure; each test has a timeout.
COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("check", COMMON, max_examples=50)
settings.register_profile("soak", COMMON, max_examples=200)


def pytest_configure(config: pytest.Config) -> None:
    """Try four times as many examples in a soak; a test may set another number for both."""
    settings.load_profile("soak" if "soak" in config.option.markexpr else "check")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage among the modules and tests: they stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def info_is_logged() -> None:
    """Log as at the start, whatever level the command of an earlier test has set."""
    if structlog.is_configured():
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
