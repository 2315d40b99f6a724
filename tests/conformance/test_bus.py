"""Conformance suite of every bus: what a handler may rely on."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec
import pytest

from qts.outbox import (
    Consumer,
    Delivery,
    OutboxEvent,
    PermanentError,
    RetryableError,
    UnknownOutcomeError,
)
from tests.conformance.buses import ADAPTERS, ORDERED, SETTINGS, UNORDERED, Adapter

TIMEOUT_S = 60.0  # far above the usual second, for a busy machine


class Step(msgspec.Struct):
    number: int


class Handler:
    """Dispatcher that records each attempt and then runs a callback."""

    def __init__(self, then: Callable[[Delivery, int], Awaitable[None]] | None = None) -> None:
        self.seen: list[tuple[str, int]] = []
        self.deliveries: list[Delivery] = []
        self._then = then
        self._changed = asyncio.Event()

    async def dispatch(self, delivery: Delivery) -> None:
        number = msgspec.json.decode(delivery.envelope.payload, type=Step).number
        self.deliveries.append(delivery)
        self.seen.append((delivery.aggregate_id, number))
        self._changed.set()
        if self._then is not None:
            await self._then(delivery, number)

    async def sees(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.seen) < count:
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture(params=ADAPTERS)
def opening(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Adapter]:
    fixtures, open_on = ADAPTERS[request.param]
    return open_on(*map(request.getfixturevalue, fixtures))


@pytest.fixture
async def adapter(opening: AbstractAsyncContextManager[Adapter]) -> AsyncIterator[Adapter]:
    async with opening as adapter:
        yield adapter


def step(number: int, line: str = "x", stream: str = UNORDERED, **more: Any) -> OutboxEvent:
    return OutboxEvent.of(stream, Step(number), ("Order", line), **more)


@asynccontextmanager
async def running(*consumers: Consumer) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(consumer.run()) for consumer in consumers]
    try:
        yield
    finally:
        for consumer in consumers:
            consumer.stop()
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*tasks)


async def until(fact: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not await fact():  # noqa: ASYNC110 - a bus gives no event for it
            await asyncio.sleep(0.02)


async def test_every_event_arrives_at_least_once(adapter: Adapter) -> None:
    handlers = [Handler(), Handler()]
    events = [step(n, str(n % 7)) for n in range(100)]
    async with running(*(adapter.bus.consumer(UNORDERED, one) for one in handlers)):
        await adapter.publish(*events)
        await until(lambda: _all_seen(handlers, 100))
    whole = {d.event_id: d.envelope for one in handlers for d in one.deliveries}
    for event in events:
        got = msgspec.structs.asdict(whole[event.envelope.event_id])
        sent = msgspec.structs.asdict(event.envelope)
        assert msgspec.json.decode(got.pop("payload")) == msgspec.to_builtins(sent.pop("payload"))
        assert got == sent


async def test_events_published_while_nobody_listened_arrive(adapter: Adapter) -> None:
    await adapter.publish(step(1))
    async with running(adapter.bus.consumer(UNORDERED, handler := Handler())):
        await handler.sees(1)
    assert handler.seen[0] == ("x", 1)
    assert handler.deliveries[0].attempt == 1


@pytest.mark.parametrize("stream", [UNORDERED, ORDERED])
async def test_a_consumer_takes_the_events_of_its_account_and_of_none(
    adapter: Adapter, stream: str
) -> None:
    """Both accounts use one aggregate id: a handler that waits holds up its account alone."""
    waiting = asyncio.Event()

    async def hold(_delivery: Delivery, _number: int) -> None:
        await waiting.wait()

    first, second = Handler(hold), Handler()
    accounts = ("paper:1", "paper:2")
    async with running(
        adapter.bus.consumer(stream, first, accounts[0]),
        adapter.bus.consumer(stream, second, accounts[1]),
    ):
        for account in accounts:
            await adapter.publish(*(step(n, "x", stream, account=account) for n in range(3)))
        await until(lambda: _all_seen([second], 3))
        waiting.set()
        await until(lambda: _all_seen([first], 3))
        await adapter.publish(step(9, "x", stream))
        await until(lambda: _one_saw((first, second), 9))
    for handler, account in ((first, accounts[0]), (second, accounts[1])):
        assert {delivery.account for delivery in handler.deliveries} - {""} == {account}


async def _one_saw(handlers: tuple[Handler, ...], number: int) -> bool:
    return any(number in (each for _, each in handler.seen) for handler in handlers)


async def test_one_event_id_is_one_event(adapter: Adapter) -> None:
    event = step(1)
    async with adapter.transaction() as tx:
        assert await adapter.bus.publish(tx, event)
    async with adapter.transaction() as tx:
        assert not await adapter.bus.publish(tx, event)
        assert await adapter.bus.publish_many(tx, [event]) == set()
    async with running(adapter.bus.consumer(UNORDERED, handler := Handler())):
        await adapter.publish(step(2))
        await until(lambda: _all_seen([handler], 2))
    assert Counter(number for _, number in handler.seen)[1] == 1


@pytest.mark.parametrize("stalls", [False, True], ids=["steady", "stalled"])
async def test_a_key_keeps_its_order_over_consumers_and_failures(
    adapter: Adapter, stalls: bool
) -> None:
    """Also when the process stalls for longer than a lock lasts, as on an overloaded machine."""
    busy: set[str] = set()
    done: dict[str, list[int]] = {}
    stall_at = {20} if stalls else set()

    async def then(delivery: Delivery, number: int) -> None:
        line = delivery.aggregate_id
        assert line not in busy
        busy.add(line)
        try:
            await asyncio.sleep(0.002)
            if number in stall_at:
                stall_at.discard(number)
                time.sleep(SETTINGS["lock_ttl_s"] + 0.5)  # noqa: ASYNC251 - blocks the loop
            if number % 10 == 3 and delivery.attempt == 1:
                raise RetryableError("again")
            done.setdefault(line, []).append(number)
        finally:
            busy.discard(line)

    handlers = [Handler(then), Handler(then)]
    async with running(*(adapter.bus.consumer(ORDERED, one) for one in handlers)):
        for start in (0, 40):
            numbers = range(start, start + 40)
            await adapter.publish(*(step(n, str(n % 4), ORDERED) for n in numbers))

        async def all_done() -> bool:
            return sum(len(set(numbers)) for numbers in done.values()) >= 80

        await until(all_done)
    # An event whose lock was lost comes again; a handler knows it by its id (`mark_handled`).
    first_of = {line: list(dict.fromkeys(numbers)) for line, numbers in done.items()}
    assert first_of == {str(line): list(range(line, 80, 4)) for line in range(4)}


async def test_what_a_crashed_consumer_held_is_delivered_again(adapter: Adapter) -> None:
    async def never(_delivery: Delivery, _number: int) -> None:
        await asyncio.Event().wait()

    crashing = asyncio.create_task(adapter.bus.consumer(UNORDERED, first := Handler(never)).run())
    await adapter.publish(step(1))
    await first.sees(1)
    crashing.cancel()  # no stop, no completion: as if its process had ended
    await asyncio.wait({crashing})
    async with running(adapter.bus.consumer(UNORDERED, second := Handler())):
        await second.sees(1)
    assert second.seen == [("x", 1)]
    assert second.deliveries[0].attempt == 2


@pytest.mark.parametrize(
    ("error", "attempts", "code"),
    [
        (RetryableError("busy", code="HTTP_503"), SETTINGS["max_attempts"], "HTTP_503"),
        (ValueError("bug"), SETTINGS["max_attempts"], "ValueError"),
        (PermanentError("bad", code="BAD"), 1, "BAD"),
        (UnknownOutcomeError("sent, no answer"), 1, "UNKNOWN"),
    ],
)
async def test_a_failed_event_is_a_dead_letter_and_others_continue(
    adapter: Adapter, error: Exception, attempts: int, code: str
) -> None:
    async def then(_delivery: Delivery, number: int) -> None:
        if number == 0:
            raise error

    async with running(adapter.bus.consumer(UNORDERED, handler := Handler(then))):
        await adapter.publish(*(step(n, str(n)) for n in range(5)))
        await until(lambda: _dead(adapter, 1))
        await until(lambda: _all_seen([handler], 5))
    (letter,) = await adapter.bus.dead_letters(UNORDERED)
    assert (letter.error_code, letter.attempts) == (code, attempts)
    assert str(error) in letter.error_message
    assert Counter(number for _, number in handler.seen)[0] == attempts


async def test_a_dead_letter_is_requeued_unless_its_outcome_is_unknown(
    adapter: Adapter,
) -> None:
    errors: list[Exception] = [PermanentError("bad"), UnknownOutcomeError("sent, no answer")]

    async def then(_delivery: Delivery, _number: int) -> None:
        if errors:
            raise errors.pop(0)

    async with running(adapter.bus.consumer(UNORDERED, handler := Handler(then))):
        await adapter.publish(known := step(1))
        await until(lambda: _dead(adapter, 1))
        await adapter.publish(unknown := step(2))
        await until(lambda: _dead(adapter, 2))
        assert await adapter.bus.requeue(known.envelope.event_id)
        assert not await adapter.bus.requeue(unknown.envelope.event_id)
        await until(lambda: _dead(adapter, 1))
        await handler.sees(3)
    assert handler.deliveries[-1].event_id == known.envelope.event_id
    assert handler.deliveries[-1].attempt == 1


async def test_a_handler_past_its_time_is_stopped_and_tried_again(adapter: Adapter) -> None:
    async def then(delivery: Delivery, _number: int) -> None:
        if delivery.attempt == 1:
            await asyncio.Event().wait()

    async with running(adapter.bus.consumer(UNORDERED, handler := Handler(then))):
        await adapter.publish(step(1))
        await handler.sees(2)
    assert [delivery.attempt for delivery in handler.deliveries] == [1, 2]
    assert await adapter.bus.dead_letters(UNORDERED) == []


async def test_a_handler_whose_own_work_was_cancelled_is_tried_again(adapter: Adapter) -> None:
    async def then(delivery: Delivery, number: int) -> None:
        if number < 2 * SETTINGS["concurrency"] and delivery.attempt == 1:
            work = asyncio.ensure_future(asyncio.Event().wait())
            work.cancel()
            await work

    count = 3 * SETTINGS["concurrency"]  # enough to notice slots that were not returned
    async with running(adapter.bus.consumer(UNORDERED, handler := Handler(then))):
        await adapter.publish(*(step(n, str(n)) for n in range(count)))
        await handler.sees(count + 2 * SETTINGS["concurrency"])
    assert {d.attempt for d in handler.deliveries} == {1, 2}
    assert await adapter.bus.dead_letters(UNORDERED) == []


async def test_a_paused_stream_waits_and_others_continue(adapter: Adapter) -> None:
    await adapter.bus.pause(UNORDERED)
    paused, other = Handler(), Handler()
    async with running(
        adapter.bus.consumer(UNORDERED, paused), adapter.bus.consumer(ORDERED, other)
    ):
        await adapter.publish(step(1))
        await adapter.publish(step(2, stream=ORDERED))
        await other.sees(1)
        assert paused.seen == []
        await adapter.bus.resume(UNORDERED)
        await paused.sees(1)


async def test_slow_handlers_limit_what_is_taken(adapter: Adapter) -> None:
    """At most `concurrency` handlers run, and other consumers take the rest."""
    resume, running_now, most = asyncio.Event(), 0, 0

    async def then(delivery: Delivery, _number: int) -> None:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        delivery.extend(20)
        try:
            await resume.wait()
        finally:
            running_now -= 1

    slow, quick = Handler(then), Handler()
    async with running(adapter.bus.consumer(UNORDERED, slow)):
        await adapter.publish(*(step(n, str(n)) for n in range(60)))
        await slow.sees(SETTINGS["concurrency"])
        async with running(adapter.bus.consumer(UNORDERED, quick)):
            # With partitions, the other consumer does not get those of the slow one.
            await quick.sees(1 if adapter.by_partition else 60 - 3 * SETTINGS["batch"])
            assert most == SETTINGS["concurrency"]
            resume.set()
            await until(lambda: _all_seen([slow, quick], 60))


async def test_a_stopped_consumer_leaves_the_rest_to_others(adapter: Adapter) -> None:
    began = asyncio.Event()

    async def then(_delivery: Delivery, _number: int) -> None:
        began.set()
        await asyncio.sleep(0.05)

    consumer = adapter.bus.consumer(UNORDERED, first := Handler(then))
    serving = asyncio.create_task(consumer.run())
    await adapter.publish(*(step(n, str(n)) for n in range(30)))
    await began.wait()
    consumer.stop()
    await serving
    assert 0 < len(first.seen) < 30
    async with running(adapter.bus.consumer(UNORDERED, second := Handler())):
        await until(lambda: _all_seen([first, second], 30))
    assert len(first.seen) + len(second.seen) == 30


async def _all_seen(handlers: list[Handler], count: int) -> bool:
    return len({number for one in handlers for _, number in one.seen}) >= count


async def _dead(adapter: Adapter, count: int) -> bool:
    return len(await adapter.bus.dead_letters(UNORDERED)) == count
