"""Commands by Telegram: what they answer, their effect in the database and their log."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from qts.brokers import open_account
from qts.dashboard.live_status import LiveStatus, VenueStatus
from qts.dashboard.telegram_commands import TelegramCommands
from qts.database import Database
from qts.domain import OperationError, RefusedError, SystemClock
from qts.notify import Caller, Confirmation
from qts.outbox import OutboxConfig
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
