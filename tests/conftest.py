"""What every test may ask for."""

pytest_plugins = ["tests.no_skips", "tests.services", "tests.soak"]
