"""Worker: events whose handlers succeed, fail, time out or never return."""

# ruff: noqa: PT012, S311 - what raises is a whole transaction block; chance is repeatable

from __future__ import annotations

import asyncio
import io
import random
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts import telemetry
from qts.database import Connection, Database, DatabaseConfig
from qts.domain import Secret, SystemClock, UnreachableError
from qts.outbox import (
    SYSTEM_EVENT,
    TRADE_COMMAND,
    TRADE_EVENT,
    Delivery,
    Dispatcher,
    OutboxWorker,
    PermanentError,
    PostgresBus,
    RetryableError,
    StreamConfig,
    UnknownOutcomeError,
    mark_handled,
)
from qts.outbox.admin import update_gauges
from qts.outbox.claims import ClaimedEvent, Claims
from qts.outbox.handling import backoff_s, classify_error
from qts.telemetry import TelemetryConfig
from tests.database.backends import end_backends
from tests.outbox.kit import (
    QUICK,
    STREAMS,
    OrderAccepted,
    Recorder,
    accepted,
    publish,
    running,
    until,
    until_statuses,
)


async def test_a_handler_gets_its_payload_typed_and_its_delivery(
    database: Database, bus: PostgresBus
) -> None:
    seen: list[tuple[OrderAccepted, Delivery]] = []
    dispatcher = Dispatcher()

    @dispatcher.on(TRADE_EVENT, OrderAccepted)
    async def handle(payload: OrderAccepted, delivery: Delivery) -> None:
        seen.append((payload, delivery))

    event = accepted("42", 7)
    async with running(bus.consumer(TRADE_EVENT, dispatcher)):
        await publish(database, bus, event)
        await until_statuses(database, {"DONE": 1})
    ((payload, delivery),) = seen
    assert payload == OrderAccepted("42", 7)
    assert delivery.event_id == event.envelope.event_id
    assert (delivery.aggregate_type, delivery.aggregate_id) == ("Order", "42")
    assert (delivery.attempt, delivery.max_attempts) == (1, 3)


@pytest.mark.parametrize(
    ("error", "status", "attempts", "code"),
    [
        (RetryableError("busy", code="HTTP_503"), "DEAD", 3, "HTTP_503"),
        (KeyError("gone"), "DEAD", 3, "KeyError"),
        (PermanentError("bad tick size", code="BAD_TICK"), "DEAD", 1, "BAD_TICK"),
        (UnknownOutcomeError("no answer to the order"), "DEAD", 1, "UNKNOWN"),
    ],
)
async def test_the_class_of_an_error_decides_whether_it_is_tried_again(
    database: Database, bus: PostgresBus, error: Exception, status: str, attempts: int, code: str
) -> None:
    async def fail(_: Any) -> None:
        raise error

    recorder = Recorder(fail)
    bad, good = accepted("bad"), accepted("good", stream=SYSTEM_EVENT)
    async with running(bus.consumer(TRADE_EVENT, recorder), bus.consumer(SYSTEM_EVENT, Recorder())):
        await publish(database, bus, bad, good)
        await until_statuses(database, {status: 1, "DONE": 1})
    assert len(recorder.seen) == attempts
    (letter,) = await bus.dead_letters(TRADE_EVENT)
    assert (letter.event_id, letter.attempts) == (bad.envelope.event_id, attempts)
    assert letter.error_code == code
    assert str(error).strip("'") in letter.error_message


async def test_a_failure_that_passes_ends_well(database: Database, bus: PostgresBus) -> None:
    async def fail_twice(delivery: Delivery) -> None:
        if delivery.attempt < 3:
            raise RetryableError("not yet")

    recorder = Recorder(fail_twice)
    async with running(bus.consumer(TRADE_EVENT, recorder)):
        await publish(database, bus, accepted())
        await until_statuses(database, {"DONE": 1})
    assert [delivery.attempt for delivery in recorder.seen] == [1, 2, 3]


async def test_a_handler_that_never_returns_ends_dead_and_others_continue(
    database: Database,
) -> None:
    config = StreamConfig(
        **{**QUICK, "handler_timeout_s": 0.1}, max_attempts=2, concurrency=1, batch=4
    )

    async def hang(delivery: Delivery) -> None:
        if delivery.aggregate_id == "bad":
            await asyncio.Event().wait()

    recorder = Recorder(hang)
    async with PostgresBus.open(database, {TRADE_EVENT: config}) as bus:
        async with running(bus.consumer(TRADE_EVENT, recorder)):
            await publish(database, bus, accepted("bad"), *(accepted(str(n)) for n in range(9)))
            await until_statuses(database, {"DONE": 9, "DEAD": 1})
        (letter,) = await bus.dead_letters(TRADE_EVENT)
    assert (letter.error_code, letter.attempts) == ("TIMEOUT", 2)


async def test_a_timed_out_event_is_logged_with_its_ids(database: Database) -> None:
    config = StreamConfig(**{**QUICK, "handler_timeout_s": 0.05}, max_attempts=2, concurrency=1)
    lines, event = io.StringIO(), accepted("late")
    telemetry.configure(TelemetryConfig(log_format="json"), lines)

    async def hang(_: Delivery) -> None:
        await asyncio.Event().wait()

    try:
        async with (
            PostgresBus.open(database, {TRADE_EVENT: config}) as bus,
            running(bus.consumer(TRADE_EVENT, Recorder(hang))),
        ):
            await publish(database, bus, event)
            await until_statuses(database, {"DEAD": 1})
    finally:
        telemetry.configure(TelemetryConfig())
        telemetry.shutdown()
    failed = [
        line
        for line in map(msgspec.json.decode, lines.getvalue().splitlines())
        if line["event"].startswith("event failed")
    ]
    assert [line["code"] for line in failed] == ["TIMEOUT", "TIMEOUT"]
    for line in failed:
        assert line["eventId"] == str(event.envelope.event_id)
        assert line["traceId"] == event.envelope.trace_id
        assert line["stream"] == TRADE_EVENT


async def test_a_handler_that_ignores_its_cancellation_loses_its_slot_only(
    database: Database,
) -> None:
    config = StreamConfig(**{**QUICK, "handler_timeout_s": 0.05}, max_attempts=1, concurrency=1)
    release = asyncio.Event()

    async def stubborn(delivery: Delivery) -> None:
        while delivery.aggregate_id == "bad" and not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async with PostgresBus.open(database, {TRADE_EVENT: config}) as bus:
        async with running(bus.consumer(TRADE_EVENT, Recorder(stubborn))):
            await publish(database, bus, accepted("bad"), accepted("good"))
            await until_statuses(database, {"DONE": 1, "DEAD": 1})
            release.set()
        (letter,) = await bus.dead_letters(TRADE_EVENT)
    assert letter.error_code == "TIMEOUT"


async def test_a_handler_that_is_cancelled_from_within_keeps_its_slot(database: Database) -> None:
    """Before its timeout, because what it awaited was cancelled."""
    config = StreamConfig(**{**QUICK, "handler_timeout_s": 3600}, max_attempts=1, concurrency=1)

    async def wait_for_what_is_cancelled(delivery: Delivery) -> None:
        if delivery.aggregate_id == "bad":
            work = asyncio.ensure_future(asyncio.Event().wait())
            work.cancel()
            await work

    async with PostgresBus.open(database, {TRADE_EVENT: config}) as bus:
        async with running(bus.consumer(TRADE_EVENT, Recorder(wait_for_what_is_cancelled))):
            await publish(database, bus, accepted("bad"), accepted("good"))
            await until_statuses(database, {"DONE": 1, "DEAD": 1})
        (letter,) = await bus.dead_letters(TRADE_EVENT)
    assert letter.error_code == "CANCELLED"


@pytest.mark.parametrize("awaits", [True, False], ids=["then-awaits", "then-returns"])
async def test_a_handler_that_cancels_its_own_task_keeps_its_slot(
    database: Database, awaits: bool
) -> None:
    """The cancellation costs the handler's own event at most, not the slot or the next event."""
    config = StreamConfig(**{**QUICK, "handler_timeout_s": 3600}, max_attempts=1, concurrency=1)

    async def cancel_itself(delivery: Delivery) -> None:
        if delivery.aggregate_id == "bad":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        if awaits:
            await asyncio.sleep(0)

    ended = {"DONE": 2, "DEAD": 1} if awaits else {"DONE": 3}
    async with (
        PostgresBus.open(database, {TRADE_EVENT: config}) as bus,
        running(bus.consumer(TRADE_EVENT, Recorder(cancel_itself))),
    ):
        await publish(database, bus, *(accepted(name) for name in ("bad", "good", "other")))
        await until_statuses(database, ended, 20)


async def test_more_time_can_be_asked_for(database: Database) -> None:
    config = StreamConfig(**{**QUICK, "handler_timeout_s": 0.1}, max_attempts=1)

    async def slow(delivery: Delivery) -> None:
        delivery.extend(5)
        await asyncio.sleep(0.4)

    async with (
        PostgresBus.open(database, {TRADE_EVENT: config}) as bus,
        running(bus.consumer(TRADE_EVENT, Recorder(slow))),
    ):
        await publish(database, bus, accepted())
        await until_statuses(database, {"DONE": 1})


async def test_a_long_handler_keeps_its_lock(database: Database) -> None:
    config = StreamConfig(**{**QUICK, "lock_ttl_s": 0.3})

    async def slow(_: Any) -> None:
        await asyncio.sleep(1)  # more than three locks long

    recorder = Recorder(slow)
    async with PostgresBus.open(database, {TRADE_EVENT: config}) as bus:
        consumers = [bus.consumer(TRADE_EVENT, recorder) for _ in range(2)]
        async with running(*consumers):
            await publish(database, bus, accepted())
            await until_statuses(database, {"DONE": 1})
    assert len(recorder.seen) == 1


async def test_events_without_a_handler_or_with_a_wrong_payload_are_dead_letters(
    database: Database, bus: PostgresBus
) -> None:
    dispatcher = Dispatcher()

    @dispatcher.on(TRADE_EVENT, OrderAccepted, "Wrong")
    async def handle(payload: OrderAccepted, delivery: Delivery) -> None:
        raise AssertionError("its payload does not fit")

    dispatcher.ignore(TRADE_EVENT, "Ignored")
    await publish(
        database, bus, accepted("1", type="Strange"), accepted("2", type="Ignored"),
        msgspec.structs.replace(accepted("3"), envelope=msgspec.structs.replace(
            accepted().envelope, type="Wrong", payload={"order": 3})),
    )  # fmt: skip
    async with running(bus.consumer(TRADE_EVENT, dispatcher)):
        await until_statuses(database, {"DONE": 1, "DEAD": 2})
    codes = {letter.error_code for letter in await bus.dead_letters(TRADE_EVENT)}
    assert codes == {"NO_HANDLER", "PAYLOAD_INVALID"}


async def test_events_of_one_aggregate_come_in_order_and_never_two_at_once(
    database: Database, bus: PostgresBus
) -> None:
    rng = random.Random(5)
    busy: set[str] = set()
    done: dict[str, list[int]] = {}

    async def handle(delivery: Delivery) -> None:
        key = delivery.aggregate_id
        assert key not in busy
        busy.add(key)
        try:
            await asyncio.sleep(rng.uniform(0, 0.004))
            if rng.random() < 0.1:
                raise RetryableError("again")
            done.setdefault(key, []).append(
                msgspec.json.decode(delivery.envelope.payload)["number"]
            )
        finally:
            busy.discard(key)

    consumers = [bus.consumer(TRADE_COMMAND, Recorder(handle)) for _ in range(3)]
    async with running(*consumers):
        for start in range(0, 300, 50):
            events = [
                accepted(str(n % 12), n, stream=TRADE_COMMAND) for n in range(start, start + 50)
            ]
            await publish(database, bus, *events)
        await until_statuses(database, {"DONE": 300}, 40)
    assert done == {str(key): list(range(key, 300, 12)) for key in range(12)}


async def test_a_dead_letter_lets_those_behind_it_pass(
    database: Database, bus: PostgresBus
) -> None:
    async def fail_first(delivery: Delivery) -> None:
        if msgspec.json.decode(delivery.envelope.payload)["number"] == 0:
            raise PermanentError("bad")

    events = [accepted("x", n, stream=TRADE_COMMAND) for n in range(3)]
    await publish(database, bus, *events)
    async with running(bus.consumer(TRADE_COMMAND, Recorder(fail_first))):
        await until_statuses(database, {"DONE": 2, "DEAD": 1})


async def test_a_stopped_worker_finishes_running_events_and_releases_the_rest(
    database: Database,
) -> None:
    config = StreamConfig(**QUICK, concurrency=2, batch=10)
    began, resume = asyncio.Event(), asyncio.Event()

    async def wait(_: Any) -> None:
        began.set()
        await resume.wait()

    async with PostgresBus.open(database, {TRADE_EVENT: config}) as bus:
        await publish(database, bus, *(accepted(str(n)) for n in range(10)))
        worker = bus.consumer(TRADE_EVENT, Recorder(wait))
        serving = asyncio.create_task(worker.run())
        await began.wait()
        worker.stop()
        resume.set()
        await serving
    rows = await database.fetch("SELECT status, attempt_count, locked_by FROM outbox_event")
    assert 0 < len(rows) <= 8
    assert {tuple(row) for row in rows} == {("PENDING", 0, None)}
    assert await database.fetchval("SELECT count(*) FROM outbox_archive") == 10 - len(rows)


async def test_a_paused_stream_waits_and_others_do_not(
    database: Database, bus: PostgresBus
) -> None:
    await bus.pause(TRADE_EVENT)
    paused, other = Recorder(), Recorder()
    async with running(bus.consumer(TRADE_EVENT, paused), bus.consumer(SYSTEM_EVENT, other)):
        await publish(database, bus, accepted(), accepted(stream=SYSTEM_EVENT))
        await until_statuses(database, {"PENDING": 1, "DONE": 1})
        assert paused.seen == []
        await bus.resume(TRADE_EVENT)
        await until_statuses(database, {"DONE": 2})


async def test_a_worker_lives_through_the_end_of_its_backends(
    database: Database, bus: PostgresBus, postgres_admin: Any, database_url: Any
) -> None:
    recorder = Recorder()
    async with running(bus.consumer(TRADE_EVENT, recorder)):
        for round_ in range(3):
            await publish(database, bus, *(accepted(f"{round_}-{n}") for n in range(20)))
            await until_statuses(database, {"DONE": 20 * (round_ + 1)})
            assert await end_backends(postgres_admin, database_url) > 0
        await publish(database, bus, accepted("last"))
        await until_statuses(database, {"DONE": 61})


async def test_handlers_get_connections_while_the_worker_keeps_one(
    database_url: Secret,
) -> None:
    """A pool of two, one for claims: results and handlers share the other."""

    async def use(_delivery: Delivery) -> None:
        await database.fetchval("SELECT 1")

    recorder = Recorder(use)
    small = DatabaseConfig(pool_min=1, pool_max=2, connect_timeout_s=60)
    async with (
        Database.open(database_url, small) as database,
        PostgresBus.open(database, STREAMS) as bus,
    ):
        await publish(database, bus, *(accepted(str(n)) for n in range(30)))
        async with running(bus.consumer(TRADE_EVENT, recorder)):
            await until_statuses(database, {"DONE": 30})
    assert len(recorder.seen) == 30


async def test_a_worker_that_started_behind_is_notified_later(database: Database) -> None:
    config = StreamConfig(**{**QUICK, "poll_max_s": 30.0, "batch": 10})
    recorder = Recorder()
    async with PostgresBus.open(database, {TRADE_EVENT: config}) as bus:
        await publish(database, bus, *(accepted(str(n)) for n in range(100)))
        async with running(bus.consumer(TRADE_EVENT, recorder)):
            await until_statuses(database, {"DONE": 100})
            await until(lambda: _is_listened_to(database))
            await publish(database, bus, accepted("later"))
            await until_statuses(database, {"DONE": 101}, 20)


async def _is_listened_to(database: Database) -> bool:
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND query LIKE 'LISTEN%outbox%'"
    )
    return bool(await database.fetchval(query))


async def test_an_effect_happens_once_though_its_event_comes_twice(
    database: Database, bus: PostgresBus
) -> None:
    await database.execute("CREATE TABLE effect (event_id uuid)")

    async def work(delivery: Delivery) -> None:
        async with database.transaction() as tx:
            if await mark_handled(tx, delivery.event_id, "booking"):
                await tx.execute("INSERT INTO effect VALUES ($1)", delivery.event_id)
        if delivery.attempt == 1:
            raise RetryableError("lost after the effect")

    async with running(bus.consumer(TRADE_EVENT, Recorder(work))):
        await publish(database, bus, accepted())
        await until_statuses(database, {"DONE": 1})
    assert await database.fetchval("SELECT count(*) FROM effect") == 1


async def test_a_rolled_back_mark_does_not_count(database: Database) -> None:
    event_id = accepted().envelope.event_id
    with pytest.raises(LookupError):
        async with database.transaction() as tx:
            assert await mark_handled(tx, event_id)
            raise LookupError
    async with database.transaction() as tx:
        assert await mark_handled(tx, event_id)
        assert not await mark_handled(tx, event_id)
        assert await mark_handled(tx, event_id, "another handler")


async def test_a_broken_envelope_is_a_dead_letter(database: Database, bus: PostgresBus) -> None:
    await database.execute(
        "INSERT INTO outbox_event (event_id, stream, event_type, aggregate_type, aggregate_id, "
        "payload_json) VALUES (gen_random_uuid(), $1, 't', 'a', '1', '{\"type\": 1}')",
        TRADE_EVENT,
    )
    async with running(bus.consumer(TRADE_EVENT, Recorder())):
        await until_statuses(database, {"DEAD": 1})
    (letter,) = await bus.dead_letters(TRADE_EVENT)
    assert letter.error_code == "ENVELOPE_INVALID"


async def test_log_lines_and_metrics_carry_the_agreed_names(
    database: Database, bus: PostgresBus
) -> None:
    lines = io.StringIO()
    telemetry.configure(TelemetryConfig(log_format="json"), lines)

    async def fail(_: Any) -> None:
        telemetry.logger("mine").info("in the handler")
        raise PermanentError("no", code="NO")

    event = accepted("9")
    try:
        async with running(bus.consumer(TRADE_EVENT, Recorder(fail))):
            await publish(database, bus, event)
            await until_statuses(database, {"DEAD": 1})
    finally:
        telemetry.configure(TelemetryConfig())
        telemetry.shutdown()
    ids = {
        "traceId": event.envelope.trace_id,
        "eventId": str(event.envelope.event_id),
        "stream": TRADE_EVENT,
        "eventType": "OrderAccepted",
        "aggregateType": "Order",
        "aggregateId": "9",
    }
    logged = {
        line["event"]: line for line in map(msgspec.json.decode, lines.getvalue().splitlines())
    }
    for text in ("in the handler", "event failed; dead letter"):
        assert ids.items() <= logged[text].items()

    await update_gauges(database, STREAMS)
    shown = telemetry.render_metrics().decode()
    for metric in (
        f'everbit_outbox_pending{{stream="{TRADE_EVENT}"}} 0.0',
        f'everbit_outbox_processing{{stream="{TRADE_EVENT}"}} 0.0',
        f'everbit_outbox_dead{{stream="{TRADE_EVENT}"}} 1.0',
        f'everbit_outbox_oldest_pending_seconds{{stream="{TRADE_EVENT}"}} 0.0',
        f'everbit_outbox_processed_total{{result="dead",stream="{TRADE_EVENT}"}}',
        "everbit_outbox_handler_duration_seconds_bucket{eventType=",
    ):
        assert metric in shown


@given(st.integers(1, 1000), st.integers(0, 2**32))
def test_pauses_double_are_capped_and_spread_by_a_fifth(attempt: int, rng: int) -> None:
    config = StreamConfig(backoff_base_s=0.5, backoff_max_s=60)
    pause = backoff_s(config, attempt, random.Random(rng))
    middle = min(0.5 * 2 ** (attempt - 1), 60)
    assert 0.8 * middle <= pause <= 1.2 * middle


def test_every_worker_has_a_different_name(database: Database) -> None:
    names = {OutboxWorker(database, TRADE_EVENT, StreamConfig(), Recorder()).name for _ in range(9)}
    assert len(names) == 9


def test_a_code_that_cannot_be_stored_is_made_so_that_it_can() -> None:
    """It would be retried without end and block every result after it."""
    result = classify_error(RetryableError("no", code="a\0b\ud800"))
    assert result.code == "a\\0b\\ud800"


async def test_in_an_ordered_stream_a_handler_ends_before_its_lock(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that cannot extend its locks stops a handler before another worker starts it."""
    running_attempts: set[int] = set()
    seen_by_other: list[set[int]] = []
    began, taken_over = asyncio.Event(), asyncio.Event()

    async def wait_long(delivery: Delivery) -> None:
        if delivery.aggregate_id != "slow":
            return
        running_attempts.add(delivery.attempt)
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            running_attempts.discard(delivery.attempt)

    async def observe(delivery: Delivery) -> None:
        if delivery.aggregate_id == "slow":
            seen_by_other.append(set(running_attempts))
            taken_over.set()

    async def unreachable(*_args: Any) -> set[int]:
        raise UnreachableError("the database does not answer")

    config = StreamConfig(ordered=True, concurrency=1, **{**QUICK, "handler_timeout_s": 30.0})
    async with PostgresBus.open(database, {TRADE_COMMAND: config}) as bus:
        await publish(database, bus, accepted("slow", 1, stream=TRADE_COMMAND))
        first = OutboxWorker(database, TRADE_COMMAND, config, Recorder(wait_long))
        monkeypatch.setattr(first._claims, "extend", unreachable)
        monkeypatch.setattr(first._claims, "fail", unreachable)  # only the expiry frees the event
        async with running(first):
            await began.wait()
            async with running(OutboxWorker(database, TRADE_COMMAND, config, Recorder(observe))):
                async with asyncio.timeout(20):
                    await taken_over.wait()
            assert seen_by_other == [set()]
            # The only slot of the first worker still takes events.
            await publish(database, bus, accepted("next", 1, stream=TRADE_COMMAND))
            await until_statuses(database, {"DONE": 2}, 20)
            monkeypatch.undo()


async def test_a_lock_is_named_by_its_own_token(database: Database, bus: PostgresBus) -> None:
    """A claim that expired is neither extended nor released with another claim of the worker."""
    await publish(database, bus, accepted("a"), accepted("b"))
    claims = Claims(TRADE_EVENT, StreamConfig(**{**QUICK, "lock_ttl_s": 0.05}))
    async with database.connection() as connection:

        async def claim(again: bool) -> list[ClaimedEvent]:
            return await (
                claims.claim_stale(connection, 1, 0) if again else claims.claim(connection, 1, 0)
            )

        async def lock_of(event: ClaimedEvent) -> str | None:
            token: str | None = await connection.fetchval(
                "SELECT locked_by FROM outbox_event WHERE id = $1", event.id
            )
            return token

        (expired,) = await claim(again=False)
        await connection.execute("SELECT pg_sleep(0.06)")
        (current,) = await claim(again=True)
        assert (current.id, current.token != expired.token) == (expired.id, True)
        (other,) = await claim(again=False)
        newest = [current.token, other.token]
        # The result of `expired` is overdue; `other` shares no token with it, `current` its id.
        mixed = [expired, ClaimedEvent(other.id, current.token, other.due_at, other.delivery, 0)]
        assert await claims.extend(connection, mixed) == set()
        await claims.release(connection, mixed)
        assert [await lock_of(current), await lock_of(other)] == newest
        assert await claims.extend(connection, [current, other]) == {current.id, other.id}


class HangingServer(SystemClock):
    """Clock that moves on by `hang_s` in the next full scan, as if the server had hung in it."""

    def __init__(self) -> None:
        self._moved_ns = 0
        self.hang_s = 0.0
        self.hung = asyncio.Event()

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self._moved_ns

    def attach(self, worker: OutboxWorker, monkeypatch: pytest.MonkeyPatch) -> None:
        mark_exhausted = worker._claims.mark_exhausted  # each full scan calls it once

        async def hang(connection: Connection) -> list[UUID]:
            found = await mark_exhausted(connection)
            if self.hang_s:
                self._moved_ns += round(self.hang_s * 1e9)
                self.hang_s = 0.0
                self.hung.set()
            return found

        monkeypatch.setattr(worker._claims, "mark_exhausted", hang)


@pytest.mark.parametrize("stream", [TRADE_COMMAND, TRADE_EVENT])
async def test_events_of_lost_workers_are_found_soon_after_the_server_hung(
    database: Database, bus: PostgresBus, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    """A scan that lasted long because the server hung does not put off those after it."""
    clock, recorder = HangingServer(), Recorder()
    worker = OutboxWorker(database, stream, STREAMS[stream], recorder, clock)
    clock.attach(worker, monkeypatch)
    async with running(worker):
        await publish(database, bus, accepted("first", stream=stream))
        await until_statuses(database, {"DONE": 1})
        clock.hang_s = 60.0
        await clock.hung.wait()
        await publish(database, bus, accepted("lost", stream=stream, delay_s=3600))
        await database.execute(
            "UPDATE outbox_event SET status = 'PROCESSING', attempt_count = 1, locked_by = 'lost',"
            " locked_until = clock_timestamp(), next_retry_at = clock_timestamp()"
        )
        await until_statuses(database, {"DONE": 2}, 15)
    assert [delivery.aggregate_id for delivery in recorder.seen] == ["first", "lost"]


async def test_a_slot_that_is_cancelled_while_it_waits_does_not_fail_the_worker(
    database: Database,
) -> None:
    """A handler may leave a cancellation that arrives with the next event."""
    config = StreamConfig(concurrency=1, **QUICK)
    recorder = Recorder()
    worker = OutboxWorker(database, TRADE_EVENT, config, recorder)
    submit = worker._pool.submit

    def cancel_and_submit(claimed: list[ClaimedEvent]) -> None:
        if claimed:
            (slot,) = worker._pool._slots
            assert slot.task is not None
            slot.task.cancel()
        submit(claimed)

    worker._pool.submit = cancel_and_submit  # type: ignore[method-assign, assignment]
    async with PostgresBus.open(database, {TRADE_EVENT: config}) as bus, running(worker):
        for number in range(3):
            await publish(database, bus, accepted(str(number)))
            await until_statuses(database, {"DONE": number + 1}, 10)
    assert len(recorder.seen) == 3


@pytest.mark.parametrize("statement", ["extend", "complete", "claim"])
async def test_a_loop_that_ends_by_a_cancellation_fails_the_worker(
    database: Database, bus: PostgresBus, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """Without one of its loops a worker would hold its events for ever."""
    released = asyncio.Event()

    async def wait(_: Delivery) -> None:
        if statement == "extend":
            await released.wait()

    async def cancel(*_: Any) -> None:
        raise asyncio.CancelledError

    worker = OutboxWorker(database, TRADE_EVENT, STREAMS[TRADE_EVENT], Recorder(wait))
    monkeypatch.setattr(worker._claims, statement, cancel)
    await publish(database, bus, accepted())
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(10):
            await worker.run()
    assert "cancelled from within" in str(raised.value.exceptions[0])
