"""Conformance suites of the ports that packages of others implement; they need pytest.

A test class inherits a suite and the fixtures that it names:

    class Fixtures:
        @pytest.fixture
        def venue(self): return MyVenue()

        @pytest.fixture
        def settings(self): return MyConfig(url=SANDBOX)

    class TestVenue(Fixtures, VenueSuite): ...
    class TestQuotes(Fixtures, QuoteSuite): ...

The tests are coroutines: set `asyncio_mode = "auto"` of pytest-asyncio. docs/venues.md goes through
an example.
"""

from typing import Any

from qts._exports import lazy_exports

try:
    import pytest
    import pytest_asyncio as _  # noqa: F401 - runs the tests
except ImportError as error:
    raise ImportError(
        f"qts.testing needs {error.name}, which is not installed: pip install pytest pytest-asyncio"
    ) from None

_load, _names, __all__ = lazy_exports(__name__, __file__)
# Failed assertions of the suites show the values compared, as those of the package's own tests do.
_SUITES = ("broker", "market_data", "networked_broker", "venue")
pytest.register_assert_rewrite(*(f"{__name__}.{suite}" for suite in _SUITES))


def __getattr__(name: str) -> Any:
    return _load(name)


def __dir__() -> list[str]:
    return _names()
