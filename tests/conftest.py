"""What every test may ask for."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.no_skips", "tests.services", "tests.soak"]

# An example that a busy machine takes a second for is no error of ours; a test has its own limit.
settings.register_profile("qts", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("qts")
