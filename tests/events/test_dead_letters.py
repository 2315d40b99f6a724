"""Dead letters in PostgreSQL: kept, listed, shown, published again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from structlog.testing import CapturingLogger

from qts.database import Database
from qts.domain import EventRefusedError, Secret
from qts.events import Catalogue, DeadLetterAdmin, Event, EventEngine
from qts.events import dead_letters as room
from qts.events.dead_letter_store import PostgresDeadLetterStore
from qts.events.dead_letters import DeadLetter
from tests.events.made import PATIENCE_S, fill, order_ids, run_by_hand


def fail(_event: Event) -> None:
    raise RuntimeError("no such account")


def die(engine: EventEngine, count: int) -> None:
    for number in range(count):
        engine.publish(fill(engine, number))
    run_by_hand(engine)


async def test_dead_letters_survive_in_postgres(engine: EventEngine, database: Database) -> None:
    engine.on("FILL_CONFIRMED", fail)
    die(engine, 3)
    store = PostgresDeadLetterStore(database, engine.catalogue)
    assert await engine.dead_letters.flush(store) == 3
    assert await engine.dead_letters.flush(store) == 0
    letters = await store.list(10)
    assert order_ids([letter.event for letter in letters]) == ["ORD2", "ORD1", "ORD0"]
    first = await store.show(letters[-1].number)
    (kept,) = [each for each in engine.dead_letters.list() if each.event == first.event]
    assert (first.handler, first.error, first.died_at) == (kept.handler, kept.error, kept.died_at)


async def test_adding_the_same_letters_again_keeps_one_each(
    engine: EventEngine, database: Database
) -> None:
    engine.on("FILL_CONFIRMED", fail)
    die(engine, 2)
    store = PostgresDeadLetterStore(database, engine.catalogue)
    letters = engine.dead_letters.list()
    await store.add(letters)
    await store.add(letters)
    assert len(await store.list(10)) == 2


async def test_a_kept_letter_is_published_again_once(
    engine: EventEngine, database: Database
) -> None:
    engine.on("FILL_CONFIRMED", fail)
    die(engine, 1)
    store = PostgresDeadLetterStore(database, engine.catalogue)
    await engine.dead_letters.flush(store)
    (letter,) = await store.list(10)
    event = await engine.replay_stored(store, letter.number)
    assert (event.event_id, event.retry_count) == (letter.event.event_id, 0)
    assert await store.list(10) == []
    assert engine.status().lanes["P0"].published == 2
    run_by_hand(engine)
    assert engine.dead_letters.count == 2  # it failed again, and is a new letter


async def test_what_is_dead_while_keeping_is_flushed_at_the_end(
    engine: EventEngine, database: Database
) -> None:
    engine.on("FILL_CONFIRMED", fail)
    store = PostgresDeadLetterStore(database, engine.catalogue)
    keeping = asyncio.create_task(engine.dead_letters.keep(store, 3600))
    await asyncio.sleep(0)
    die(engine, 1)
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping
    assert len(await store.list(10)) == 1


class Tried(PostgresDeadLetterStore):
    """Tells when somebody has looked for letters that are asked for."""

    def __init__(self, database: Database, catalogue: Catalogue) -> None:
        super().__init__(database, catalogue)
        self._looked = asyncio.Event()

    async def claim(self) -> DeadLetter | None:
        try:
            return await super().claim()
        finally:
            self._looked.set()

    async def looked(self, times: int = 1) -> None:
        for _ in range(times):
            self._looked.clear()
            await self._looked.wait()


READ_ONLY = """
    CREATE FUNCTION take_nothing() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE 'cannot execute it in a read-only transaction' USING ERRCODE = '25006'; END $$;
    CREATE TRIGGER read_only BEFORE INSERT OR UPDATE ON event_dead_letter
    EXECUTE FUNCTION take_nothing()
"""


async def test_database_that_takes_no_changes_for_a_while_ends_nothing(
    engine: EventEngine, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "log", log := CapturingLogger())
    engine.on("FILL_CONFIRMED", fail)
    store = Tried(database, engine.catalogue)
    await database.execute(READ_ONLY)
    async with asyncio.timeout(PATIENCE_S):
        keeping = asyncio.create_task(engine.persist_dead_letters(store, 0.001))
        await store.looked(5)
        die(engine, 1)
        await database.execute("DROP TRIGGER read_only ON event_dead_letter")
        while not await store.list(10):
            await store.looked()
        await store.looked()
        keeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await keeping
    told = [call.args[0] for call in log.calls]
    assert told == ["dead letters wait for the database", "dead letters are kept again"]


async def test_a_number_nobody_has_is_refused(engine: EventEngine, database: Database) -> None:
    store = PostgresDeadLetterStore(database, engine.catalogue)
    with pytest.raises(EventRefusedError, match="no dead letter has number 99"):
        await store.show(99)


async def test_a_letter_asked_for_is_published_by_the_next_engine_that_looks(
    engine: EventEngine, database: Database
) -> None:
    engine.on("FILL_CONFIRMED", fail)
    die(engine, 2)
    store = PostgresDeadLetterStore(database, engine.catalogue)
    await engine.dead_letters.flush(store)
    desk = DeadLetterAdmin(database)
    newest, oldest = await desk.find(10, None, False)
    assert [newest.state, oldest.state] == ["dead", "dead"]
    assert (await desk.ask(oldest.number)).state == "asked"
    assert (await desk.taken(oldest.number, 0.0)).state == "asked"  # nobody looks yet
    async with asyncio.timeout(PATIENCE_S):
        keeping = asyncio.create_task(engine.persist_dead_letters(store, 0.01))
        assert (await desk.taken(oldest.number, PATIENCE_S)).state == "replayed"
        keeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await keeping
    assert engine.status().lanes["P0"].published == 3
    assert [each.number for each in await desk.find(10, None, False)] == [newest.number]
    with pytest.raises(EventRefusedError, match="was published again already"):
        await desk.ask(oldest.number)


async def test_two_engines_do_not_replay_one_letter_twice(
    engine: EventEngine, database: Database
) -> None:
    engine.on("FILL_CONFIRMED", fail)
    die(engine, 20)
    store = PostgresDeadLetterStore(database, engine.catalogue)
    await engine.dead_letters.flush(store)
    desk = DeadLetterAdmin(database)
    for letter in await desk.find(100, None, False):
        await desk.ask(letter.number)
    claimed = await asyncio.gather(*(store.claim() for _ in range(40)))
    numbers = [letter.number for letter in claimed if letter is not None]
    assert len(numbers) == len(set(numbers)) == 20


async def test_a_letter_that_is_refused_stays_dead(engine: EventEngine, database: Database) -> None:
    engine.on("FILL_CONFIRMED", fail)
    die(engine, 1)
    store = PostgresDeadLetterStore(database, engine.catalogue)
    await engine.dead_letters.flush(store)
    desk = DeadLetterAdmin(database)
    (letter,) = await desk.find(10, None, False)
    await database.execute("UPDATE event_dead_letter SET event = event || '{\"priority\": 3}'")
    await desk.ask(letter.number)
    keeping = asyncio.create_task(engine.persist_dead_letters(store, 0.01))
    assert (await desk.taken(letter.number, PATIENCE_S)).state == "dead"
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping
    assert engine.status().lanes["P0"].published == 1


async def test_a_purge_takes_what_is_old_and_done(engine: EventEngine, database: Database) -> None:
    engine.on("FILL_CONFIRMED", fail)
    die(engine, 3)
    store = PostgresDeadLetterStore(database, engine.catalogue)
    await engine.dead_letters.flush(store)
    desk = DeadLetterAdmin(database)
    newest, *_ = await desk.find(10, None, False)
    await store.replayed(newest.number)
    assert await desk.purge(3600, unplayed=True) == 0
    assert await desk.purge(0, unplayed=False) == 1
    assert len(await desk.find(10, None, True)) == 2
    assert await desk.purge(0, unplayed=True) == 2


def qts(home: Path, url: Secret, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "qts", "dead-letters", *arguments],
        env={**os.environ, "QTS_HOME": str(home), "QTS_DATABASE__URL": url.reveal()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_the_verbs_list_show_ask_and_purge(
    engine: EventEngine, database: Database, database_url: Secret, tmp_path: Path
) -> None:
    engine.on("FILL_CONFIRMED", fail)
    die(engine, 1)
    store = PostgresDeadLetterStore(database, engine.catalogue)
    await engine.dead_letters.flush(store)
    (letter,) = await store.list(1)

    async def ask(*arguments: str) -> str:
        ended = await asyncio.to_thread(qts, tmp_path, database_url, *arguments)
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout

    listed = await ask("list", "--type", "FILL_CONFIRMED")
    assert "FILL_CONFIRMED" in listed
    assert "no such account" in listed
    assert await ask("list", "--type", "PRICE_TICK") == "no dead letters\n"
    shown = msgspec.json.decode(await ask("show", str(letter.number), "--json"))
    assert (shown["state"], shown["event"]["payload"]["order_id"]) == ("dead", "ORD0")
    asked = await ask("replay", str(letter.number), "--wait", "100ms")
    assert "no engine took it in 100ms; the next one" in asked
    claimed = await store.claim()
    assert claimed is not None
    assert claimed.event.event_id == letter.event.event_id
    assert await ask("purge", "--older-than", "1h", "--json") == '{\n  "purged": 0\n}\n'


@pytest.mark.parametrize(
    ("arguments", "words"),
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
    database_url: Secret, tmp_path: Path, arguments: list[str], words: str
) -> None:
    ended = qts(tmp_path, database_url, *arguments)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert words in ended.stderr
