"""Plugins and Hypothesis settings of all tests."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.no_skips", "tests.services", "tests.soak"]

# A slow example on a busy machine is no failure; each test has a timeout.
settings.register_profile("qts", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("qts")
