"""The order of the tests: whole runs first, so that none of them is left for the end."""

from __future__ import annotations

import pytest

FIRST = ("tests/acceptance/", "tests/faults/", "tests/venues/test_killed_clients.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))
