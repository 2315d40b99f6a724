"""`qts run` on paper, commanded from Telegram: the audit names who and why, also after kill -9."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from qts.notify.telegram_bot import STARTED
from tests.acceptance.runs import Run, running
from tests.embedded.clients import until
from tests.notify.bot_api import CHAT, OWNER, TOKEN, BotApi

pytestmark = pytest.mark.timeout(300)  # a busy machine starts servers slowly

SWITCH = "SELECT trading_enabled, changed_by, reason, changed_at FROM kill_switch"
SWITCH += " WHERE scope = 'account'"
ACTIONS = "SELECT actor, action, target, detail->>'reason', outcome FROM dashboard_action"
ACTIONS += " ORDER BY id"
# The newest one: no strategy or stop sells it within the second before its close.
HELD = "SELECT symbol FROM position WHERE quantity > 0 ORDER BY opened_at DESC"
CLOSED = """
    SELECT o.side, o.state FROM paper_order o
    JOIN order_attempt a ON a.broker_order_id = o.order_id
    JOIN order_intent i ON i.id = a.order_intent_id
    WHERE i.strategy_key = 'manual' AND o.symbol = $1
"""
# The statement of an order that began before the switch may end within a second after it.
LATER = "SELECT count(*) FROM order_attempt WHERE created_at > $1::timestamptz + interval '1 s'"
BUSY = "No result within"
PASSED = "SELECT clock_timestamp() > $1::timestamptz + interval '3 s'"


# No stop sells what the owner closes, and entries go on until the owner stops them.
WIDE = {
    "QTS_RISK__LIMITS__MAX_OPEN_SYMBOLS": "200",
    "QTS_RISK__STOPS__TRAIL_ARM": "0.9",
    "QTS_RISK__STOPS__MAE_HALF": "0.9",
    "QTS_RISK__STOPS__MAE_FULL": "0.9",
    "QTS_RISK__STOPS__MAE_ACCOUNT": "0.9",
}


def environ(api: BotApi) -> dict[str, str]:
    return {
        **WIDE,
        "QTS_NOTIFY__TELEGRAM__TOKEN": TOKEN,
        "QTS_NOTIFY__TELEGRAM__CHAT": str(CHAT),
        "QTS_NOTIFY__TELEGRAM__URL": api.url,
        "QTS_NOTIFY__TELEGRAM__COMMAND_USERS": f"{OWNER},43",
        "QTS_NOTIFY__TELEGRAM__COMMAND_CHATS": str(CHAT),
    }


async def query(run: Run, sql: str, *values: Any) -> list[Any]:
    return [tuple(row) for row in await asyncio.to_thread(run.query, sql, *values)]


async def said(api: BotApi, start: str) -> str:
    """Wait for an answer that starts so, between the notifications of the run."""
    await api.until(lambda: any(text.startswith(start) for text in api.texts()))
    return next(text for text in api.texts() if text.startswith(start))


async def asked(api: BotApi, command: str, start: str) -> str:
    """Send a command that only reads, again if QTS was too busy for it; return its answer."""
    while True:
        before = len(api.texts())
        await api.send(command)
        await api.until(
            lambda: any(text.startswith((start, BUSY)) for text in api.texts()[before:])  # noqa: B023
        )
        for text in api.texts()[before:]:
            if text.startswith(start):
                return text


async def close_by_telegram(api: BotApi, run: Run) -> str:
    """Close a position, and return its symbol; the paper venue's list decides."""
    symbol: str = (await query(run, HELD))[0][0]
    await api.send(f"/close {symbol} earnings tonight")
    question = await said(api, "Close it?")
    assert f" {symbol}" in question
    await api.press()
    assert (await api.until_said(1, "editMessageText"))[0].endswith(STARTED)
    done = await said(api, "Done: ")
    assert "SELL" in done
    assert f"{symbol} filled" in done
    assert await query(run, CLOSED, symbol) == [("SELL", "FILLED")]
    return symbol


async def stop_by_telegram(api: BotApi, run: Run) -> None:
    assert "QTS trades with" in await asked(api, "/status", "SIMULATED paper:")
    await api.send("/positions", "/orders")
    assert "Equity" in await asked(api, "/profit", "202")  # a date, not an order's time of day
    await api.send("/kill leaving for the day")
    await said(api, "Stop every order of paper:")
    assert (await query(run, SWITCH))[0][0] is True
    await api.press()
    (*_, edited) = await api.until_said(2, "editMessageText")
    assert edited.endswith("Done: account is stopped.")
    ((enabled, actor, reason, at),) = await query(run, SWITCH)
    assert (enabled, actor, reason) == (False, f"telegram:{OWNER}", "leaving for the day")
    assert await asyncio.to_thread(until, lambda: "G_KILL_SWITCH" in run.errors, 90)
    assert await asyncio.to_thread(until, lambda: run.query(PASSED, at)[0][0])
    assert await query(run, LATER, at) == [(0,)]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path.resolve() / "home"


async def test_an_owner_stops_a_run_and_a_replay_after_a_crash_does_nothing(home: Path) -> None:
    async with BotApi().serving() as api:
        with running(home, **environ(api)) as run:
            await asyncio.to_thread(run.until, "Ready")
            assert await asyncio.to_thread(until, lambda: bool(run.query(HELD)), 90)
            symbol = await close_by_telegram(api, run)
            await stop_by_telegram(api, run)
            audit = [
                (f"telegram:{OWNER}", "close", symbol, "earnings tonight", "DONE"),
                (f"telegram:{OWNER}", "kill", "account", "leaving for the day", "DONE"),
            ]
            assert await query(run, ACTIONS) == audit
            assert await asyncio.to_thread(run.end, signal.SIGKILL) == -signal.SIGKILL
            assert "canary" not in run.errors
        questions = [text for text in api.texts() if text.startswith("Stop every order")]
        with running(home, **environ(api)) as run:
            await api.deliver(*api.history)
            await asyncio.to_thread(run.until, "Ready")
            await api.send("/resume")
            await said(api, "Every strategy is on already")
            assert await query(run, ACTIONS) == audit
            assert (await query(run, SWITCH))[0][0] is False
            await asyncio.to_thread(run.ends_well, signal.SIGINT)
        again = [text for text in api.texts() if text.startswith("Stop every order")]
    assert again == questions
    assert len(questions) == 1
