"""Dead letters in PostgreSQL: kept, listed, shown, published again."""

from __future__ import annotations

import asyncio

import pytest

from qts.database import Database
from qts.domain import EventRefused
from qts.events import Engine, Event
from qts.events.postgres import PostgresDeadLetters
from tests.events.made import fill, order_ids, run_by_hand


def fail(_event: Event) -> None:
    raise RuntimeError("no such account")


def die(engine: Engine, count: int) -> None:
    for number in range(count):
        engine.publish(fill(engine, number))
    run_by_hand(engine)


async def test_dead_letters_survive_in_postgres(engine: Engine, database: Database) -> None:
    engine.on("FILL_CONFIRMED", fail)
    die(engine, 3)
    store = PostgresDeadLetters(database, engine.catalogue)
    assert await engine.dead_letters.flush(store) == 3
    assert await engine.dead_letters.flush(store) == 0
    letters = await store.list(10)
    assert order_ids([letter.event for letter in letters]) == ["ORD2", "ORD1", "ORD0"]
    first = await store.show(letters[-1].number)
    (kept,) = [each for each in engine.dead_letters.list() if each.event == first.event]
    assert (first.handler, first.error, first.died_at) == (kept.handler, kept.error, kept.died_at)


async def test_adding_the_same_letters_again_keeps_one_each(
    engine: Engine, database: Database
) -> None:
    engine.on("FILL_CONFIRMED", fail)
    die(engine, 2)
    store = PostgresDeadLetters(database, engine.catalogue)
    letters = engine.dead_letters.list()
    await store.add(letters)
    await store.add(letters)
    assert len(await store.list(10)) == 2


async def test_a_kept_letter_is_published_again_once(engine: Engine, database: Database) -> None:
    engine.on("FILL_CONFIRMED", fail)
    die(engine, 1)
    store = PostgresDeadLetters(database, engine.catalogue)
    await engine.dead_letters.flush(store)
    (letter,) = await store.list(10)
    event = await engine.replay_kept(store, letter.number)
    assert (event.event_id, event.retry_count) == (letter.event.event_id, 0)
    assert await store.list(10) == []
    assert engine.status().lanes["P0"].published == 2
    run_by_hand(engine)
    assert engine.dead_letters.count == 2  # it failed again, and is a new letter


async def test_what_is_dead_while_keeping_is_flushed_at_the_end(
    engine: Engine, database: Database
) -> None:
    engine.on("FILL_CONFIRMED", fail)
    store = PostgresDeadLetters(database, engine.catalogue)
    keeping = asyncio.create_task(engine.dead_letters.keep(store, 3600))
    await asyncio.sleep(0)
    die(engine, 1)
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping
    assert len(await store.list(10)) == 1


async def test_a_number_nobody_has_is_refused(engine: Engine, database: Database) -> None:
    store = PostgresDeadLetters(database, engine.catalogue)
    with pytest.raises(EventRefused, match="no dead letter has number 99"):
        await store.show(99)
