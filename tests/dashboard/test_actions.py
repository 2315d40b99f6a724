"""Actions of the dashboard: their effect in the database and their log."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from qts.dashboard import Role
from qts.dashboard.action_service import validate_params
from qts.database import Database
from qts.domain import RefusedError
from qts.events import DeadLetterAdmin
from qts.orders import Reconcile
from qts.outbox import (
    TRADE_COMMAND,
    Delivery,
    Dispatcher,
    OutboxAdmin,
    OutboxConfig,
    OutboxEvent,
    PermanentError,
    PostgresBus,
    UnknownOutcomeError,
)
from qts.outbox.testing import run_due
from qts.risk import FailSafe, KillSwitch, SafetyState
from tests.accounts import PAPER
from tests.dashboard import statuses
from tests.dashboard.conftest import Site


async def action_rows(database: Database) -> list[dict[str, Any]]:
    rows = await database.fetch(
        "SELECT actor, role, action, target, detail, outcome, message FROM dashboard_action"
        " WHERE action <> 'login' ORDER BY id"
    )
    return [dict(row.items()) for row in rows]


async def test_the_kill_switch_stops_and_allows(site: Site) -> None:
    await running(site)
    async with site.connect(Role.TRADE) as trader:
        status, answer = await trader.act(action="kill", enabled=False, reason="lunch")
        assert (status, answer) == (200, {"done": "account is stopped"})
        switch = (await KillSwitch(site.database, PAPER).all())["account"]
        assert not switch.enabled
        assert switch.reason == "lunch"
        await trader.act(action="kill", enabled=True, reason="back")
        assert (await KillSwitch(site.database, PAPER).all())["account"].enabled
        await trader.act(action="kill", enabled=False, reason="odd", strategy="rsi_scalper")
        assert not (await KillSwitch(site.database, PAPER).all())["rsi_scalper"].enabled
    rows = await action_rows(site.database)
    assert [(row["action"], row["target"], row["outcome"]) for row in rows] == [
        ("kill", "account", "DONE"),
        ("kill", "account", "DONE"),
        ("kill", "rsi_scalper", "DONE"),
    ]
    assert rows[0]["role"] == "trade"
    assert rows[0]["actor"].startswith("dashboard trade ")
    assert rows[0]["detail"]["reason"] == "lunch"
    assert switch.changed_by == rows[0]["actor"]


@pytest.mark.parametrize(
    "action",
    [
        {"action": "kill", "enabled": False, "reason": "x"},
        {"action": "reconcile"},
        {"action": "cancel", "intent_id": "0198c0de-0000-7000-8000-000000000001", "reason": "x"},
        {"action": "replay", "number": 1},
        {"action": "requeue", "event_id": "0198c0de-0000-7000-8000-000000000001"},
        {"action": "params", "strategy": "rsi_scalper", "params": {"length": 3}},
        {"action": "release", "reason": "x"},
    ],
)
async def test_the_read_role_cannot_act(site: Site, action: dict[str, Any]) -> None:
    async with site.connect(Role.READ) as reader:
        status, answer = await reader.act(**action)
    assert status == 403
    assert "needs the role" in answer["error"]
    assert await KillSwitch(site.database, PAPER).all() == {}
    (row,) = await action_rows(site.database)
    assert row["outcome"] == "REFUSED"
    assert row["role"] == "read"


async def test_only_an_admin_releases_the_fail_safe(site: Site) -> None:
    await FailSafe(site.database, PAPER).trip("FS070", "positions differ")
    async with site.connect(Role.TRADE) as trader:
        assert (await trader.act(action="release", reason="checked"))[0] == 403
    assert (await FailSafe(site.database, PAPER).now()).state is not SafetyState.NORMAL
    async with site.connect(Role.ADMIN) as admin:
        assert (await admin.act(action="release", reason="checked"))[0] == 200
    assert (await FailSafe(site.database, PAPER).now()).state is SafetyState.NORMAL
    assert [row["outcome"] for row in await action_rows(site.database)] == ["REFUSED", "DONE"]


@pytest.mark.parametrize(
    "action",
    [
        {},
        {"action": "order", "symbol": "005930"},
        {"action": "kill", "enabled": False},
        {"action": "kill", "enabled": False, "reason": ""},
        {"action": "kill", "enabled": "no", "reason": "x"},
        {"action": "kill", "enabled": False, "reason": "x", "more": 1},
        {"action": "release", "reason": "x" * 501},
    ],
)
async def test_an_invalid_action_is_refused(site: Site, action: dict[str, Any]) -> None:
    async with site.connect() as operator:
        status, answer = await operator.act(**action)
    assert status == 422
    assert answer["error"]
    assert await action_rows(site.database) == []


async def dead_event(database: Database, error: Exception) -> UUID:
    """Create a dead outbox event, as a worker does."""
    event = OutboxEvent.of(TRADE_COMMAND, Reconcile(), ("Books", "all"))
    dispatcher = Dispatcher()

    @dispatcher.on(TRADE_COMMAND, Reconcile)
    async def fail(_command: Reconcile, _delivery: Delivery) -> None:
        raise error

    async with (
        PostgresBus.open(database, OutboxConfig().streams) as bus,
        database.transaction() as tx,
    ):
        await bus.publish(tx, event)
    await run_due(database, TRADE_COMMAND, OutboxConfig().streams[TRADE_COMMAND], dispatcher)
    return event.envelope.event_id


async def test_a_dead_event_is_requeued(site: Site) -> None:
    event = await dead_event(site.database, PermanentError("no"))
    async with site.connect(Role.TRADE) as trader:
        assert len((await trader.get("/api/outbox"))["dead"]) == 1
        assert (await trader.act(action="requeue", event_id=str(event)))[0] == 200
        assert (await trader.get("/api/outbox"))["dead"] == []
    assert (await OutboxAdmin(site.database).show(event)).status == "PENDING"


async def test_an_unknown_outcome_is_requeued_only_after_a_check(site: Site) -> None:
    event = await dead_event(site.database, UnknownOutcomeError("no answer"))
    async with site.connect(Role.TRADE) as trader:
        status, answer = await trader.act(action="requeue", event_id=str(event))
        assert status == 422
        assert "may have taken effect" in answer["error"]
        assert (await OutboxAdmin(site.database).show(event)).status == "DEAD"
        done = await trader.act(action="requeue", event_id=str(event), outcome_checked=True)
        assert done[0] == 200
    assert [row["outcome"] for row in await action_rows(site.database)] == ["REFUSED", "DONE"]


async def test_reconcile_publishes_a_command(site: Site) -> None:
    async with site.connect(Role.TRADE) as trader:
        assert (await trader.act(action="reconcile"))[0] == 200
    (row,) = await OutboxAdmin(site.database).find(stream=TRADE_COMMAND)
    assert row.event_type == "Reconcile"
    assert row.status == "PENDING"


async def test_a_replay_of_a_dead_letter_is_requested(site: Site) -> None:
    await site.database.execute(
        "INSERT INTO event_dead_letter (event_id, event_type, priority, handler, error, event,"
        " died_at) VALUES ('e', 'PRICE_TICK', 1, 'h', 'boom', '{}', now())"
    )
    async with site.connect(Role.TRADE) as trader:
        (letter,) = (await trader.get("/api/events"))["dead_letters"]
        assert letter["state"] == "dead"
        assert (await trader.act(action="replay", number=letter["number"]))[0] == 200
        (letter,) = (await trader.get("/api/events"))["dead_letters"]
        assert letter["state"] == "asked"
        assert (await trader.act(action="replay", number=999))[0] == 422
    found = await DeadLetterAdmin(site.database).find(10, None, True)
    assert found[0].state == "asked"


async def running(site: Site) -> None:
    """Start a run and wait until the hub has its status."""
    site.run()
    async with asyncio.timeout(30):
        while await site.dashboard.hub.live() is None:
            await site.dashboard.hub.wait_newer(site.dashboard.hub.version)


async def test_parameters_of_a_running_strategy_are_set(site: Site) -> None:
    await running(site)
    async with site.connect(Role.TRADE) as trader:
        status, answer = await trader.act(
            action="params", strategy="rsi_scalper", params={"length": 20}
        )
        assert (status, answer) == (200, {"done": "rsi_scalper: length = 20"})
        await trader.act(action="params", strategy="rsi_scalper", params={"low": 25.5})
    row = await site.database.fetchrow("SELECT params, version, changed_by FROM strategy_params")
    assert row is not None
    assert row["params"] == {"length": 20, "low": 25.5}
    assert row["version"] == 2
    assert row["changed_by"].startswith("dashboard trade")


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"length": 1}, "at least 2"),
        ({"length": 501}, "at most 500"),
        ({"length": 2.5}, "expected integer"),
        ({"length": True}, "expected integer"),
        ({"low": 0}, "above 0"),
        ({"low": 50}, "below 50"),
        ({"low": "30"}, "expected number"),
        ({"other": 1}, "unknown parameter"),
    ],
)
async def test_a_parameter_out_of_bounds_is_refused(params: dict[str, Any], why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        validate_params(params, statuses.strategy().fields)


async def test_parameters_of_a_strategy_that_is_not_running_are_refused(site: Site) -> None:
    async with site.connect(Role.TRADE) as trader:
        action = {"action": "params", "strategy": "rsi_scalper", "params": {"length": 20}}
        status, answer = await trader.act(**action)
        assert status == 422
        assert "is not running" in answer["error"]
    assert await site.database.fetchval("SELECT count(*) FROM strategy_params") == 0


async def test_a_mistyped_strategy_is_refused_with_the_nearest_one(site: Site) -> None:
    await running(site)
    async with site.connect(Role.TRADE) as trader:
        kill = {"action": "kill", "enabled": False, "reason": "odd"}
        params = {"action": "params", "params": {"length": 20}}
        for action in (kill, params):
            status, answer = await trader.act(**action, strategy="rsi_scalpre")
            assert status == 422
            assert "did you mean rsi_scalper?" in answer["error"]
        assert "rsi_scalpre" not in await KillSwitch(site.database, PAPER).all()
        # A stored key can be stopped without a run: here one that has a switch.
        await KillSwitch(site.database, PAPER).set(True, "test", "", "retired")
        status, _ = await trader.act(**kill, strategy="retired")
        assert status == 200


async def test_an_action_that_cannot_be_logged_is_not_performed(site: Site) -> None:
    await site.database.execute(
        "ALTER TABLE dashboard_action ADD CONSTRAINT is_full CHECK (action = 'login')"
    )
    async with site.connect(Role.TRADE) as trader:
        status, _ = await trader.act(action="kill", enabled=False, reason="x")
    assert status == 500
    assert await KillSwitch(site.database, PAPER).all() == {}


async def test_the_action_log_is_append_only(site: Site) -> None:
    async with site.connect(Role.TRADE) as trader:
        await trader.act(action="reconcile")
    for query in (
        "UPDATE dashboard_action SET actor = 'x'",
        "UPDATE dashboard_action SET outcome = 'FAILED'",
        "DELETE FROM dashboard_action",
    ):
        with pytest.raises(asyncpg.CheckViolationError, match="written once"):
            await site.database.execute(query)
