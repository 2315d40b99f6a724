"""Relay that is killed and restarted; checked by what the server has."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable

import msgspec
import nats as nats_client
import pytest
from confluent_kafka import Consumer, TopicPartition

from qts.database import Database
from qts.domain import Secret, UnreachableError
from qts.embedded import NatsServer
from qts.outbox import (
    TRADE_COMMAND,
    Delivery,
    KafkaBusConfig,
    NatsBusConfig,
    PostgresBus,
    Relay,
    StreamConfig,
)
from qts.outbox.relayed_bus import relay_configs
from tests.conformance.brokers import kafka, nats, nats_server
from tests.outbox.kit import QUICK, accepted, publish, running, until, until_statuses
from tests.outbox.relayed_kit import order_of, process
from tests.outbox.worker_group import seed

__all__ = ["kafka", "nats", "nats_server"]

STREAMS = relay_configs({TRADE_COMMAND: StreamConfig(ordered=True, **QUICK)})
EVENTS, AGGREGATES, KILLS = 600, 20, 5

Seen = list[tuple[str, int]]


async def _kill_and_check(
    database: Database,
    url: Secret,
    server: NatsBusConfig | KafkaBusConfig,
    record: Callable[[], Awaitable[Seen]],
) -> Seen:
    rng = random.Random(seed())  # noqa: S311 - repeatable on purpose
    async with (
        PostgresBus.open(database, STREAMS) as bus,
        process(order_of(url, "relay", TRADE_COMMAND, server)) as relay,
    ):

        async def feed() -> None:
            for start in range(0, EVENTS, AGGREGATES):
                numbers = range(start, start + AGGREGATES)
                await publish(
                    database,
                    bus,
                    *(accepted(str(n % AGGREGATES), n, stream=TRADE_COMMAND) for n in numbers),
                )
                await asyncio.sleep(0.06)  # so that there is something to move at each death

        feeding = asyncio.create_task(feed())
        for _ in range(KILLS):
            await asyncio.sleep(rng.uniform(0, 0.15))  # a random moment is the point
            await relay.kill()
            await relay.start()
        await feeding
        await until_statuses(database, {"DONE": EVENTS}, 120)
        assert await relay.stop() == 0
    return await record()


def _by_aggregate(seen: Seen) -> dict[str, list[int]]:
    """Group by aggregate; an event sent twice counts at its first position."""
    lines: dict[str, list[int]] = {}
    for line, number in dict.fromkeys(seen):
        lines.setdefault(line, []).append(number)
    return lines


def _expected() -> dict[str, list[int]]:
    return {str(line): list(range(line, EVENTS, AGGREGATES)) for line in range(AGGREGATES)}


async def test_a_killed_relay_moves_everything_in_order_to_nats(
    database: Database, database_url: Secret, nats: NatsBusConfig
) -> None:
    async def record() -> Seen:
        return await _read_stream(nats)

    seen = await _kill_and_check(database, database_url, nats, record)
    assert _by_aggregate(seen) == _expected()
    assert len(seen) == EVENTS  # what was sent twice is known by its id


async def test_a_killed_relay_moves_everything_in_order_to_kafka(
    database: Database, database_url: Secret, kafka: KafkaBusConfig
) -> None:
    async def record() -> Seen:
        return await asyncio.to_thread(_read_topic, kafka)

    seen = await _kill_and_check(database, database_url, kafka, record)
    assert _by_aggregate(seen) == _expected()


async def test_nothing_is_done_that_the_server_did_not_confirm(
    database: Database, database_url: Secret, nats: NatsBusConfig, nats_server: NatsServer
) -> None:
    """The relay is killed while the server has its events and has not answered."""
    assert nats_server.pid is not None
    order = order_of(database_url, "relay", TRADE_COMMAND, nats)
    async with PostgresBus.open(database, STREAMS) as bus, process(order) as relay:
        os.kill(nats_server.pid, signal.SIGSTOP)
        try:
            numbers = range(AGGREGATES)
            events = [accepted(str(n), n, stream=TRADE_COMMAND) for n in numbers]
            await publish(database, bus, *events)
            await until_statuses(database, {"PROCESSING": AGGREGATES})
            with pytest.raises(AssertionError):  # not even a second later
                await until_statuses(database, {"DONE": AGGREGATES}, 1)
            await relay.kill()
        finally:
            os.kill(nats_server.pid, signal.SIGCONT)
        await relay.start()
        await until_statuses(database, {"DONE": AGGREGATES})
        assert await relay.stop() == 0
    assert sorted(await _read_stream(nats)) == sorted((str(n), n) for n in numbers)


async def test_an_unreachable_server_uses_up_no_attempts(database: Database) -> None:
    """Its events are sent in order once it is reachable."""
    sent: list[int] = []
    away = 5

    async def send(delivery: Delivery) -> None:
        nonlocal away
        if away:
            away -= 1
            raise UnreachableError("no server")
        sent.append(msgspec.json.decode(delivery.envelope.payload)["number"])

    # A lock that outlasts a busy machine: what is counted here are attempts.
    config = StreamConfig(ordered=True, max_attempts=3, **{**QUICK, "lock_ttl_s": 20.0})
    async with PostgresBus.open(database, relay_configs({TRADE_COMMAND: config})) as bus:
        await publish(database, bus, *(accepted("1", n, stream=TRADE_COMMAND) for n in range(5)))
        async with running(Relay(database, {TRADE_COMMAND: config}, send)):
            await until_statuses(database, {"DONE": 5}, 60)
    assert sent == list(range(5))
    rows = await database.fetch("SELECT DISTINCT attempt_count FROM outbox_event_all")
    assert [row[0] for row in rows] == [1]


async def test_a_relay_stops_while_its_server_is_unreachable(database: Database) -> None:
    tried = asyncio.Event()

    async def send(_delivery: Delivery) -> None:
        tried.set()
        raise UnreachableError("no server")

    async with PostgresBus.open(database, STREAMS) as bus:
        await publish(database, bus, accepted("1", stream=TRADE_COMMAND))
        async with running(Relay(database, STREAMS, send)):
            await tried.wait()
    await until_statuses(database, {"PENDING": 1})


async def test_what_was_not_committed_is_not_sent(database: Database) -> None:
    sent: list[Delivery] = []

    async def send(delivery: Delivery) -> None:
        sent.append(delivery)

    async def has_sent() -> bool:
        return bool(sent)

    async def fail_after_publishing(bus: PostgresBus) -> None:
        async with database.transaction() as tx:
            await bus.publish(tx, accepted("rolled back", stream=TRADE_COMMAND))
            raise ZeroDivisionError

    async with PostgresBus.open(database, STREAMS) as bus:
        with pytest.raises(ZeroDivisionError):
            await fail_after_publishing(bus)
        await publish(database, bus, accepted("kept", stream=TRADE_COMMAND))
        async with running(Relay(database, STREAMS, send)):
            await until(has_sent)
    assert [delivery.aggregate_id for delivery in sent] == ["kept"]


def _address(body: bytes) -> tuple[str, int]:
    payload = msgspec.json.decode(body)["payload"]
    return payload["order"], payload["number"]


async def _read_stream(config: NatsBusConfig) -> Seen:
    assert config.url is not None
    client = await nats_client.connect(config.url.reveal())
    jetstream, name = client.jetstream(), TRADE_COMMAND.replace(".", "_")
    state = (await jetstream.stream_info(name)).state
    messages = [
        await jetstream.get_msg(name, seq=number)
        for number in range(state.first_seq, state.last_seq + 1)
    ]
    await client.close()
    return [_address(message.data or b"") for message in messages]


def _read_topic(config: KafkaBusConfig) -> Seen:
    topic = config.topic_prefix + TRADE_COMMAND
    reader = Consumer({"bootstrap.servers": config.bootstrap or "", "group.id": "reader"})
    try:
        known = reader.list_topics(topic, timeout=10).topics[topic].partitions
        ends = {n: reader.get_watermark_offsets(TopicPartition(topic, n), 10)[1] for n in known}
        reader.assign([TopicPartition(topic, n, 0) for n in known])
        seen: dict[int, Seen] = {n: [] for n in known}
        left = sum(ends.values())
        while left:
            message = reader.poll(10)
            assert message is not None
            assert message.error() is None
            seen[message.partition() or 0].append(_address(message.value() or b""))
            left -= 1
        return [one for partition in seen.values() for one in partition]
    finally:
        reader.close()
