"""An event is published with its transaction or not at all, and once per event_id."""

# ruff: noqa: PT012 - what raises is a whole transaction block

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts import telemetry
from qts.database import Connection, Database, DatabaseConfig, savepoint
from qts.domain import Secret
from qts.outbox import (
    SYSTEM_EVENT,
    TRADE_EVENT,
    Envelope,
    OutboxAdmin,
    OutboxConfig,
    OutboxEvent,
    OutboxEventRefusedError,
    PostgresBus,
    uuid7,
)
from qts.outbox.postgres import encode_checked
from qts.outbox.worker import MIN_INTERVAL_S
from tests.outbox.kit import STREAMS, accepted, publish, statuses, until


async def test_the_envelope_is_stored_whole(database: Database, bus: PostgresBus) -> None:
    event = accepted("7", 1, market="KRW-BTC", strategy_key="EXTREME_FLIP")
    async with database.transaction() as tx:
        assert await bus.publish(tx, event)
    row = await OutboxAdmin(database).show(event.envelope.event_id)
    assert row.payload_json == msgspec.to_builtins(event.envelope)
    assert set(row.payload_json) == {
        "schemaVersion", "eventId", "type", "occurredAt", "traceId", "ownerId", "strategyKey",
        "market", "payload",
    }  # fmt: skip
    assert (row.status, row.attempt_count, row.max_attempts) == ("PENDING", 0, 3)
    assert (row.event_type, row.aggregate_type, row.aggregate_id) == ("OrderAccepted", "Order", "7")


async def test_a_rollback_publishes_nothing(database: Database, bus: PostgresBus) -> None:
    many = [accepted(str(n)) for n in range(100)]
    with pytest.raises(LookupError):
        async with database.transaction() as tx:
            await bus.publish(tx, accepted())
            await bus.publish_many(tx, many)
            raise LookupError
    assert await statuses(database) == {}
    await publish(database, bus, *many)  # and their ids were not used up
    assert await statuses(database) == {"PENDING": 100}


@pytest.mark.parametrize("count", [1, 5, 200])
async def test_a_second_publish_says_so_and_changes_nothing(
    database: Database, bus: PostgresBus, count: int
) -> None:
    events = [accepted(str(n)) for n in range(count)]
    ids = {event.envelope.event_id for event in events}
    async with database.transaction() as tx:
        assert await bus.publish_many(tx, events + events) == ids
    more = accepted("new")
    async with database.transaction() as tx:
        assert await bus.publish_many(tx, [*events, more]) == {more.envelope.event_id}
        assert not await bus.publish(tx, events[0])
    assert await statuses(database) == {"PENDING": count + 1}


async def test_an_id_stays_taken_after_the_event_was_handled(
    database: Database, bus: PostgresBus
) -> None:
    event = accepted()
    await publish(database, bus, event)
    await database.execute(
        "UPDATE outbox_event SET status = 'PROCESSING', attempt_count = 1, locked_by = 'w', "
        "locked_until = clock_timestamp()"
    )
    await database.execute("DELETE FROM outbox_event")
    async with database.transaction() as tx:
        assert not await bus.publish(tx, event)


async def test_a_thousand_publishers_of_one_id_make_one_row(database_url: Secret) -> None:
    event = accepted()
    config = DatabaseConfig(pool_min=1, pool_max=20, connect_timeout_s=30)
    async with Database.open(database_url, config) as database:
        async with PostgresBus.open(database, STREAMS) as bus:

            async def once() -> bool:
                async with database.transaction() as tx:
                    return await bus.publish(tx, event)

            new = await asyncio.gather(*(once() for _ in range(1000)))
        assert (new.count(True), new.count(False)) == (1, 999)
        assert await statuses(database) == {"PENDING": 1}


async def test_many_keep_their_order(database: Database, bus: PostgresBus) -> None:
    for count in (20, 300):  # below and above the size that is copied
        events = [accepted("x", n) for n in range(count)]
        await publish(database, bus, *events)
        rows = await database.fetch(
            "SELECT event_id FROM outbox_event ORDER BY next_retry_at, id OFFSET $1",
            0 if count == 20 else 20,
        )
        assert [row[0] for row in rows] == [event.envelope.event_id for event in events]


REFUSED: list[tuple[str, OutboxEvent, str]] = [
    ("market data", accepted(type="PRICE_TICK"), "market data is not allowed on the bus"),
    ("ticker", accepted(type="Ticker"), "market data is not allowed on the bus"),
    ("order book", accepted(type="ORDERBOOK_UPDATE"), "market data is not allowed on the bus"),
    ("stream", accepted(stream="everbit.trade.commands"), "known: everbit.trade.command, "),
    ("version", accepted(schema_version=2), "schemaVersion 2 is not 1"),
    ("no type", accepted(type=""), "need 1 to 200 characters"),
    ("long aggregate", accepted("x" * 201), "need 1 to 200 characters"),
    ("nul in aggregate", accepted("a\0b"), "cannot be stored"),
    ("surrogate in aggregate", accepted("a\ud800"), "cannot be stored"),
    ("delay", accepted(delay_s=-1.0), "delay_s -1.0 is not between"),
    ("delay of nan", accepted(delay_s=float("nan")), "delay_s nan is not between"),
]


def raw(payload: Any) -> OutboxEvent:
    return OutboxEvent.of(TRADE_EVENT, payload, ("Order", "1"), type="Custom")


REFUSED += [
    ("size", raw("x" * 1_000_001), "are more than the 1,000,000 allowed"),
    ("object", raw(object()), "the payload is not JSON"),
    ("nan", raw({"price": [1.0, float("nan")]}), "payload.price[1] is nan"),
    ("infinity", raw({"a": float("inf")}), "payload.a is inf"),
    ("nul", raw({"a": "x\0y"}), "contains a NUL character"),
    ("nul in a key", raw({"x\0y": None}), "contains a NUL character"),
    ("surrogate", raw("\ud800"), "the payload is not JSON"),
    ("torn json", raw(msgspec.Raw(b'{"a":')), "the payload is not JSON"),
    ("no json", raw(msgspec.Raw(b"NaN")), "the payload is not JSON"),
    ("deep", raw(msgspec.Raw(b"[" * 50_000 + b"]" * 50_000)), "the payload is not JSON"),
]


@pytest.mark.parametrize(
    ("event", "why"), [case[1:] for case in REFUSED], ids=[c[0] for c in REFUSED]
)
async def test_bad_input_is_refused_and_the_transaction_stays_usable(
    database: Database, bus: PostgresBus, event: OutboxEvent, why: str
) -> None:
    good = accepted("good")
    async with database.transaction() as tx:
        for attempt in (bus.publish(tx, event), bus.publish_many(tx, [good, event])):
            with pytest.raises(OutboxEventRefusedError) as caught:
                await attempt
            assert why in str(caught.value)
            assert len(str(caught.value).splitlines()) == 1
        assert await bus.publish(tx, good)
    assert await statuses(database) == {"PENDING": 1}


@pytest.mark.parametrize("name", [None, 5])
async def test_a_name_that_is_no_text_is_refused(
    database: Database, bus: PostgresBus, name: Any
) -> None:
    event = msgspec.structs.replace(accepted(), aggregate_id=name)
    async with database.transaction() as tx:
        with pytest.raises(OutboxEventRefusedError, match="need 1 to 200 characters each"):
            await bus.publish(tx, event)


@pytest.mark.parametrize("known", [False, True])
async def test_a_bad_event_among_many_undoes_them_and_not_the_transaction(
    database: Database, bus: PostgresBus, known: bool
) -> None:
    """Their ids are sent to the server while they are validated."""
    many = [accepted(str(n)) for n in range(300)]
    if known:
        await publish(database, bus, many[7])
    async with database.transaction() as tx:
        with pytest.raises(OutboxEventRefusedError, match="schemaVersion 2 is not 1"):
            await bus.publish_many(tx, [*many, accepted(schema_version=2)])
        assert await bus.publish(tx, accepted("another"))
    assert await statuses(database) == {"PENDING": 1 + known}
    await publish(database, bus, *many)  # and their ids were not used up
    assert await statuses(database) == {"PENDING": 301}


async def test_a_publish_of_many_that_is_cancelled_leaves_the_transaction_usable(
    database: Database, bus: PostgresBus
) -> None:
    many = [accepted(str(n)) for n in range(1000)]
    async with database.transaction() as tx:
        publishing = asyncio.create_task(bus.publish_many(tx, many))
        await asyncio.sleep(0)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        assert await bus.publish(tx, accepted("another"))
    assert await statuses(database) == {"PENDING": 1}


async def test_unusual_valid_payloads_pass(database: Database, bus: PostgresBus) -> None:
    payloads = [None, {"a": None}, "\\u0000", "null", {"null": "NaN"}, [0.1, 2**63], "가격 ₩"]
    for payload in payloads:
        event = raw(payload)
        await publish(database, bus, event)
        row = await OutboxAdmin(database).show(event.envelope.event_id)
        assert row.payload_json["payload"] == payload


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(json_values)
def test_a_body_is_the_payload_itself_or_refused(payload: Any) -> None:
    try:
        body = encode_checked(raw(payload), STREAMS)
    except OutboxEventRefusedError:
        assert _is_invalid(payload)
    else:
        assert not _is_invalid(payload)
        assert msgspec.json.decode(body)["payload"] == payload


def _is_invalid(value: Any) -> bool:
    if isinstance(value, float):
        return value != value or value in (float("inf"), float("-inf"))
    if isinstance(value, str):
        return "\0" in value or any(0xD800 <= ord(c) <= 0xDFFF for c in value)
    if isinstance(value, dict):
        return any(map(_is_invalid, value)) or any(map(_is_invalid, value.values()))
    return isinstance(value, list) and any(map(_is_invalid, value))


async def _take_notify(tx: Connection, bus: PostgresBus) -> None:
    """Until this transaction ends, others do not notify by themselves."""
    assert await bus.publish(tx, accepted(stream=SYSTEM_EVENT))
    assert bus._notifier._notifying_tx is tx


@pytest.mark.parametrize("by_itself", [True, False], ids=["in the transaction", "separately"])
async def test_consumers_are_notified_after_the_commit_only(
    database: Database, bus: PostgresBus, by_itself: bool
) -> None:
    async with (
        database.listen(f"outbox {TRADE_EVENT}") as listener,
        database.transaction() as other,
    ):
        await anext(listener)
        notified = asyncio.create_task(anext(listener))
        if not by_itself:
            await _take_notify(other, bus)
        async with database.transaction() as tx:
            await bus.publish(tx, accepted())
            assert bool(bus._notifier._pending) is not by_itself
            await asyncio.sleep(0.1)  # longer than the notifier's first checks
            assert not notified.done()
        async with asyncio.timeout(60):
            await notified


async def test_one_of_many_open_transactions_has_the_notify(
    database: Database, bus: PostgresBus
) -> None:
    """Commits with a NOTIFY wait for each other."""
    async with database.transaction() as first:
        await _take_notify(first, bus)
        async with database.transaction() as second:
            assert not bus._notifier.may_notify(second)
            assert bus._notifier.may_notify(first)
    clock_ns = bus._notifier._notified_ns
    async with database.transaction() as third:
        await until(lambda: _may_notify(bus, third))
        assert bus._notifier._notified_ns - clock_ns >= MIN_INTERVAL_S * 1e9


async def _may_notify(bus: PostgresBus, tx: Connection) -> bool:
    return bus._notifier.may_notify(tx)


async def test_a_rolled_back_savepoint_does_not_lose_the_notify(
    database: Database, bus: PostgresBus
) -> None:
    async with database.listen(f"outbox {TRADE_EVENT}") as listener:
        await anext(listener)
        async with database.transaction() as tx:
            with pytest.raises(LookupError):
                async with savepoint(tx):
                    await bus.publish(tx, accepted("undone"))
                    raise LookupError
            await bus.publish(tx, accepted("kept"))
            assert not bus._notifier._pending
        async with asyncio.timeout(60):
            await anext(listener)
    assert await statuses(database) == {"PENDING": 1}


async def test_the_commit_triggers_the_check(
    database: Database, bus: PostgresBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the periodic checks, which would take a minute here."""
    for name in ("FIRST_CHECK_S", "MAX_CHECK_INTERVAL_S", "MIN_INTERVAL_S"):
        monkeypatch.setattr(f"qts.outbox.worker.{name}", 60.0)
    async with database.listen(f"outbox {TRADE_EVENT}") as listener:
        await anext(listener)
        async with database.transaction() as other:
            await _take_notify(other, bus)
            async with database.transaction() as tx:
                await bus.publish(tx, accepted())
            async with asyncio.timeout(30):
                await anext(listener)


async def test_a_rolled_back_publish_notifies_no_consumer(
    database: Database, bus: PostgresBus
) -> None:
    async def dropped() -> bool:
        return not bus._notifier._pending

    async with database.listen(f"outbox {TRADE_EVENT}") as listener:
        await anext(listener)
        notified = asyncio.create_task(anext(listener))
        for _ in range(2):  # with and without a NOTIFY of its own
            with pytest.raises(LookupError):
                async with database.transaction() as tx:
                    await bus.publish(tx, accepted())
                    raise LookupError
        await until(dropped)
        assert not notified.done()
        notified.cancel()
        await asyncio.wait({notified})


def test_an_event_carries_the_trace_of_its_moment() -> None:
    with telemetry.context(traceId="4bf92f3577b34da6a3ce929d0e0e4736"):
        assert accepted().envelope.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert len(accepted().envelope.trace_id) == 32


def test_uuid7_grows_with_time_and_is_of_its_version() -> None:
    ids = [uuid7() for _ in range(1000)]
    assert {(one.version, one.variant) for one in ids} == {(7, "specified in RFC 4122")}
    assert len(set(ids)) == 1000
    assert [one.int >> 80 for one in ids] == sorted(one.int >> 80 for one in ids)


def test_the_six_streams_have_separate_settings() -> None:
    assert list(OutboxConfig().streams) == [
        "everbit.trade.command",
        "everbit.trade.exit",
        "everbit.trade.event",
        "everbit.backtest.command",
        "everbit.backtest.event",
        "everbit.system.event",
    ]
    with pytest.raises(msgspec.ValidationError, match="must not be above backoff_max_s"):
        msgspec.convert({"trade_event": {"backoff_base_s": 60, "backoff_max_s": 1}}, OutboxConfig)


def test_an_envelope_is_written_with_the_agreed_names() -> None:
    body = msgspec.json.encode(Envelope(type="T", trace_id="t", payload={}))
    assert list(msgspec.json.decode(body)) == [
        "schemaVersion", "eventId", "type", "occurredAt", "traceId", "ownerId", "strategyKey",
        "market", "payload",
    ]  # fmt: skip
