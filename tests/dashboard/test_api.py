"""The API: documents, pages of lists, idempotent actions and errors that name the field."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from qts.dashboard import ApiTokens, Role
from qts.dashboard.api.openapi import QUERIES, ProblemError
from qts.dashboard.api.server import IdempotentRequests, StoredAnswer
from qts.dashboard.pages import encode_cursor
from qts.database import Database
from qts.domain import ManualClock, OperationError
from qts.risk import KillSwitch
from tests.accounts import PAPER
from tests.dashboard.conftest import Site
from tests.dashboard.programs import CLI, program
from tests.dashboard.test_actions import action_rows, running
from tests.dashboard.test_orders_page import unknown_order

_SIGNALS = (
    "INSERT INTO signal (id, strategy_key, symbol, side, reason, decided_at)"
    " SELECT gen_random_uuid(), 'paged', '005930', 'BUY', 'x', now() FROM generate_series(1, $1)"
    " RETURNING id"
)
# In three groups of one time each, as the rows of one statement may have.
_INTENTS = (
    "INSERT INTO order_intent (id, signal_id, intent_type, broker, account, strategy_key, symbol,"
    " side, order_type, quantity, approved_at, expires_at, created_at)"
    " SELECT gen_random_uuid(), id, 'ENTRY', 'paper', $2, 'paged', '005930', 'BUY', 'MARKET', 1,"
    " now(), now(), $3::timestamptz + (n % 3) * interval '1 ms'"
    " FROM unnest($1::uuid[]) WITH ORDINALITY AS s (id, n) RETURNING id"
)
_FILLS = (
    "INSERT INTO fill (broker, account, trade_id, broker_order_id, symbol, side, quantity, price,"
    " fee, traded_at) SELECT 'paper', $1, 't' || n, 'o', '005930', 'BUY', 1, 1, 0,"
    " now() - (n % 4) * interval '1 s' FROM generate_series(1, $2) n"
)


async def add_orders(database: Database, count: int, at: str = "clock_timestamp()") -> set[str]:
    signals = [row[0] for row in await database.fetch(_SIGNALS, count)]
    now = await database.fetchval(f"SELECT {at}")
    rows = await database.fetch(_INTENTS, signals, PAPER.account, now)
    return {str(row[0]) for row in rows}


async def test_every_query_answers_with_its_document(site: Site) -> None:
    await running(site)
    intent = await unknown_order(site.database)
    async with program(site) as bot:
        for path in QUERIES:
            if path != "/backtests/{id}":
                await bot.get(path.replace("{id}", str(intent)))
        status = await bot.get("/status")
        assert status["run"] == "reporting"
        assert status["live"]["mode"] == "paper"
        strategies = await bot.get("/strategies")
        assert strategies["strategies"][0]["status"]["key"] == "rsi_scalper"
        assert (await bot.get("/positions"))["live"][0]["symbol"] == "005930"
        assert (await bot.get("/risk"))["refusals"] == {"DAILY_LOSS": 2}
        (order,) = (await bot.get("/orders?state=UNKNOWN&symbol=005930&open=true"))["orders"]
        assert order["intent_id"] == str(intent)
        assert (await bot.get(f"/orders/{intent}"))["signal"]["reason"] == "turned"
        assert (await bot.get("/orders?symbol=000660"))["orders"] == []


async def test_the_page_and_the_api_read_the_same_document(site: Site) -> None:
    await unknown_order(site.database)
    async with program(site) as bot, site.connect() as operator:
        for page, path in (("orders", "/orders"), ("outbox", "/outbox"), ("settings", "/settings")):
            assert await operator.get(f"/api/{page}") == await bot.get(path)


async def test_a_walk_sees_every_order_once_while_orders_are_added(site: Site) -> None:
    known = await add_orders(site.database, 137, "now() - interval '1 minute'")
    seen, pages = list[str](), 0
    cursor: str | None = ""
    async with program(site) as bot:
        while cursor is not None:
            page = await bot.get(f"/orders?limit=10&cursor={cursor}")
            seen += [row["intent_id"] for row in page["orders"]]
            cursor, pages = page["next_cursor"], pages + 1
            await add_orders(site.database, 7)  # newer than the walk
    assert len(seen) == len(set(seen))
    assert set(seen) == known
    assert pages == 14


async def test_a_walk_sees_every_fill_and_every_action_once(site: Site) -> None:
    database = site.database
    await database.execute(
        "INSERT INTO broker_order (broker, account, broker_order_id, origin, identifier, symbol,"
        " side, order_type, quantity, state, placed_at)"
        " VALUES ('paper', $1, 'o', 'EXTERNAL', 'o', '005930', 'BUY', 'MARKET', 100, 'OPEN',"
        " now())",
        PAPER.account,
    )
    await database.execute(_FILLS, PAPER.account, 53)
    async with program(site) as bot:
        for number in range(25):
            await bot.act("kill", enabled=bool(number % 2), reason=f"{number}")
        assert await walk(bot, "/fills", "fills", "trade_id") == {f"t{n}" for n in range(1, 54)}
        ids = {row[0] for row in await database.fetch("SELECT id FROM dashboard_action")}
        assert await walk(bot, "/actions", "actions", "id") == ids


async def walk(bot: Any, path: str, rows: str, key: str) -> set[Any]:
    seen = list[Any]()
    cursor: str | None = ""
    while cursor is not None:
        page = await bot.get(f"{path}?limit=7&cursor={cursor}")
        seen += [row[key] for row in page[rows]]
        cursor = page["next_cursor"]
    assert len(seen) == len(set(seen))
    return set(seen)


async def test_the_same_key_returns_the_first_outcome(site: Site) -> None:
    async with program(site, Role.TRADE, "bot") as bot:
        first = await bot.act("kill", "k-1", enabled=False, reason="lunch")
        assert first == (200, {"message": "account is stopped", "commands": []})
        assert "Idempotency-Replayed" not in bot.headers
        await KillSwitch(site.database, PAPER).set(True, "cli", "back")
        assert await bot.act("kill", "k-1", reason="lunch", enabled=False) == first
        assert bot.headers["Idempotency-Replayed"] == "true"
        assert (await KillSwitch(site.database, PAPER).all())["account"].enabled
        for other in ({"reason": "dinner", "enabled": False}, {"reason": "lunch", "enabled": True}):
            status, answer = await bot.act("kill", "k-1", **other)
            assert (status, "another request" in answer["detail"]) == (409, True)
        assert (await bot.act("reconcile", "k-1", reason="lunch"))[0] == 409
    rows = [row for row in await action_rows(site.database) if row["action"] == "kill"]
    assert [(row["actor"], row["outcome"]) for row in rows] == [("api bot", "DONE")]


async def test_a_refused_action_is_an_outcome_too(site: Site) -> None:
    async with program(site) as bot:
        fields = {"intent_id": str(uuid4()), "reason": "x"}
        first = await bot.act("cancel", "k", **fields)
        assert first[0] == 422
        assert await bot.act("cancel", "k", **fields) == first
    assert len([row for row in await action_rows(site.database) if row["action"] == "cancel"]) == 1


async def test_a_key_belongs_to_its_token(site: Site) -> None:
    async with program(site) as bot, program(site) as other:
        await bot.act("kill", "k", enabled=False, reason="x")
        assert (await other.act("kill", "k", enabled=True, reason="y"))[0] == 200
    assert (await KillSwitch(site.database, PAPER).all())["account"].enabled


async def test_concurrent_requests_with_one_key_act_once(site: Site) -> None:
    async with program(site) as bot:
        answers = await asyncio.gather(
            *(bot.act("kill", "same", enabled=False, reason="x") for _ in range(8))
        )
    assert answers == [(200, {"message": "account is stopped", "commands": []})] * 8
    assert len([row for row in await action_rows(site.database) if row["action"] == "kill"]) == 1


async def token_id(database: Database) -> str:
    return (await ApiTokens(database).create("t", "trade", 1, CLI))[0].id


async def test_a_second_request_waits_for_the_first(database: Database) -> None:
    token, clock = await token_id(database), ManualClock()
    requests = IdempotentRequests(database, clock)
    begun, may_end, calls = asyncio.Event(), asyncio.Event(), []

    async def perform() -> StoredAnswer:
        calls.append(1)
        begun.set()
        await may_end.wait()
        return StoredAnswer(200, {"message": "done"})

    first = asyncio.create_task(requests.run(token, "k", b"d", perform))
    await begun.wait()
    second = asyncio.create_task(requests.run(token, "k", b"d", perform))
    with pytest.raises(ProblemError, match="another request"):
        await requests.run(token, "k", b"e", perform)
    may_end.set()
    assert (await first).body == {"message": "done"}
    while not second.done():
        await clock.advance(0.1)
        await asyncio.sleep(0)
    assert (await second).is_repeated
    assert len(calls) == 1


async def test_an_outcome_that_is_not_known_is_asked_for_again(database: Database) -> None:
    token = await token_id(database)
    requests, outcomes = IdempotentRequests(database, ManualClock()), [OperationError("away")]

    async def perform() -> StoredAnswer:
        if outcomes:
            raise outcomes.pop()
        return StoredAnswer(200, "done")

    with pytest.raises(OperationError):
        await requests.run(token, "k", b"d", perform)
    assert (await requests.run(token, "k", b"d", perform)).body == "done"


async def test_the_claim_of_a_process_that_died_is_taken_over(database: Database) -> None:
    token = await token_id(database)

    async def perform() -> StoredAnswer:
        return StoredAnswer(200, "done")

    await database.execute(
        "INSERT INTO api_request (token_id, key, request_digest, started_at)"
        " VALUES ($1, 'k', 'd', clock_timestamp() - interval '3 minutes')",
        token,
    )
    answer = await IdempotentRequests(database, ManualClock()).run(token, "k", b"d", perform)
    assert (answer.body, answer.is_repeated) == ("done", False)


async def test_an_action_needs_a_reason_and_a_key(site: Site) -> None:
    async with program(site) as bot:
        for fields in ({"enabled": False}, {"enabled": False, "reason": ""}):
            status, answer = await bot.act("kill", **fields)
            assert (status, answer["detail"].startswith("reason")) == (422, True)
        for name in ("reconcile", "acknowledge", "flatten"):
            status, answer = await bot.act(name)
            assert (status, answer["detail"].startswith("reason is missing")) == (422, True), name
        body = {"enabled": False, "reason": "x"}
        for key in ({}, {"Idempotency-Key": ""}, {"Idempotency-Key": "a b"}):
            status, answer = await bot.request("POST", "/actions/kill", key, json=body)
            assert (status, "Idempotency-Key" in answer["detail"]) == (400, True)
    assert await KillSwitch(site.database, PAPER).all() == {}


BAD_FIELDS: list[tuple[str, dict[str, Any], str]] = [
    (
        "kill",
        {"enabled": 1, "reason": "x"},
        "enabled: expected bool, got int; allowed: boolean",
    ),
    (
        "kill",
        {"enabled": True, "reason": "x", "on": 1},
        "unknown field on; expected one of enabled, reason, strategy",
    ),
    ("place", {"side": "HOLD", "reason": "x"}, "allowed: one of BUY, SELL"),
    ("place", {"id": str(uuid4()), "reason": "x"}, "unknown field id"),
    ("place", {"action": "kill", "reason": "x"}, "unknown field action"),
    ("close", {"reason": "x"}, "symbol is missing"),
    ("close", {"symbol": None, "reason": "x"}, "symbol is missing"),
    ("flatten", {"symbol": "005930", "reason": "x"}, "unknown field symbol"),
    ("replay", {"number": 2**63, "reason": "x"}, "number: "),
    ("kill", {"enabled": True, "reason": "a\0b"}, "zero byte"),
    ("acknowledge", {"ids": [], "reason": "x"}, "ids: "),
]
BAD_REQUESTS: list[tuple[str, int, str]] = [
    ("/orders?limit=0", 422, "limit: expected int >= 1; allowed: integer, at least 1"),
    ("/orders?limit=many", 422, "limit: expected int, got str"),
    ("/orders?state=LOST", 422, "allowed: one of "),
    ("/orders?limits=5", 422, "unknown field limits; expected one of account, limit, cursor"),
    ("/orders?limit=1&limit=2", 422, "limit is given more than once"),
    ("/orders?symbol=%00", 422, "symbol contains a zero byte"),
    ("/orders?cursor=x", 422, "cursor is 'x'; expected the next_cursor"),
    ("/orders?cursor=%C3%A9", 422, "cursor is"),
    (f"/orders?cursor={encode_cursor(['0001-01-01T00:00:00+23:00', uuid4()])}", 422, "cursor"),
    (f"/actions?cursor={encode_cursor([2**63])}", 422, "cursor is"),
    (f"/orders/{UUID(int=1)}", 404, "no order"),
    (f"/backtests/{UUID(int=1)}", 404, "no backtest job"),
    ("/orders/abc", 422, "id: "),
    (f"/orders/{UUID(int=1)}?id=2", 422, "id is given more than once"),
    ("/equity?span=2d", 422, "span: invalid enum value '2d'; allowed: one of 1d, 1m, 1w, all"),
    ("/market?symbol=005930&bar=7", 422, "bar: "),
    ("/market?symbol=../x", 422, "invalid symbol"),
    ("/nowhere", 404, "Not Found"),
]


async def test_a_bad_field_is_named(site: Site) -> None:
    async with program(site) as bot:
        for action, fields, problem in BAD_FIELDS:
            status, answer = await bot.act(action, **fields)
            assert (status, problem in answer["detail"]) == (422, True), (action, fields, answer)
    assert await site.database.fetchval("SELECT count(*) FROM api_request") == 0


async def test_a_number_that_no_ledger_stores_is_refused(site: Site) -> None:
    async with program(site) as bot:
        for name, value in (("quantity", "1e20"), ("quantity", "0"), ("price", "NaN")):
            order = {"symbol": "005930", "side": "BUY", "quantity": "1", "reason": "x"}
            status, answer = await bot.act("place", **order | {name: value})
            assert status == 422
            assert answer["detail"].startswith(f"{name} is ")
            assert answer["detail"].endswith("expected more than 0 and less than 1e+20")


async def test_a_bad_request_is_a_problem(site: Site) -> None:
    async with program(site) as bot:
        for path, status, problem in BAD_REQUESTS:
            found, answer = await bot.request("GET", path)
            assert found == status, (path, answer)
            assert problem in answer["detail"], (path, answer)


async def test_malformed_bodies_and_methods_are_problems(site: Site) -> None:
    async with program(site) as bot:
        key = {"Idempotency-Key": "k", "Content-Type": "application/json"}
        for body in (b"", b"{", b"[]", b"\xff", b'{"reason": "\\ud800"}', b"1" * 10):
            status, _ = await bot.request("POST", "/actions/kill", key, data=body)
            assert status == 422, body
        status, _ = await bot.request("POST", "/actions/kill", key, data=b" " * 70_000)
        assert status == 413
        text = {"Idempotency-Key": "k", "Content-Type": "text/plain"}
        assert (await bot.request("POST", "/actions/kill", text, data=b"{}"))[0] == 415
        assert (await bot.request("DELETE", "/orders"))[0] == 405
        assert "GET" in bot.headers["Allow"]
        assert (await bot.request("POST", "/actions/kill?x=1", key, data=b"{}"))[0] == 400
