"""Dead letters in PostgreSQL: stored, listed, shown, replayed, purged."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import CapturingLogger

from qts.database import Database
from qts.domain import EventRefusedError, Secret
from qts.events import Catalogue, DeadLetterAdmin, Event, EventEngine, dead_letters
from qts.events.dead_letters import DeadLetter, PostgresDeadLetterStore, replay_requested
from qts.events.payloads import DashboardUpdate, LogWrite
from tests.events.samples import TIMEOUT_S, fill, step_all

R = TypeVar("R")


def fail(_event: Event) -> None:
    raise RuntimeError("no such account")


def die(engine: EventEngine, count: int) -> None:
    for number in range(count):
        engine.publish(fill(engine, number))
    step_all(engine)


class ObservedStore(PostgresDeadLetterStore):
    """Store that signals each claim, and each try to add letters."""

    def __init__(self, database: Database, catalogue: Catalogue) -> None:
        super().__init__(database, catalogue)
        self._claimed = asyncio.Event()
        self.tried_to_add = asyncio.Event()

    async def add(self, letters: list[DeadLetter]) -> None:
        try:
            await super().add(letters)
        finally:
            self.tried_to_add.set()

    async def claim(self) -> DeadLetter | None:
        try:
            return await super().claim()
        finally:
            self._claimed.set()

    async def wait_claims(self, times: int = 1) -> None:
        for _ in range(times):
            self._claimed.clear()
            await self._claimed.wait()


@pytest.fixture
def admin(database: Database) -> DeadLetterAdmin:
    return DeadLetterAdmin(database)


@pytest.fixture
def store(engine: EventEngine, database: Database) -> ObservedStore:
    engine.on("FILL_CONFIRMED", fail)
    return ObservedStore(database, engine.catalogue)


async def test_dead_letters_survive_in_postgres(
    engine: EventEngine, store: ObservedStore, admin: DeadLetterAdmin
) -> None:
    die(engine, 3)
    assert await engine.dead_letters.flush(store) == 3
    assert await engine.dead_letters.flush(store) == 0
    stored = await admin.find(10, None, False)
    assert [each.event["payload"]["order_id"] for each in stored] == ["ORD2", "ORD1", "ORD0"]
    await admin.request_replay(stored[-1].number)
    claimed = await store.claim()
    assert claimed is not None
    (buffered,) = [each for each in engine.dead_letters.list() if each.event == claimed.event]
    assert msgspec.structs.replace(buffered, number=claimed.number) == claimed


HOSTILE = "a\x00b \ud800 \\u0000 \\\\ \udfff\N{HANGUL SYLLABLE GA}"


async def test_a_letter_with_nul_or_a_lone_surrogate_is_stored_and_replayed(
    engine: EventEngine, database: Database, admin: DeadLetterAdmin
) -> None:
    def refuse(event: Event) -> None:
        raise ValueError(event.payload.message)

    engine.on("LOG_WRITE", refuse)
    store = ObservedStore(database, engine.catalogue)
    async with asyncio.timeout(TIMEOUT_S):
        task = asyncio.create_task(engine.persist_dead_letters(store, 0.001))
        for message in (HOSTILE, "plain"):
            engine.publish(engine.new_event("LOG_WRITE", LogWrite(message=message), HOSTILE))
        step_all(engine)
        while len(letters := await admin.find(10, None, False)) < 2:
            await store.wait_claims()
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    stored = letters[1]
    assert stored.error == f"ValueError: {HOSTILE}".replace("\x00", "\\u0000").replace(
        "\ud800", "\\ud800"
    ).replace("\udfff", "\\udfff")
    await admin.request_replay(stored.number)
    claimed = await store.claim()
    assert claimed is not None
    assert (claimed.event.payload.message, claimed.event.source) == (HOSTILE, HOSTILE)


@given(st.text(st.sampled_from("a\\u0d8\x00\ud800\udfff"), max_size=12))
def test_an_encoded_event_is_storable_and_decodes_to_itself(text: str) -> None:
    catalogue = Catalogue()
    payload = DashboardUpdate(dashboard_id=text, data={text: [text]})
    event = catalogue["DASHBOARD_UPDATE"].event(payload, event_id="1", timestamp=1.0, source=text)
    encoded = dead_letters.encode(event)
    assert b"\\u0000" not in msgspec.json.encode(encoded).replace(b"\\\\", b"")
    assert dead_letters.decode(encoded, catalogue) == event


async def test_a_letter_that_json_cannot_hold_is_stored_as_text(
    engine: EventEngine, store: ObservedStore, admin: DeadLetterAdmin
) -> None:
    die(engine, 1)
    (letter,) = engine.dead_letters.list()
    odd = msgspec.structs.replace(letter.event, event_id="odd", payload=object())
    await store.add([msgspec.structs.replace(letter, event=odd), letter])
    named, kept = sorted(await admin.find(10, None, False), key=lambda each: each.number)
    assert "object object" in named.event["text"]
    assert kept.event["payload"]["order_id"] == "ORD0"
    await admin.request_replay(named.number)
    with pytest.raises(EventRefusedError, match="stored as text only"):
        await store.claim()


async def test_adding_the_same_letters_again_stores_one_each(
    engine: EventEngine, store: ObservedStore, admin: DeadLetterAdmin
) -> None:
    die(engine, 2)
    letters = engine.dead_letters.list()
    await store.add(letters)
    await store.add(letters)
    assert len(await admin.find(10, None, False)) == 2


async def test_a_replay_starts_with_all_retries(
    engine: EventEngine, store: ObservedStore, admin: DeadLetterAdmin
) -> None:
    engine.publish(msgspec.structs.replace(fill(engine), retry_count=2))
    step_all(engine)
    await engine.dead_letters.flush(store)
    (letter,) = await admin.find(10, None, False)
    await admin.request_replay(letter.number)
    await replay_requested(store, engine.publish_async)
    assert await admin.find(10, None, False) == []
    assert engine.status().lanes["P0"].published == 2
    step_all(engine)
    assert engine.dead_letters.count == 2  # it failed again, and is a new letter
    assert engine.dead_letters.list()[0].event.retry_count == 0


async def test_cancelling_persist_flushes_new_letters(
    engine: EventEngine, store: ObservedStore, admin: DeadLetterAdmin
) -> None:
    task = asyncio.create_task(engine.dead_letters.persist(store, 3600))
    await asyncio.sleep(0)
    die(engine, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(await admin.find(10, None, False)) == 1


READ_ONLY = """
    CREATE FUNCTION refuse_writes() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE 'cannot execute it in a read-only transaction' USING ERRCODE = '25006'; END $$;
    CREATE TRIGGER read_only BEFORE INSERT OR UPDATE ON event_dead_letter
    EXECUTE FUNCTION refuse_writes()
"""


async def test_persist_survives_a_read_only_database(
    engine: EventEngine,
    store: ObservedStore,
    admin: DeadLetterAdmin,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_letters, "log", log := CapturingLogger())
    await database.execute(READ_ONLY)
    async with asyncio.timeout(TIMEOUT_S):
        die(engine, 1)
        task = asyncio.create_task(engine.persist_dead_letters(store, 0.001))
        for _ in range(3):
            store.tried_to_add.clear()
            await store.tried_to_add.wait()
        await database.execute("DROP TRIGGER read_only ON event_dead_letter")
        while not await admin.find(10, None, False):
            await store.wait_claims()
        await store.wait_claims()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    messages = [call.args[0] for call in log.calls]
    assert messages == [
        "dead letter store unavailable; retrying",
        "dead letter store available again",
    ]


async def test_a_requested_replay_is_published_by_the_next_engine(
    engine: EventEngine, store: ObservedStore, admin: DeadLetterAdmin
) -> None:
    die(engine, 2)
    await engine.dead_letters.flush(store)
    newest, oldest = await admin.find(10, None, False)
    assert [newest.state, oldest.state] == ["dead", "dead"]
    assert (await admin.request_replay(oldest.number)).state == "asked"
    assert (await admin.wait_replayed(oldest.number, 0.0)).state == "asked"  # no engine runs
    async with asyncio.timeout(TIMEOUT_S):
        task = asyncio.create_task(engine.persist_dead_letters(store, 0.01))
        assert (await admin.wait_replayed(oldest.number, TIMEOUT_S)).state == "replayed"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert engine.status().lanes["P0"].published == 3
    assert [each.number for each in await admin.find(10, None, False)] == [newest.number]
    with pytest.raises(EventRefusedError, match="was already replayed"):
        await admin.request_replay(oldest.number)


async def test_two_engines_do_not_replay_one_letter_twice(
    engine: EventEngine, store: ObservedStore, admin: DeadLetterAdmin
) -> None:
    die(engine, 20)
    await engine.dead_letters.flush(store)
    for letter in await admin.find(100, None, False):
        await admin.request_replay(letter.number)
    claimed = await asyncio.gather(*(store.claim() for _ in range(40)))
    numbers = [letter.number for letter in claimed if letter is not None]
    assert len(numbers) == len(set(numbers)) == 20


async def test_a_letter_that_is_refused_stays_dead(
    engine: EventEngine, store: ObservedStore, admin: DeadLetterAdmin, database: Database
) -> None:
    die(engine, 1)
    await engine.dead_letters.flush(store)
    (letter,) = await admin.find(10, None, False)
    await database.execute("UPDATE event_dead_letter SET event = event || '{\"priority\": 3}'")
    await admin.request_replay(letter.number)
    task = asyncio.create_task(engine.persist_dead_letters(store, 0.01))
    assert (await admin.wait_replayed(letter.number, TIMEOUT_S)).state == "dead"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.status().lanes["P0"].published == 1


class _StateRecorder:
    """Database that records the state of a letter after each statement."""

    def __init__(self, database: Database, admin: DeadLetterAdmin, number: int) -> None:
        self._database, self._admin, self._number = database, admin, number
        self.states: list[str] = []

    async def execute(self, query: str, *values: Any) -> str:
        return await self._record(self._database.execute(query, *values))

    async def fetch(self, query: str, *values: Any) -> list[Any]:
        return await self._record(self._database.fetch(query, *values))

    async def fetchrow(self, query: str, *values: Any) -> Any:
        return await self._record(self._database.fetchrow(query, *values))

    async def _record(self, statement: Awaitable[R]) -> R:
        found = await statement
        self.states.append((await self._admin.show(self._number)).state)
        return found


async def test_a_letter_that_is_refused_is_at_no_time_shown_as_replayed(
    engine: EventEngine, store: ObservedStore, admin: DeadLetterAdmin, database: Database
) -> None:
    die(engine, 1)
    await engine.dead_letters.flush(store)
    (letter,) = await admin.find(10, None, False)
    await database.execute("UPDATE event_dead_letter SET event = event || '{\"priority\": 3}'")
    await admin.request_replay(letter.number)
    recorder = _StateRecorder(database, admin, letter.number)
    with pytest.raises(EventRefusedError, match="has priority 0, not 3"):
        await PostgresDeadLetterStore(recorder, engine.catalogue).claim()
    assert recorder.states == ["asked", "dead"]


async def test_purge_deletes_old_letters(
    engine: EventEngine, store: ObservedStore, admin: DeadLetterAdmin
) -> None:
    die(engine, 3)
    await engine.dead_letters.flush(store)
    newest, *_ = await admin.find(10, None, False)
    await admin.request_replay(newest.number)
    assert await store.claim()
    assert await admin.purge(3600, include_dead=True) == 0
    assert await admin.purge(0, include_dead=False) == 1
    assert len(await admin.find(10, None, True)) == 2
    assert await admin.purge(0, include_dead=True) == 2


def qts(home: Path, url: Secret, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "qts", "ops", "dead-letters", *arguments],
        env={**os.environ, "QTS_HOME": str(home), "QTS_DATABASE__URL": url.reveal()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_commands_list_show_replay_and_purge(
    engine: EventEngine,
    store: ObservedStore,
    admin: DeadLetterAdmin,
    database_url: Secret,
    tmp_path: Path,
) -> None:
    die(engine, 1)
    await engine.dead_letters.flush(store)
    (letter,) = await admin.find(1, None, False)

    async def run(*arguments: str) -> str:
        ended = await asyncio.to_thread(qts, tmp_path, database_url, *arguments)
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout

    listed = await run("list", "--type", "FILL_CONFIRMED")
    assert "FILL_CONFIRMED" in listed
    assert "no such account" in listed
    assert await run("list", "--type", "PRICE_TICK") == "no dead letters\n"
    shown = msgspec.json.decode(await run("show", str(letter.number), "--json"))
    assert (shown["state"], shown["event"]["payload"]["order_id"]) == ("dead", "ORD0")
    asked = await run("replay", str(letter.number), "--wait", "100ms")
    assert "no engine took it within 100ms" in asked
    claimed = await store.claim()
    assert claimed is not None
    assert claimed.event.event_id == letter.event_id
    assert await run("purge", "--older-than", "1h", "--json") == '{\n  "purged": 0\n}\n'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "99"], "no dead letter has number 99"),
        (["replay", "99"], "no dead letter has number 99"),
        (["replay", "x"], "a valid integer"),
        (["replay", "1", "--wait", "soon"], "soon"),
        (["purge", "--older-than", "old"], "old"),
        (["list", "--limit", "0"], "limit"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    database_url: Secret, tmp_path: Path, arguments: list[str], message: str
) -> None:
    ended = qts(tmp_path, database_url, *arguments)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert message in ended.stderr
