"""An asynchronous test that waits for too long fails where it waits.

At the limit of pytest-timeout the traceback ends in the event loop, whatever the test waited for.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

EARLIER_S = 10.0  # than the limit of pytest-timeout, which counts the fixtures too


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Limit the test, unless it is a property, whose examples Hypothesis calls."""
    test = getattr(item, "obj", None)
    if inspect.iscoroutinefunction(test) and not hasattr(test, "hypothesis"):
        seconds = _seconds(item)
        if seconds > EARLIER_S:
            item.obj = limited(test, seconds - EARLIER_S)  # type: ignore[attr-defined]


def _seconds(item: pytest.Item) -> float:
    """Return the limit of pytest-timeout; 0 for none."""
    if marker := item.get_closest_marker("timeout"):
        return float(marker.args[0])
    return float(item.config.getoption("timeout") or item.config.getini("timeout") or 0)


def limited(test: Callable[..., Awaitable[None]], seconds: float) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def run(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(seconds):
            await test(*args, **kwargs)

    return run
