"""Commands by Telegram: what they answer, their effect in the database and their log."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from qts.brokers import AccountLease, open_account
from qts.dashboard.live_status import LiveStatus, VenueStatus
from qts.dashboard.telegram_commands import TelegramCommands
from qts.database import Database, Row
from qts.domain import OperationError, RefusedError, SystemClock
from qts.notify import Caller, Confirmation
from qts.orders import (
    ManualResult,
    ManualState,
    adopt_holding,
    end_command,
    external_fill,
    start_command,
)
from qts.outbox import OutboxConfig, PostgresBus
from qts.risk import FailSafe, KillSwitch, SafetyState
from tests.accounts import PAPER
from tests.dashboard import statuses
from tests.dashboard.test_actions import action_rows
from tests.dashboard.test_orders_page import unknown_order

OWNER = Caller(42, -77)
KEYS = ("rsi_scalper", "surge_breakout")


def live(**more: Any) -> LiveStatus:
    status = statuses.live(strategies=[statuses.strategy(key=key) for key in KEYS], **more)
    venue = VenueStatus(
        venue="kis",
        broker="paper",
        account=PAPER.account,
        ticks=status.ticks,
        feed=statuses.feed(),
        money=status.money,
        safety=status.safety,
    )
    return msgspec.structs.replace(status, venues=[venue])


class Run:
    """The commands of a run whose status a test sets."""

    def __init__(self, database: Database) -> None:
        self.status = live()
        streams = OutboxConfig().streams
        self.commands = TelegramCommands(
            database, [PAPER], streams, lambda: self.status, SystemClock()
        )
        self.switch = KillSwitch(database, PAPER)
        self.fail_safe = FailSafe(database, PAPER)

    async def send(self, name: str, argument: str = "") -> str | Confirmation:
        command = {each.name: each for each in self.commands.all()}[name]
        return await command.run(OWNER, argument)

    async def text(self, name: str) -> str:
        found = await self.send(name)
        assert isinstance(found, str)
        return found

    async def ask(self, name: str, argument: str = "") -> Confirmation:
        found = await self.send(name, argument)
        assert isinstance(found, Confirmation)
        return found


@pytest.fixture
async def run(database: Database) -> Run:
    await open_account(database, PAPER, is_live=False)
    run = Run(database)
    await run.switch.enable_unset(KEYS, "first start on paper")
    return run


async def test_status_says_whether_it_trades(run: Run) -> None:
    text = await run.text("status")
    assert text.startswith(f"PAPER {PAPER.short}: QTS trades with 2 strategies.")
    assert "Equity 100,005,000 won, cash 99,300,000 won" in text
    assert "Today +1,234 realised, +5,000 unrealised" in text
    assert "warning: P1 is 81 % full" in text
    await run.switch.set(False, "telegram:1", "fat finger")
    assert "the kill switch is on (fat finger, telegram:1)" in await run.text("status")


async def test_positions_and_profit_are_those_of_the_run(run: Run) -> None:
    text = await run.text("positions")
    assert text == "005930: 10 at 70,000, now 70,500: +5,000 won, no stop, rsi_scalper"
    assert f"{PAPER.short}: +0 won realised after 0 fees, +5,000" in await run.text("profit")
    run.status = live(positions=[])
    assert await run.text("positions") == "No position is open."


async def test_orders_in_flight_are_listed(run: Run, database: Database) -> None:
    assert await run.text("orders") == "No order is in flight."
    await unknown_order(database)
    text = await run.text("orders")
    assert text.endswith("ENTRY BUY 10 005930 at the market, 0 filled, UNKNOWN, rsi_scalper")


async def test_kill_and_release_switch_the_account_and_name_who_and_why(
    run: Run, database: Database
) -> None:
    question = await run.ask("kill", "fat finger")
    assert "fat finger" in question.question
    assert (await run.switch.all())["account"].enabled
    assert await question.act() == "Done: account is stopped."
    switch = (await run.switch.all())["account"]
    assert (switch.enabled, switch.changed_by, switch.reason) == (
        False,
        "telegram:42",
        "fat finger",
    )
    question = await run.ask("release", "checked")
    assert "by telegram:42: fat finger" in question.question
    assert await question.act() == "Done: account may trade."
    assert (await run.switch.all())["account"].enabled
    rows = await action_rows(database)
    assert [(row["actor"], row["detail"]["reason"], row["outcome"]) for row in rows] == [
        ("telegram:42", "fat finger", "DONE"),
        ("telegram:42", "checked", "DONE"),
    ]
    assert await database.fetchval("SELECT address FROM dashboard_action LIMIT 1") == (
        "telegram chat -77"
    )


async def test_release_ends_a_lockdown_and_the_switch_together(run: Run) -> None:
    await run.fail_safe.trip("FS070", "positions differ")
    await run.fail_safe.trip("FS070", "positions differ")
    await run.switch.set(False, "somebody", "")
    question = await run.ask("release")
    assert "FS070" in question.question
    assert "by somebody" in question.question
    await question.act()
    assert (await run.fail_safe.now()).state is SafetyState.NORMAL
    assert (await run.fail_safe.log(1))[0].actor == "telegram:42"
    assert (await run.switch.all())["account"].enabled
    assert "Nothing to release" in await run.text("release")


async def test_an_account_that_never_traded_is_not_released(database: Database) -> None:
    await open_account(database, PAPER, is_live=False)
    with pytest.raises(RefusedError, match="never allowed to trade"):
        await Run(database).send("release")
    assert await KillSwitch(database, PAPER).all() == {}


async def test_pause_and_resume_switch_the_strategies_only(run: Run) -> None:
    question = await run.ask("pause", "lunch")
    assert question.question.endswith("rsi_scalper, surge_breakout")
    await question.act()
    switches = await run.switch.all()
    assert {name: each.enabled for name, each in switches.items()} == {
        "account": True,
        "rsi_scalper": False,
        "surge_breakout": False,
    }
    assert switches["rsi_scalper"].reason == "lunch"
    off = {"enabled": False, "stopped_at": ["kis"]}
    run.status = msgspec.structs.replace(
        run.status, strategies=[statuses.strategy(key=key, **off) for key in KEYS]
    )
    assert await run.text("pause") == "Every strategy is off already."
    await (await run.ask("resume")).act()
    assert all(each.enabled for each in (await run.switch.all()).values())


async def test_resume_needs_the_switches_of_the_database(run: Run) -> None:
    safety = msgspec.structs.replace(run.status.safety, database_read=False)
    run.status = live(safety=safety)
    with pytest.raises(OperationError, match="cannot read the switches"):
        await run.send("resume")


@pytest.mark.parametrize("reason", ["", "x" * 501])
async def test_a_kill_needs_a_reason_of_bounded_length(run: Run, reason: str) -> None:
    with pytest.raises(RefusedError, match="reason"):
        await run.send("kill", reason)


@pytest.fixture
async def held(run: Run, database: Database) -> Run:
    """Run with ten shares of 005930, and an order that is under way."""
    bought = external_fill("005930", Decimal(10), Decimal(70_000))
    async with PostgresBus.open(database, OutboxConfig().streams) as bus:
        await adopt_holding(database, bus, PAPER, bought, stops=False)
    await unknown_order(database)
    return run


async def requested_command(database: Database) -> Row:
    while True:
        found = await database.fetchrow("SELECT * FROM manual_command")
        if found is not None:
            return found
        await asyncio.sleep(0.01)


async def test_close_asks_with_what_it_will_do(held: Run) -> None:
    question = (await held.ask("close", "005930 earnings tonight")).question
    assert "1 open order cancelled, 1 position sold at the market" in question
    assert "10 005930, about 705,000 won" in question  # at the price of the run
    assert "may buy again; /pause stops that" in question


async def test_close_is_handed_to_the_run_of_the_account_and_logged(
    held: Run, database: Database
) -> None:
    question = await held.ask("close", "005930 earnings tonight")
    assert question.is_long
    async with AccountLease(database, PAPER, "home", SystemClock(), is_live=False):
        acting = asyncio.ensure_future(question.act())
        command = await requested_command(database)
        assert (command["actor"], command["reason"]) == ("telegram:42", "earnings tonight")
        assert command["request"] == {"kind": "close", "symbol": "005930"}
        assert await start_command(database, PAPER, command["id"])
        result = ManualResult(message="SELL 10 005930 filled at 70500")
        await end_command(database, command["id"], ManualState.DONE, result)
        assert await acting == "Done: SELL 10 005930 filled at 70500."
    (row,) = await action_rows(database)
    assert (row["actor"], row["action"], row["target"], row["outcome"]) == (
        "telegram:42",
        "close",
        "005930",
        "DONE",
    )


async def test_close_without_a_run_says_so(held: Run) -> None:
    with pytest.raises(OperationError, match="no run trades account"):
        await (await held.ask("close", "005930")).act()


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("", "/close needs a symbol; open: 005930"),
        ("005931", "'005931'.*005930"),
        (f"005930 {'x' * 501}", "reason has 501 characters"),
    ],
)
async def test_close_names_what_is_open(held: Run, argument: str, problem: str) -> None:
    with pytest.raises(RefusedError, match=problem):
        await held.send("close", argument)


async def test_close_is_refused_while_the_kill_switch_is_on(held: Run) -> None:
    await held.switch.set(False, "telegram:1", "fat finger")
    with pytest.raises(RefusedError, match=r"kill switch is on.*/release"):
        await held.send("close", "005930")
