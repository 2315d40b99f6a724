"""The order of the tests: whole runs first, one after another in one process.

Whole runs share two cores with their servers and simulators. Beside each other they are so slow
that orders time out; beside other tests they are not.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

WHOLE_RUNS = ("tests/acceptance/", "tests/faults/test_")
# Then what waits most: at the end of the tests, the other processes would have nothing to do.
FIRST = (
    *WHOLE_RUNS,
    "tests/faults/",
    "tests/venues/test_killed_clients.py",
    "tests/verify/test_isolation.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _place(item.nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return _WholeRunsTogether(config, log) if config.getoption("dist") == "loadfile" else None


class _WholeRunsTogether(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    def _split_scope(self, nodeid: str) -> str:
        return "whole runs" if nodeid.startswith(WHOLE_RUNS) else super()._split_scope(nodeid)


def _place(nodeid: str) -> int:
    return next((n for n, folder in enumerate(FIRST) if nodeid.startswith(folder)), len(FIRST))
