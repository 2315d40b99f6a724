"""The processes of QTS that tests start are forked by a starter that has QTS loaded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.starter import started


@pytest.fixture(scope="session", autouse=True)
def preloaded() -> Iterator[None]:
    with started():
        yield
