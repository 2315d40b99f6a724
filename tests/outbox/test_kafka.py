"""Bus on Kafka: consumer groups, offsets and crashes, beyond the conformance suite."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

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
from tests.outbox.kit import QUICK, Recorder, accepted, running, until
from tests.outbox.relayed_kit import order_of, process
from tests.outbox.worker_group import TABLES, effects_by_aggregate

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


def fail_fatally(producer: Producer) -> None:
    """Raise a fatal error in the producer, by the function that librdkafka has for tests."""
    with Path("/proc/self/maps").open() as maps:
        library = ctypes.CDLL(next(line.split()[-1] for line in maps if "librdkafka" in line))
    raise_fatal = library.rd_kafka_test_fatal_error
    raise_fatal.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    handle = ctypes.c_void_p.from_address(id(producer) + object.__basicsize__)  # its first field
    assert raise_fatal(handle, KafkaError.UNKNOWN_PRODUCER_ID, b"test") == 0


@pytest.mark.skipif(sys.platform != "linux", reason="finds the library in /proc")
async def test_a_fatal_error_of_the_producer_is_survived(
    database: Database, kafka: KafkaBusConfig
) -> None:
    """Nothing is lost, each producer is replaced once, and no message waits without end."""
    recorder = Recorder()
    async with moved(database, kafka) as bus, running(bus.consumer(TRADE_COMMAND, recorder)):
        producers = [bus._producer]
        for start in range(0, 60, 20):
            async with database.transaction() as tx:
                events = [
                    accepted(str(n % 5), n, stream=TRADE_COMMAND) for n in range(start, start + 20)
                ]
                await bus.publish_many(tx, events)
            if start:
                fail_fatally(bus._producer)
                await until(lambda: _is_replaced(bus, producers))
            await until(functools.partial(_has_numbers, recorder, start + 20), 40)
        assert len(producers) == 3
    assert {number_of(one) for one in recorder.seen} == set(range(60))


async def _is_replaced(bus: KafkaBus, producers: list[Producer]) -> bool:
    if bus._producer in producers:
        return False
    producers.append(bus._producer)
    return True


async def _has_numbers(recorder: Recorder, count: int) -> bool:
    return len({number_of(one) for one in recorder.seen}) == count


async def test_a_stopped_consumer_commits_its_position(
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


@pytest.mark.soak  # its group waits for a session timeout
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

        await until(has_ended)  # so that further attempts have started and are committed
        await first.kill()
        order.role = "effect"
        async with process(order) as second:

            async def all_done() -> bool:
                return bool(await database.fetchval("SELECT count(*) FROM effect") == 12)

            await until(all_done, 100)
            assert await second.stop() == 0
    assert await effects_by_aggregate(database) == {str(n): [n, n + 4, n + 8] for n in range(4)}


async def test_an_event_in_flight_is_not_committed_as_done(
    database: Database, kafka: KafkaBusConfig
) -> None:
    began, resume = asyncio.Event(), asyncio.Event()

    async def then(delivery: Delivery) -> None:
        if number_of(delivery) == 0:
            began.set()
            await resume.wait()

    recorder = Recorder(then)
    async with moved(database, kafka) as bus, running(bus.consumer(TRADE_COMMAND, recorder)):
        async with database.transaction() as tx:
            events = [accepted(str(n), n, stream=TRADE_COMMAND) for n in range(20)]
            await bus.publish_many(tx, events)
        await began.wait()
        await until(lambda: _has_seen(recorder, 20))

        async def others_committed() -> bool:
            commits = await asyncio.to_thread(_metadata, kafka)
            return sum(len(commit["ended"]) for commit in commits) > 0

        await until(others_committed)  # those behind it in its partition, and not itself
        commits = await asyncio.to_thread(_metadata, kafka)
        assert [commit["tries"] for commit in commits if commit["ended"]] == [{"0": 1}]
        resume.set()


async def test_an_event_that_kills_its_consumer_is_a_dead_letter_in_the_end(
    database: Database, database_url: Secret, kafka: KafkaBusConfig
) -> None:
    """Attempts are committed before they start; the group times the lost consumer out."""
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
        commits = await asyncio.to_thread(_metadata, kafka)
        assert {"ended": [], "tries": {"0": 1}} in commits
        async with process(order):

            async def is_over() -> bool:
                dead = await bus.dead_letters(TRADE_COMMAND)
                return bool(dead) and await effects_by_aggregate(database) == {"1": [2]}

            await until(is_over, 100)
        (letter,) = await bus.dead_letters(TRADE_COMMAND)
    assert letter.error_code == "WORKER_LOST"


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({}, RefusedError, "outbox.kafka.bootstrap is empty"),
        (
            {"bootstrap": "x:9092", "security_protocol": "sasl_ssl"},
            RefusedError,
            "needs outbox.kafka.sasl_username",
        ),
        ({"bootstrap": "127.0.0.1:1"}, UnreachableError, "Kafka at 127.0.0.1:1 does not answer"),
    ],
)
async def test_a_broker_that_refuses_is_named(
    database: Database, settings: dict[str, str], error: type[Exception], message: str
) -> None:
    config = msgspec.convert(settings, KafkaBusConfig)
    with pytest.raises(error, match=message):
        async with KafkaBus.open(database, STREAMS, config):
            pass


async def _has_seen(recorder: Recorder, count: int) -> bool:
    return len(recorder.seen) >= count


def _metadata(config: KafkaBusConfig) -> list[dict[str, Any]]:
    """Read the metadata that the group has committed with its offsets."""
    topic = config.topic_prefix + TRADE_COMMAND
    reader = Consumer(
        {"bootstrap.servers": config.bootstrap or "", "group.id": f"{config.group}.{topic}"}
    )
    try:
        known = reader.list_topics(topic, timeout=10).topics[topic].partitions
        received = reader.committed([TopicPartition(topic, number) for number in known], timeout=10)
        return [msgspec.json.decode(one.metadata) for one in received if one.metadata]
    finally:
        reader.close()
