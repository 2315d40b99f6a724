"""The bus on Kafka: what the conformance suite cannot see of groups, offsets and deaths."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition

from qts.database import Database
from qts.domain import RefusedError, Secret, UnreachableError
from qts.outbox import (
    TRADE_COMMAND,
    Delivery,
    KafkaBus,
    KafkaBusConfig,
    RetryableError,
    StreamConfig,
)
from tests.conformance.brokers import kafka
from tests.outbox.crowd import TABLES, effects_by_line
from tests.outbox.kit import QUICK, Recorder, accepted, running, until
from tests.outbox.relayed_kit import order_of, process

__all__ = ["kafka"]

STREAMS = {TRADE_COMMAND: StreamConfig(ordered=True, **QUICK)}


@asynccontextmanager
async def moved(database: Database, config: KafkaBusConfig) -> AsyncIterator[KafkaBus]:
    async with KafkaBus.open(database, STREAMS, config) as bus, bus.relaying():
        yield bus


def number_of(delivery: Delivery) -> int:
    number: int = msgspec.json.decode(delivery.envelope.payload)["number"]
    return number


async def test_a_failing_aggregate_holds_up_nobody_else_and_is_not_overtaken(
    database: Database, kafka: KafkaBusConfig
) -> None:
    free = asyncio.Event()

    async def then(delivery: Delivery) -> None:
        if delivery.aggregate_id == "bad" and not free.is_set():
            raise RetryableError("not yet")

    recorder = Recorder(then)

    async def others_done() -> bool:
        return len({number_of(one) for one in recorder.seen if one.aggregate_id != "bad"}) == 30

    async def all_done() -> bool:
        numbers = [number_of(one) for one in recorder.seen if one.aggregate_id == "bad"]
        return numbers[-2:] == [101, 102]

    streams = {TRADE_COMMAND: StreamConfig(ordered=True, max_attempts=1000, **QUICK)}
    async with KafkaBus.open(database, streams, kafka) as bus, bus.relaying():
        async with database.transaction() as tx:
            bad = [accepted("bad", n, stream=TRADE_COMMAND) for n in (100, 101, 102)]
            good = [accepted(str(n), n, stream=TRADE_COMMAND) for n in range(30)]
            await bus.publish_many(tx, bad + good)
        async with running(bus.consumer(TRADE_COMMAND, recorder)):
            await until(others_done)
            assert {number_of(one) for one in recorder.seen if one.aggregate_id == "bad"} == {100}
            free.set()
            await until(all_done)


async def test_a_stopped_consumer_leaves_its_place_in_the_group(
    database: Database, kafka: KafkaBusConfig
) -> None:
    """What was handled is committed: the next consumer sees none of it."""
    first, second = Recorder(), Recorder()
    async with moved(database, kafka) as bus:

        async def publish(*numbers: int) -> None:
            async with database.transaction() as tx:
                events = [accepted(str(n), n, stream=TRADE_COMMAND) for n in numbers]
                await bus.publish_many(tx, events)

        async with running(bus.consumer(TRADE_COMMAND, first)):
            await publish(*range(20))
            await until(lambda: _has_seen(first, 20))
        await publish(20, 21)
        async with running(bus.consumer(TRADE_COMMAND, second)):
            await until(lambda: _has_seen(second, 2))
    assert sorted(map(number_of, second.seen)) == [20, 21]


async def test_a_killed_consumers_event_is_handled_by_another(
    database: Database, database_url: Secret, kafka: KafkaBusConfig
) -> None:
    await database.execute(TABLES)
    order = order_of(database_url, "hold", TRADE_COMMAND, kafka)
    async with moved(database, kafka) as bus, process(order) as first:
        async with database.transaction() as tx:
            events = [accepted(str(n % 4), n, stream=TRADE_COMMAND) for n in range(12)]
            await bus.publish_many(tx, events)

        async def has_ended() -> bool:
            return bool(await database.fetchval("SELECT count(*) FROM ended"))

        await until(has_ended)  # so that more has begun, and was committed as such
        await first.kill()
        order.role = "effect"
        async with process(order) as second:

            async def all_done() -> bool:
                return bool(await database.fetchval("SELECT count(*) FROM effect") == 12)

            await until(all_done, 100)
            assert await second.stop() == 0
    assert await effects_by_line(database) == {str(n): [n, n + 4, n + 8] for n in range(4)}


async def test_an_event_in_hand_is_not_committed_as_done(
    database: Database, kafka: KafkaBusConfig
) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def then(delivery: Delivery) -> None:
        if number_of(delivery) == 0:
            began.set()
            await go_on.wait()

    recorder = Recorder(then)
    async with moved(database, kafka) as bus, running(bus.consumer(TRADE_COMMAND, recorder)):
        async with database.transaction() as tx:
            events = [accepted(str(n), n, stream=TRADE_COMMAND) for n in range(20)]
            await bus.publish_many(tx, events)
        await began.wait()
        await until(lambda: _has_seen(recorder, 20))

        async def others_noted() -> bool:
            notes = await asyncio.to_thread(_notes, kafka)
            return sum(len(note["ended"]) for note in notes) > 0

        await until(others_noted)  # those behind it in its partition, and not itself
        notes = await asyncio.to_thread(_notes, kafka)
        assert [note["tries"] for note in notes if note["ended"]] == [{"0": 1}]
        go_on.set()


async def test_an_event_that_kills_its_consumer_is_a_dead_letter_in_the_end(
    database: Database, database_url: Secret, kafka: KafkaBusConfig
) -> None:
    """Attempts are counted where they outlive the process; the group forgets it in its own time."""
    await database.execute(TABLES)
    order = order_of(database_url, "effect", TRADE_COMMAND, kafka)
    order.max_attempts = 1
    streams = {TRADE_COMMAND: StreamConfig(ordered=True, max_attempts=1, **QUICK)}
    async with KafkaBus.open(database, streams, kafka) as bus, bus.relaying():
        async with database.transaction() as tx:
            await bus.publish(tx, accepted("1", 1, stream=TRADE_COMMAND, type="Exit"))
            await bus.publish(tx, accepted("1", 2, stream=TRADE_COMMAND))
        async with process(order) as doomed:
            assert await doomed.ended() == 9
        notes = await asyncio.to_thread(_notes, kafka)
        assert {"ended": [], "tries": {"0": 1}} in notes
        async with process(order):

            async def is_over() -> bool:
                dead = await bus.dead_letters(TRADE_COMMAND)
                return bool(dead) and await effects_by_line(database) == {"1": [2]}

            await until(is_over, 100)
        (letter,) = await bus.dead_letters(TRADE_COMMAND)
    assert letter.error_code == "WORKER_LOST"


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({}, RefusedError, "outbox.kafka.bootstrap: must look like"),
        (
            {"bootstrap": "x:9092", "security_protocol": "sasl_ssl"},
            RefusedError,
            "needs outbox.kafka.sasl_username",
        ),
        ({"bootstrap": "127.0.0.1:1"}, UnreachableError, "Kafka at 127.0.0.1:1 does not answer"),
    ],
)
async def test_a_broker_that_does_not_let_us_in_is_named(
    database: Database, settings: dict[str, str], error: type[Exception], says: str
) -> None:
    config = msgspec.convert(settings, KafkaBusConfig)
    with pytest.raises(error, match=says):
        async with KafkaBus.open(database, STREAMS, config):
            pass


async def _has_seen(recorder: Recorder, count: int) -> bool:
    return len(recorder.seen) >= count


def _notes(config: KafkaBusConfig) -> list[dict[str, Any]]:
    """What the group has committed beside its offsets, as the broker tells it."""
    topic = config.topic_prefix + TRADE_COMMAND
    reader = Consumer(
        {"bootstrap.servers": config.bootstrap or "", "group.id": f"{config.group}.{topic}"}
    )
    try:
        known = reader.list_topics(topic, timeout=10).topics[topic].partitions
        told = reader.committed([TopicPartition(topic, number) for number in known], timeout=10)
        return [msgspec.json.decode(one.metadata) for one in told if one.metadata]
    finally:
        reader.close()
