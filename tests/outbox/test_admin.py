"""Manual handling of dead letters, and the command `qts ops outbox`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from qts.database import Database
from qts.domain import RefusedError, Secret
from qts.outbox import (
    TRADE_COMMAND,
    TRADE_EVENT,
    OutboxAdmin,
    OutboxEvent,
    PermanentError,
    PostgresBus,
    UnknownOutcomeError,
    uuid7,
)
from qts.outbox.testing import FailFirst, RecordingBus, make_due, run_due
from tests.outbox.kit import STREAMS, Recorder, accepted, publish, running, statuses


async def kill(database: Database, bus: PostgresBus, event: OutboxEvent, error: Exception) -> None:
    async def fail(_: Any) -> None:
        raise error

    await publish(database, bus, event)
    await run_due(database, event.stream, STREAMS[event.stream], Recorder(fail))


async def test_a_requeued_dead_letter_has_all_its_attempts_again(
    database: Database, bus: PostgresBus
) -> None:
    event = accepted()
    await kill(database, bus, event, PermanentError("bad"))
    before = await OutboxAdmin(database).show(event.envelope.event_id)
    assert before.status == "DEAD"
    assert await bus.requeue(event.envelope.event_id)
    after = await OutboxAdmin(database).show(event.envelope.event_id)
    assert (after.status, after.attempt_count) == ("PENDING", 0)
    assert after.id > before.id
    assert not await bus.requeue(event.envelope.event_id)


async def test_an_unknown_outcome_is_requeued_only_after_a_check(
    database: Database, bus: PostgresBus
) -> None:
    event_id = (event := accepted()).envelope.event_id
    await kill(database, bus, event, UnknownOutcomeError("no answer to the order"))
    admin = OutboxAdmin(database, STREAMS)
    assert not await bus.requeue(event_id)
    assert await admin.requeue_all(TRADE_EVENT) == 0
    with pytest.raises(RefusedError, match="--outcome-checked"):
        await admin.requeue(event_id)
    assert (await admin.requeue(event_id, outcome_checked=True)).status == "PENDING"


async def test_an_edited_letter_is_handled_with_its_new_payload(
    database: Database, bus: PostgresBus
) -> None:
    event_id = (event := accepted("1")).envelope.event_id
    await kill(database, bus, event, PermanentError("bad"))
    admin = OutboxAdmin(database, STREAMS)
    row = await admin.edit(event_id, {"order": "2", "number": 5})
    assert row.payload_json == {
        **msgspec.to_builtins(event.envelope),
        "payload": {"order": "2", "number": 5},
    }
    with pytest.raises(RefusedError, match="NUL"):
        await admin.edit(event_id, "a\0b")
    await admin.requeue(event_id)
    with pytest.raises(RefusedError, match="only a DEAD one"):
        await admin.edit(event_id, {})
    recorder = Recorder()
    await run_due(database, TRADE_EVENT, STREAMS[TRADE_EVENT], recorder)
    assert bytes(recorder.seen[0].envelope.payload) == b'{"order": "2", "number": 5}'


async def test_purged_dead_letters_are_gone_and_their_ids_stay_taken(
    database: Database, bus: PostgresBus
) -> None:
    await kill(database, bus, event := accepted(), PermanentError("bad"))
    admin = OutboxAdmin(database)
    assert await admin.purge_dead(3600) == 0
    assert await admin.purge_dead(0) == 1
    assert await statuses(database) == {}
    async with database.transaction() as tx:
        assert not await bus.publish(tx, event)


async def test_all_dead_letters_of_a_stream_come_back_in_their_order(
    database: Database, bus: PostgresBus
) -> None:
    events = [accepted("x", n, stream=TRADE_COMMAND) for n in range(5)]
    for event in events:
        await kill(database, bus, event, PermanentError("bad"))
    assert await OutboxAdmin(database, STREAMS).requeue_all(TRADE_COMMAND) == 5
    recorder = Recorder()
    async with running(bus.consumer(TRADE_COMMAND, recorder)):
        async with asyncio.timeout(60):
            while len(recorder.seen) < 5:  # noqa: ASYNC110 - the recorder gives no event
                await asyncio.sleep(0.01)
    seen = [delivery.event_id for delivery in recorder.seen]
    assert seen == [event.envelope.event_id for event in events]


async def test_the_helpers_run_what_is_due_capture_and_fail_on_purpose(
    database: Database, bus: PostgresBus
) -> None:
    recorded = RecordingBus(bus)
    async with database.transaction() as tx:
        await recorded.publish(tx, first := accepted("1"))
        await recorded.publish(tx, first)
        await recorded.publish_many(tx, [accepted("2", type="Other"), first])
    assert [event.envelope.type for event in recorded.published] == ["OrderAccepted", "Other"]
    assert recorded.of_type("OrderAccepted") == [first]

    failing = FailFirst(recorder := Recorder(), ValueError("on purpose"))
    config = STREAMS[TRADE_EVENT]
    handled = await run_due(database, TRADE_EVENT, config, failing)
    assert [one.result for one in handled] == ["retry", "done"]
    assert handled[0].code == "ValueError"
    assert await run_due(database, TRADE_EVENT, config, failing) == []
    await make_due(database, TRADE_EVENT)
    assert [one.result for one in await run_due(database, TRADE_EVENT, config, failing)] == ["done"]
    assert len(recorder.seen) == 2


async def test_tail_shows_an_event_come_and_go(database: Database, bus: PostgresBus) -> None:
    since = await database.fetchval("SELECT clock_timestamp()")
    await publish(database, bus, event := accepted())
    async with asyncio.timeout(60), aclosing(OutboxAdmin(database).tail(since=since)) as tail:
        assert (await anext(tail)).event_id == event.envelope.event_id
        await run_due(database, TRADE_EVENT, STREAMS[TRADE_EVENT], Recorder())
        assert (await anext(tail)).status == "DONE"


def qts(
    home: Path, url: Secret, *arguments: str, group: str = "ops outbox"
) -> subprocess.CompletedProcess[str]:
    settings = {"DATABASE_URL": url.reveal(), "QTS_HOME": str(home), "HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "qts", *group.split(), *arguments],
        env={"PATH": os.environ["PATH"], **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_the_command_shows_edits_requeues_and_purges(
    database: Database, bus: PostgresBus, database_url: Secret, tmp_path: Path
) -> None:
    await kill(database, bus, dead := accepted("9"), PermanentError("bad tick", code="BAD_TICK"))
    await publish(database, bus, accepted("10"))
    await bus.pause(TRADE_COMMAND)
    event_id = str(dead.envelope.event_id)

    async def ask(*arguments: str) -> Any:
        ended = await asyncio.to_thread(qts, tmp_path, database_url, *arguments, "--json")
        assert (ended.returncode, ended.stderr) == (0, "")
        return msgspec.json.decode(ended.stdout)

    streams = {row["stream"]: row for row in (await ask("status"))["streams"]}
    assert streams[TRADE_EVENT]["dead"] == streams[TRADE_EVENT]["pending"] == 1
    assert streams[TRADE_COMMAND]["paused"]
    (listed,) = (await ask("list", "--status", "dead"))["events"]
    assert (listed["event_id"], listed["last_error_code"]) == (event_id, "BAD_TICK")
    assert (await ask("show", event_id)) == listed
    assert (await ask("edit", event_id, "--payload", '{"order": "9"}'))["payload_json"][
        "payload"
    ] == {"order": "9"}
    assert await ask("requeue", event_id) == {"requeued": 1}
    assert await ask("purge", "--dead", "--older-than", "1s") == {"dead_letters": 0}
    assert await ask("purge", "--older-than", "30d") == {"days": []}


def test_text_answers_fit_on_lines(database_url: Secret, tmp_path: Path) -> None:
    status = qts(tmp_path, database_url, "status")
    assert status.stdout.splitlines()[0].split() == [
        "stream", "pending", "in", "flight", "dead", "oldest",
    ]  # fmt: skip
    assert len(status.stdout.splitlines()) == 7
    assert qts(tmp_path, database_url, "pause", TRADE_EVENT).stdout == f"paused {TRADE_EVENT}\n"
    assert "paused" in qts(tmp_path, database_url, "status").stdout
    assert qts(tmp_path, database_url, "list").stdout == "no such events\n"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["show", "nonsense"], "'nonsense' is not an event id"),
        (["show", str(uuid7())], "is not in the outbox"),
        (["requeue"], "name one EVENT_ID, or --stream"),
        (["requeue", "--stream", "x"], "stream 'x' is unknown"),
        (["edit", str(uuid7()), "--payload", "{"], "--payload is not JSON"),
        (["purge", "--older-than", "3h"], "--older-than 1d or more"),
        (["list", "--status", "GONE"], "must be PENDING, PROCESSING, DONE or DEAD"),
        (["pause", "x"], "stream 'x' is unknown"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    database_url: Secret, tmp_path: Path, arguments: list[str], why: str
) -> None:
    ended = qts(tmp_path, database_url, *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert why in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_database_without_a_bus_is_refused(empty_database_url: Secret, tmp_path: Path) -> None:
    ended = qts(tmp_path, empty_database_url, "status")
    assert ended.returncode == 2
    assert "run qts ops database migrate" in ended.stderr


def test_the_speed_is_measured(database_url: Secret, tmp_path: Path) -> None:
    ended = qts(tmp_path, database_url, "outbox", "--events", "500", "--json", group="dev verify")
    assert ended.returncode == 0, ended.stderr
    found = msgspec.json.decode(ended.stdout)
    assert found["events"] == 500
    assert all(value > 0 for value in found.values())
