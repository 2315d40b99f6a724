"""What the database refuses, whoever asks: the states of an attempt, and sums without fills."""

from __future__ import annotations

from itertools import product
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from qts.database import Database, savepoint
from qts.domain import AttemptState
from tests.orders.kit import PRICE, OrderKit

S = AttemptState
# As drawn in qts/domain/trading.py.
DRAWN = {
    (S.PREPARED, S.SENT),
    (S.PREPARED, S.SUSPENDED),
    (S.SENT, S.ACKED),
    (S.SENT, S.REJECTED),
    (S.SENT, S.THROTTLED),
    (S.SENT, S.UNKNOWN),
    (S.UNKNOWN, S.ACKED),
    (S.UNKNOWN, S.REJECTED),
    (S.UNKNOWN, S.ABSENT),
}
PATHS = {
    S.PREPARED: (),
    S.SENT: (S.SENT,),
    S.ACKED: (S.SENT, S.ACKED),
    S.REJECTED: (S.SENT, S.REJECTED),
    S.THROTTLED: (S.SENT, S.THROTTLED),
    S.UNKNOWN: (S.SENT, S.UNKNOWN),
    S.ABSENT: (S.SENT, S.UNKNOWN, S.ABSENT),
    S.SUSPENDED: (S.SUSPENDED,),
}


async def _go(tx: Any, attempt_id: UUID, state: AttemptState) -> None:
    """With all that the state itself asks for, so that only the way to it can be wrong."""
    await tx.execute(
        "UPDATE order_attempt SET status = $2, broker_order_id = COALESCE(broker_order_id, $3), "
        "sent_at = CASE WHEN $2 IN ('PREPARED', 'SUSPENDED') THEN NULL "
        "ELSE COALESCE(sent_at, now()) END, next_retry_at = now() WHERE id = $1",
        attempt_id,
        state,
        str(attempt_id),
    )


@pytest.mark.parametrize("start", list(S))
async def test_only_drawn_transitions_are_taken(kit: OrderKit, start: AttemptState) -> None:
    attempt_id = (await kit.submit()).attempt_id
    assert attempt_id is not None
    for state in PATHS[start]:
        async with kit.database.transaction() as tx:
            await _go(tx, attempt_id, state)
    for end in S:
        if end is start:
            continue
        async with kit.database.transaction() as tx:
            if (start, end) in DRAWN:
                async with savepoint(tx):
                    await _go(tx, attempt_id, end)
                await tx.execute("ROLLBACK; BEGIN")  # each from the same start
            else:
                with pytest.raises(asyncpg.CheckViolationError, match="not allowed"):
                    async with savepoint(tx):
                        await _go(tx, attempt_id, end)


def test_the_drawing_reaches_every_state() -> None:
    assert {end for _, end in DRAWN} | {S.PREPARED} == set(S)
    assert all(pair in DRAWN for path in PATHS.values() for pair in _pairs(path))


def _pairs(path: tuple[AttemptState, ...]) -> list[tuple[AttemptState, AttemptState]]:
    return list(zip((S.PREPARED, *path), path, strict=False))


@pytest.mark.parametrize(
    ("change", "refused_by"),
    [
        ("status = 'ACKED', sent_at = now()", "order_attempt_acked"),
        ("status = 'SENT'", "order_attempt_sent"),
        ("identifier = 'another'", "order_attempt_frozen"),
        ('request_json = request_json || \'{"quantity": "9"}\'', "another attempt"),
        ("attempt_no = 7", "another attempt"),
    ],
)
async def test_an_attempt_cannot_become_another(
    kit: OrderKit, change: str, refused_by: str
) -> None:
    attempt_id = (await kit.submit()).attempt_id
    with pytest.raises(asyncpg.CheckViolationError, match=refused_by):
        await kit.database.execute(
            f"UPDATE order_attempt SET {change} WHERE id = $1",  # noqa: S608 - ours
            attempt_id,
        )


async def test_a_throttled_attempt_needs_its_next_moment(kit: OrderKit) -> None:
    attempt_id = (await kit.submit()).attempt_id
    await kit.database.execute("UPDATE order_attempt SET status = 'SENT', sent_at = now()")
    with pytest.raises(asyncpg.CheckViolationError, match="order_attempt_throttled"):
        await kit.database.execute(
            "UPDATE order_attempt SET status = 'THROTTLED' WHERE id = $1", attempt_id
        )


@pytest.mark.parametrize("state", [S.PREPARED, S.SENT, S.UNKNOWN, S.ACKED])
async def test_an_intent_has_one_live_attempt(kit: OrderKit, state: AttemptState) -> None:
    submitted = await kit.submit()
    assert submitted.attempt_id is not None
    for step in PATHS[state]:
        async with kit.database.transaction() as tx:
            await _go(tx, submitted.attempt_id, step)
    with pytest.raises(asyncpg.UniqueViolationError, match="order_attempt_live"):
        await _add_attempt(kit.database, submitted.intent_id, 2)


async def test_numbers_and_identifiers_are_unique(kit: OrderKit) -> None:
    submitted = await kit.submit()
    row = await kit.attempt(submitted.attempt_id)
    with pytest.raises(asyncpg.UniqueViolationError, match="attempt_no"):
        await _add_attempt(kit.database, submitted.intent_id, 1)
    other = await kit.submit(signal_id=uuid4())
    with pytest.raises(asyncpg.UniqueViolationError, match="identifier"):
        await _add_attempt(kit.database, other.intent_id, 2, row["identifier"])


async def _add_attempt(
    database: Database, intent_id: UUID, number: int, identifier: str | None = None
) -> None:
    name = identifier or str(uuid4())
    await database.execute(
        "INSERT INTO order_attempt (id, order_intent_id, attempt_no, broker, account, symbol, "
        "identifier, request_json) VALUES ($1, $2, $3, 'venue', 'a', 'KRW-BTC', $4, $5)",
        uuid4(),
        intent_id,
        number,
        name,
        {"identifier": name},
    )


async def test_a_position_moves_by_fills_alone(kit: OrderKit) -> None:
    kit.venue.trade(await kit.order(), kit.venue.placed[0].quantity, PRICE)
    await kit.reconciler.reconcile_now()
    for change in ("quantity = quantity + 1", "quantity = 0"):
        with pytest.raises(asyncpg.CheckViolationError, match="without fills"):
            await kit.database.execute(f"UPDATE position SET {change}")  # noqa: S608 - ours
    with pytest.raises(asyncpg.CheckViolationError, match="without fills"):
        await kit.database.execute(
            "INSERT INTO position (broker, account, symbol, quantity) VALUES ('venue', 'a', 'X', 1)"
        )
    for change in ("quantity = 9", "counted = false", "price = 1"):
        with pytest.raises(asyncpg.CheckViolationError, match="another fill"):
            await kit.database.execute(f"UPDATE fill SET {change}")  # noqa: S608 - ours


@pytest.mark.parametrize(
    "table", ["order_intent", "order_attempt", "broker_order", "fill", "position"]
)
async def test_nothing_is_forgotten(kit: OrderKit, table: str) -> None:
    kit.venue.trade(await kit.order(), kit.venue.placed[0].quantity, PRICE)
    await kit.reconciler.reconcile_now()
    with pytest.raises(
        (asyncpg.CheckViolationError, asyncpg.ForeignKeyViolationError),
        match=r"forgetting|violates foreign key",
    ):
        await kit.database.execute(f"DELETE FROM {table}")  # noqa: S608 - ours


@pytest.mark.parametrize(
    ("start", "end"),
    [p for p in product(("OPEN", "CANCELLED", "FILLED"), repeat=2) if p[0] != p[1]],
)
async def test_an_order_never_opens_again(kit: OrderKit, start: str, end: str) -> None:
    await kit.order()
    if start != "OPEN":
        await kit.database.execute("UPDATE broker_order SET state = $1", start)
    change = kit.database.execute("UPDATE broker_order SET state = $1", end)
    if (start, end) in {("OPEN", "FILLED"), ("OPEN", "CANCELLED"), ("CANCELLED", "FILLED")}:
        assert await change == "UPDATE 1"
    else:
        with pytest.raises(asyncpg.CheckViolationError, match="this change of state"):
            await change
