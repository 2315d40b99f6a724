"""The traceback of a test that hangs names what it waits for."""

from __future__ import annotations

import asyncio
import traceback

import pytest

from tests.time_limit import limited


async def hang() -> None:
    await asyncio.get_running_loop().create_future()


async def test_a_hang_is_named() -> None:
    with pytest.raises(TimeoutError) as raised:
        await limited(hang, 0.01)()
    assert "in hang" in "".join(traceback.format_exception(raised.value))


async def test_a_test_that_ends_keeps_its_result() -> None:
    async def fail(text: str) -> None:
        await asyncio.sleep(0)
        raise ValueError(text)

    with pytest.raises(ValueError, match="wrong"):
        await limited(fail, 60.0)("wrong")
