"""Timeouts, retries, and what counts as a failure of Redis."""

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
    """Server that fails as often as configured, then replies."""

    def __init__(self, *errors: Exception, hangs: bool = False) -> None:
        self.errors = list(errors)
        self.hangs = hangs
        self.calls = 0

    async def call(self) -> str:
        self.calls += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.errors:
            raise self.errors.pop(0)
        return "reply"


def policy() -> CallPolicy:
    return CallPolicy(CacheConfig(), SystemClock())


async def test_a_call_is_repeated_three_times_ten_milliseconds_apart() -> None:
    server, started = Server(*[UnreachableError("x")] * 3), time.monotonic()
    assert await policy().call_with_retry(server.call, 5000) == "reply"
    assert server.calls == 4
    assert time.monotonic() - started >= 0.03


async def test_a_fourth_repeat_is_not_made() -> None:
    server = Server(*[UnreachableError("x")] * 9)
    with pytest.raises(UnreachableError):
        await policy().call_with_retry(server.call, 5000)
    assert server.calls == 4


async def test_call_once_does_not_retry() -> None:
    server = Server(UnreachableError("x"))
    with pytest.raises(UnreachableError):
        await policy().call_once(server.call, 5000)
    assert server.calls == 1


@pytest.mark.parametrize("way", ["call_once", "call_with_retry"])
async def test_no_call_outlasts_its_limit(way: str) -> None:
    server, started = Server(hangs=True), time.monotonic()
    with pytest.raises(UnreachableError, match="in time"):
        await getattr(policy(), way)(server.call, 30)
    assert time.monotonic() - started < 30


async def test_an_open_circuit_fails_without_a_call() -> None:
    under_test, server = policy(), Server(*[UnreachableError("x")] * 9)
    for _ in range(2):
        with pytest.raises(UnreachableError):
            await under_test.call_with_retry(server.call, 5000)
    assert server.calls == 5
    with pytest.raises(CircuitOpenError):
        await under_test.call_once(server.call, 5000)
    assert server.calls == 5


@pytest.mark.parametrize(
    "error", [StoreBusyError("full"), OperationError("OOM command not allowed")]
)
async def test_a_busy_store_or_a_refusal_is_not_a_failure_of_redis(error: OperationError) -> None:
    under_test, server = policy(), Server(*[error] * 20)
    for _ in range(20):
        with pytest.raises(OperationError):
            await under_test.call_with_retry(server.call, 5000)
    assert server.calls == 20  # nor is it repeated
    assert under_test.breaker.state == "closed"


async def test_a_cancelled_probe_gives_its_place_to_the_next() -> None:
    under_test, hanging = policy(), Server(hangs=True)
    for _ in range(5):
        under_test.breaker.record_failure()
    probing = asyncio.create_task(under_test.probe(hanging.call, 60_000))
    await until(lambda: hanging.calls)
    assert await under_test.probe(Server().call, 1000) is None  # one at a time
    probing.cancel()
    await asyncio.wait({probing})
    assert await under_test.probe(Server().call, 1000) == "reply"
    assert under_test.breaker.state == "closed"
