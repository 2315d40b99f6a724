"""Time limits, repeats, and what counts as a failure of Redis."""

from __future__ import annotations

import asyncio
import time

import pytest

from qts.cache import CacheConfig
from qts.cache.call_policy import CallPolicy, CircuitOpenError
from qts.cache.store import StoreBusyError
from qts.domain import OperationError, SystemClock, UnreachableError
from tests.cache.conftest import until


class Server:
    """Fails as often as told, then answers."""

    def __init__(self, *errors: Exception, hangs: bool = False) -> None:
        self.errors = list(errors)
        self.hangs = hangs
        self.calls = 0

    async def ask(self) -> str:
        self.calls += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def guard() -> CallPolicy:
    return CallPolicy(CacheConfig(), SystemClock())


async def test_a_call_is_repeated_three_times_ten_milliseconds_apart() -> None:
    server, began = Server(*[UnreachableError("x")] * 3), time.monotonic()
    assert await guard().call_with_retry(server.ask, 5000) == "answer"
    assert server.calls == 4
    assert time.monotonic() - began >= 0.03


async def test_a_fourth_repeat_is_not_made() -> None:
    server = Server(*[UnreachableError("x")] * 9)
    with pytest.raises(UnreachableError):
        await guard().call_with_retry(server.ask, 5000)
    assert server.calls == 4


async def test_once_is_once() -> None:
    server = Server(UnreachableError("x"))
    with pytest.raises(UnreachableError):
        await guard().call_once(server.ask, 5000)
    assert server.calls == 1


@pytest.mark.parametrize("way", ["once", "patiently"])
async def test_no_call_outlasts_its_limit(way: str) -> None:
    server, began = Server(hangs=True), time.monotonic()
    with pytest.raises(UnreachableError, match="in time"):
        await getattr(guard(), way)(server.ask, 30)
    assert time.monotonic() - began < 30


async def test_an_open_circuit_answers_without_asking() -> None:
    it, server = guard(), Server(*[UnreachableError("x")] * 9)
    for _ in range(2):
        with pytest.raises(UnreachableError):
            await it.call_with_retry(server.ask, 5000)
    assert server.calls == 5
    with pytest.raises(CircuitOpenError):
        await it.call_once(server.ask, 5000)
    assert server.calls == 5


@pytest.mark.parametrize(
    "error", [StoreBusyError("full"), OperationError("OOM command not allowed")]
)
async def test_a_full_line_or_a_plain_no_is_not_a_failure_of_redis(error: OperationError) -> None:
    it, server = guard(), Server(*[error] * 20)
    for _ in range(20):
        with pytest.raises(OperationError):
            await it.call_with_retry(server.ask, 5000)
    assert server.calls == 20  # nor is it repeated
    assert it.breaker.state == "closed"


async def test_a_cancelled_probe_gives_its_place_to_the_next() -> None:
    it, hanging = guard(), Server(hangs=True)
    for _ in range(5):
        it.breaker.failed()
    probing = asyncio.create_task(it.probe(hanging.ask, 60_000))
    await until(lambda: hanging.calls)
    assert await it.probe(Server().ask, 1000) is None  # one at a time
    probing.cancel()
    await asyncio.wait({probing})
    assert await it.probe(Server().ask, 1000) == "answer"
    assert it.breaker.state == "closed"
