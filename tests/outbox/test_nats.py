"""Bus on a real NATS: crashes of servers and consumers, and refused settings."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import nats as nats_client
import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from qts.database import Database
from qts.domain import OperationError, RefusedError, Secret, UnreachableError
from qts.embedded import NatsServer
from qts.outbox import (
    TRADE_COMMAND,
    TRADE_EVENT,
    Delivery,
    Envelope,
    NatsBus,
    NatsBusConfig,
    OutboxAdmin,
    OutboxEvent,
    PermanentError,
    StreamConfig,
)
from qts.outbox.nats import MAX_ACK_PENDING, NatsConsumer
from tests.conformance.brokers import nats, nats_server
from tests.outbox.kit import QUICK, Recorder, accepted, running, until
from tests.outbox.nats_cluster import Cluster, cluster
from tests.outbox.relayed_kit import order_of, process
from tests.outbox.worker_group import TABLES, effects_by_aggregate

__all__ = ["nats", "nats_server"]

STREAMS = {
    TRADE_COMMAND: StreamConfig(ordered=True, **QUICK),
    TRADE_EVENT: StreamConfig(**QUICK),
}
AGGREGATES = 10
NAME = TRADE_COMMAND.replace(".", "_")


@asynccontextmanager
async def moved(database: Database, config: NatsBusConfig) -> AsyncIterator[NatsBus]:
    async with NatsBus.open(database, STREAMS, config) as bus, bus.relaying():
        yield bus


async def feed(
    database: Database,
    bus: NatsBus,
    numbers: range,
    gap_s: float = 0.0,
    stream: str = TRADE_COMMAND,
) -> None:
    for start in range(numbers.start, numbers.stop, AGGREGATES):
        async with database.transaction() as tx:
            await bus.publish_many(
                tx,
                [
                    accepted(str(n % AGGREGATES), n, stream=stream)
                    for n in range(start, start + AGGREGATES)
                ],
            )
        await asyncio.sleep(gap_s)


class HandledByAggregate(Recorder):
    """Handled numbers by aggregate, each once, as with `mark_handled`."""

    def __init__(self) -> None:
        super().__init__()
        self.done: dict[str, list[int]] = {}

    async def dispatch(self, delivery: Delivery) -> None:
        number = msgspec.json.decode(delivery.envelope.payload)["number"]
        line = self.done.setdefault(delivery.aggregate_id, [])
        if number not in line:
            line.append(number)

    async def have(self, count: int) -> None:
        async def enough() -> bool:
            return sum(map(len, self.done.values())) >= count

        await until(enough, 60)


def expected(count: int) -> dict[str, list[int]]:
    return {str(line): list(range(line, count, AGGREGATES)) for line in range(AGGREGATES)}


async def test_a_server_that_restarts_loses_nothing(
    database: Database, nats: NatsBusConfig, nats_server: NatsServer
) -> None:
    lines = HandledByAggregate()
    async with moved(database, nats) as bus, running(bus.consumer(TRADE_COMMAND, lines)):
        feeding = asyncio.create_task(feed(database, bus, range(400), gap_s=0.03))
        for _ in range(2):
            await lines.have(sum(map(len, lines.done.values())) + 50)
            assert nats_server.pid is not None
            os.kill(nats_server.pid, signal.SIGKILL)
            await asyncio.to_thread(nats_server.stop)
            await asyncio.to_thread(nats_server.start)
        await feeding
        await lines.have(400)
    assert lines.done == expected(400)


async def test_a_killed_consumers_event_is_handled_by_another(
    database: Database, database_url: Secret, nats: NatsBusConfig
) -> None:
    await database.execute(TABLES)
    order = order_of(database_url, "hold", TRADE_COMMAND, nats)
    async with moved(database, nats) as bus, process(order) as first:
        await feed(database, bus, range(AGGREGATES))

        async def has_begun() -> bool:
            return bool(await database.fetchval("SELECT count(*) FROM began"))

        await until(has_begun)
        await first.kill()
        order.role = "effect"
        async with process(order) as second:

            async def all_done() -> bool:
                return bool(await database.fetchval("SELECT count(*) FROM effect") == AGGREGATES)

            await until(all_done)
            assert await second.stop() == 0
    assert await effects_by_aggregate(database) == expected(AGGREGATES)


async def test_an_event_that_kills_its_consumer_is_a_dead_letter_in_the_end(
    database: Database, database_url: Secret, nats: NatsBusConfig
) -> None:
    await database.execute(TABLES)
    order = order_of(database_url, "effect", TRADE_COMMAND, nats)
    order.max_attempts = 2
    streams = {TRADE_COMMAND: StreamConfig(ordered=True, max_attempts=2, **QUICK)}
    async with NatsBus.open(database, streams, nats) as bus, bus.relaying():
        async with database.transaction() as tx:
            await bus.publish(tx, accepted("1", 1, stream=TRADE_COMMAND, type="Exit"))
            await bus.publish(tx, accepted("1", 2, stream=TRADE_COMMAND))
        for _ in range(2):
            async with process(order) as doomed:
                assert await doomed.ended() == 9
        async with process(order):

            async def is_dead() -> bool:
                return bool(await bus.dead_letters(TRADE_COMMAND))

            await until(is_dead)

            async def next_is_done() -> bool:
                return await effects_by_aggregate(database) == {"1": [2]}

            await until(next_is_done)
        (letter,) = await bus.dead_letters(TRADE_COMMAND)
    assert (letter.error_code, letter.attempts) == ("WORKER_LOST", 2)


async def test_a_long_handler_keeps_its_event(database: Database, nats: NatsBusConfig) -> None:
    ttl_s = 5.0  # a busy machine may stop for a second between two renewals
    settings = {**QUICK, "lock_ttl_s": ttl_s, "handler_timeout_s": 60.0}
    streams = {TRADE_EVENT: StreamConfig(**settings)}

    async def then(_delivery: Delivery) -> None:
        await asyncio.sleep(1.3 * ttl_s)

    recorder = Recorder(then)
    async with NatsBus.open(database, streams, nats) as bus, bus.relaying():
        await feed(database, bus, range(1), stream=TRADE_EVENT)
        async with (
            running(bus.consumer(TRADE_EVENT, recorder)),
            running(bus.consumer(TRADE_EVENT, recorder)),
        ):
            await until(lambda: _has_seen(recorder, AGGREGATES))
            await until(lambda: _is_empty(nats, TRADE_EVENT))
    assert len(recorder.seen) == AGGREGATES


async def test_an_event_lost_while_it_waited_for_a_slot_is_not_started(
    database: Database, nats: NatsBusConfig
) -> None:
    """Its lock expired, so the server delivers it again: starting it would handle it twice."""
    began, release = asyncio.Event(), asyncio.Event()

    async def then(_delivery: Delivery) -> None:
        began.set()
        await release.wait()

    recorder = Recorder(then)
    streams = {TRADE_COMMAND: StreamConfig(ordered=True, concurrency=1, **QUICK)}
    async with NatsBus.open(database, streams, nats) as bus, bus.relaying():
        consumer = bus.consumer(TRADE_COMMAND, recorder)
        assert isinstance(consumer, NatsConsumer)
        async with running(consumer):
            # Different partitions: one event runs, the other waits for the only slot.
            async with database.transaction() as tx:
                for name in ("0", "1", "2", "3"):
                    await bus.publish(tx, accepted(name, int(name), stream=TRADE_COMMAND))
            await began.wait()

            async def is_waiting() -> bool:
                return any(item.task is None for item in consumer._in_flight)

            await until(is_waiting)
            waiting = {item for item in consumer._in_flight if item.task is None}
            for item in waiting:
                item.locked_until_ns = 0  # as after a heartbeat that came too late
            lost = {item.message.metadata.sequence.stream for item in waiting}
            release.set()

            async def handled() -> bool:
                return len({one.event_id for one in recorder.seen}) == 4

            await until(handled)
    attempts = {one.attempt for one in recorder.seen}
    assert lost
    assert len(recorder.seen) == 4  # each once, the lost ones at their redelivery
    assert attempts == {1, 2}


class BrokenTransport:
    """NATS client whose connection broke: on Python 3.12, writing to it is a TypeError."""

    async def flush(self, timeout: int) -> None:  # noqa: ARG002, ASYNC109 - as the client's
        raise TypeError("a bytes-like object is required, not 'NoneType'")

    async def close(self) -> None:
        await self.flush(1)

    def jetstream(self, **_settings: float) -> None:
        return None


async def test_a_bus_closes_with_a_broken_connection(
    database: Database, nats: NatsBusConfig
) -> None:
    bus = NatsBus(database, STREAMS, nats, BrokenTransport())  # type: ignore[arg-type]
    await bus.close()


async def test_the_server_knows_an_event_that_is_sent_twice(
    database: Database, nats: NatsBusConfig
) -> None:
    envelope = Envelope(type="OrderAccepted", trace_id="t", payload={})
    delivery = Delivery(TRADE_COMMAND, "Order", "odd name.*>", envelope, 1, 3, row_id=7)
    async with NatsBus.open(database, STREAMS, nats) as bus:
        for _ in range(3):
            await bus.send(delivery)
        assert await _messages(nats, TRADE_COMMAND) == 1
        delivery.row_id = 8  # requeued manually
        await bus.send(delivery)
        assert await _messages(nats, TRADE_COMMAND) == 2


async def test_a_consumer_from_before_accounts_is_changed_and_loses_nothing(
    database: Database, nats: NatsBusConfig
) -> None:
    """Its filter covered the subjects of all accounts, which a work queue does not allow twice."""
    assert nats.url is not None
    config = StreamConfig(**QUICK)
    async with NatsBus.open(database, {TRADE_EVENT: config}, nats) as bus, bus.relaying():
        client = await nats_client.connect(nats.url.reveal())
        try:
            jetstream = client.jetstream()
            name = TRADE_EVENT.replace(".", "_")
            old = ConsumerConfig(
                durable_name="all",
                filter_subject=f"{TRADE_EVENT}.>",
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=config.lock_ttl_s,
                max_deliver=-1,
                max_ack_pending=MAX_ACK_PENDING,
            )
            await jetstream.add_consumer(name, old)
            await _publish(database, bus, *(accepted(str(n), n) for n in range(4)))
            await _publish(database, bus, accepted("4", 4, account="paper:1"))
            inbox = await jetstream.pull_subscribe_bind(consumer="all", stream=name)

            async def all_sent() -> bool:
                return await _messages(nats, TRADE_EVENT) == 5

            await until(all_sent)
            in_flight = await inbox.fetch(5, timeout=20)  # of a run that is killed
            assert len(in_flight) == 5
            handlers = {account: Recorder() for account in ("paper:1", "paper:2")}
            async with running(
                *(bus.consumer(TRADE_EVENT, each, account) for account, each in handlers.items())
            ):
                await _publish(
                    database,
                    bus,
                    *(
                        accepted(str(n), n, account=account)
                        for account in handlers
                        for n in range(5, 8)
                    ),
                )

                async def all_seen() -> bool:
                    return len({d.event_id for h in handlers.values() for d in h.seen}) == 11

                await until(all_seen)
            for account, handler in handlers.items():
                assert {delivery.account for delivery in handler.seen} - {""} == {account}
            found = await jetstream.consumer_info(name, "all")
            assert found.config.filter_subject == f"{TRADE_EVENT}.*.*.*"
            await until(lambda: _is_empty(nats, TRADE_EVENT))
        finally:
            await client.close()


async def _publish(database: Database, bus: NatsBus, *events: OutboxEvent) -> None:
    async with database.transaction() as tx:
        await bus.publish_many(tx, events)


async def test_the_admin_shows_edits_and_requeues_dead_letters(
    database: Database, nats: NatsBusConfig
) -> None:
    async def then(delivery: Delivery) -> None:
        if msgspec.json.decode(delivery.envelope.payload)["number"] == 0:
            raise PermanentError("no such order", code="NO_ORDER")

    recorder, admin = Recorder(then), OutboxAdmin(database)
    async with moved(database, nats) as bus, running(bus.consumer(TRADE_COMMAND, recorder)):
        async with database.transaction() as tx:
            await bus.publish(tx, event := accepted("1", 0, stream=TRADE_COMMAND))

        async def is_dead() -> bool:
            return bool(await admin.find(status="DEAD"))

        await until(is_dead)
        (row,) = await admin.find()  # one event is one row, wherever it was
        assert (row.status, row.attempt_count, row.last_error_code) == ("DEAD", 1, "NO_ORDER")
        await admin.edit(event.envelope.event_id, {"order": "1", "number": 5})
        await admin.requeue(event.envelope.event_id)

        async def is_done() -> bool:
            return (await admin.show(event.envelope.event_id)).status == "DONE"

        await until(is_done)
        await until(lambda: _is_empty(nats, TRADE_COMMAND))
    assert msgspec.json.decode(recorder.seen[-1].envelope.payload)["number"] == 5


async def test_a_message_of_others_is_a_dead_letter(
    database: Database, nats: NatsBusConfig
) -> None:
    async with moved(database, nats) as bus, running(bus.consumer(TRADE_COMMAND, Recorder())):
        assert nats.url is not None
        client = await nats_client.connect(nats.url.reveal())
        await client.jetstream().publish(f"{TRADE_COMMAND}.0.x.y", b"no JSON\0")
        await client.close()

        async def is_dead() -> bool:
            return bool(await bus.dead_letters(TRADE_COMMAND))

        await until(is_dead)
        (letter,) = await bus.dead_letters(TRADE_COMMAND)
    assert letter.error_code == "ENVELOPE_INVALID"


async def test_other_partitions_than_those_of_the_stream_are_refused(
    database: Database, nats: NatsBusConfig
) -> None:
    async with NatsBus.open(database, STREAMS, nats):
        pass
    other = msgspec.structs.replace(nats, partitions=3)
    with pytest.raises(RefusedError, match=r"outbox\.nats\.partitions = 3: .* has 8"):
        async with NatsBus.open(database, STREAMS, other):
            pass


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("nats://127.0.0.1:1", UnreachableError, "NATS at 127.0.0.1:1 does not answer"),
        ("nats://qts:wrong@HERE", RefusedError, "refuses the user, password or token"),
        ("", RefusedError, "outbox.nats.url is not valid"),
    ],
)
async def test_a_server_that_refuses_is_named(
    database: Database, nats_server: NatsServer, url: str, error: type[Exception], message: str
) -> None:
    config = NatsBusConfig(url=Secret(url.replace("HERE", f"127.0.0.1:{nats_server.port}")))
    with pytest.raises(error, match=message) as caught:
        async with NatsBus.open(database, STREAMS, config):
            pass
    assert "wrong" not in str(caught.value)


async def test_a_cluster_that_loses_its_leader_loses_nothing(
    database: Database, tmp_path: Path
) -> None:
    with cluster(tmp_path) as servers:
        config = NatsBusConfig(url=servers.url, replicas=3)
        lines = HandledByAggregate()
        async with (
            _once_formed(database, config) as bus,
            running(bus.consumer(TRADE_COMMAND, lines)),
        ):
            feeding = asyncio.create_task(feed(database, bus, range(400), gap_s=0.05))
            await lines.have(50)
            leader = await _leader(servers)
            servers.kill(leader)
            await lines.have(200)
            servers.start(leader)
            await feeding
            await lines.have(400)
    assert lines.done == expected(400)


@asynccontextmanager
async def _once_formed(database: Database, config: NatsBusConfig) -> AsyncIterator[NatsBus]:
    """Open the bus once the cluster has elected a leader."""
    async with contextlib.AsyncExitStack() as stack:
        async with asyncio.timeout(60):
            while True:
                try:
                    opening = NatsBus.open(database, STREAMS, config)
                    bus = await stack.enter_async_context(opening)
                    break
                except OperationError:
                    await asyncio.sleep(0.2)
        await stack.enter_async_context(bus.relaying())
        yield bus


async def _leader(servers: Cluster) -> str:
    client = await nats_client.connect(servers.url.reveal().split(","))
    info = await client.jetstream().stream_info(NAME)
    await client.close()
    assert info.cluster is not None
    assert info.cluster.leader is not None
    return info.cluster.leader


async def _has_seen(recorder: Recorder, count: int) -> bool:
    return len(recorder.seen) >= count


async def _messages(config: NatsBusConfig, stream: str) -> int:
    assert config.url is not None
    client = await nats_client.connect(config.url.reveal())
    info = await client.jetstream().stream_info(stream.replace(".", "_"))
    await client.close()
    return info.state.messages


async def _is_empty(config: NatsBusConfig, stream: str) -> bool:
    return await _messages(config, stream) == 0
