"""Orders on the pages: an unknown outcome, the life of an order, a cancel."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

from qts.database import Database
from qts.outbox import TRADE_EXIT, OutboxAdmin
from tests.accounts import PAPER
from tests.dashboard.conftest import Site
from tests.dashboard.test_actions import action_rows
from tests.dashboard.test_pages import shoot, visit
from tests.orders.waiting import store_stop_order


async def unknown_order(database: Database) -> UUID:
    intent, signal, attempt = uuid4(), uuid4(), uuid4()
    await database.execute(
        "INSERT INTO signal (id, strategy_key, symbol, side, reason, decided_at)"
        " VALUES ($1, 'rsi_scalper', '005930', 'BUY', 'turned', now())",
        signal,
    )
    await database.execute(
        "INSERT INTO order_intent (id, signal_id, intent_type, broker, account, strategy_key,"
        " symbol, side, order_type, quantity, approved_at, expires_at) VALUES ($1, $2, 'ENTRY',"
        " 'paper', $3, 'rsi_scalper', '005930', 'BUY', 'MARKET', 10, now(), now() + interval '5s')",
        intent,
        signal,
        PAPER.account,
    )
    await database.execute(
        "INSERT INTO order_attempt (id, order_intent_id, attempt_no, broker, account, symbol,"
        " identifier, request_json) VALUES ($1, $2, 1, 'paper', $3, '005930', 'a-1',"
        ' \'{"identifier": "a-1", "symbol": "005930", "side": "BUY", "type": "MARKET",'
        ' "quantity": "10"}\')',
        attempt,
        intent,
        PAPER.account,
    )
    await database.execute(
        "UPDATE order_attempt SET status = 'SENT', sent_at = now() WHERE id = $1", attempt
    )
    await database.execute(
        "UPDATE order_attempt SET status = 'UNKNOWN', error_message = 'no reply' WHERE id = $1",
        attempt,
    )
    return intent


async def test_an_unknown_order_is_yellow_and_has_its_timeline(site: Site, browser: Any) -> None:
    intent = await unknown_order(site.database)
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.open("orders")
        await tab.page.wait_for_selector("tr.unknown")
        cell = "getComputedStyle(document.querySelector('tr.unknown .chip.unknown'))"
        found = await tab.page.evaluate(f"{cell}.backgroundColor")
        red, green, blue = map(int, re.findall(r"\d+", found)[:3])
        assert min(red, green) > 1.5 * blue
        await tab.open(f"orders/{intent}")
        await tab.wait_text("main", "no reply")
        text = await tab.page.inner_text("main")
        places = [text.index(word) for word in ("signal", "intent", "attempt 1", "no reply")]
        assert places == sorted(places)
        await shoot(tab.page, "order.png")


async def test_an_open_order_is_cancelled_with_a_reason(site: Site, browser: Any) -> None:
    intent = await unknown_order(site.database)
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.page.click('[data-do="cancel"]')
        assert "BUY 10 005930" in await tab.page.inner_text("#confirm")
        await tab.page.fill("#reason", "fat finger")
        await tab.page.keyboard.press("Enter")
        await tab.wait_text("#toast", "cancel requested")
    (row,) = await action_rows(site.database)
    assert (row["action"], row["target"], row["outcome"]) == ("cancel", str(intent), "DONE")
    assert row["detail"]["reason"] == "fat finger"
    (event,) = await OutboxAdmin(site.database).find(stream=TRADE_EXIT)
    assert event.event_type == "CancelOrder"


async def test_a_stop_order_waits_with_its_trigger_and_is_cancelled(
    site: Site, browser: Any
) -> None:
    stock = {"symbol": "005930", "trigger": Decimal(71_000), "strategy_key": "rsi_scalper"}
    id_ = await store_stop_order(site.database, PAPER, **stock)
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.open("orders")
        await tab.wait_text("main", "trigger ₩71,000")
        assert "WAITING" in await tab.page.inner_text("main")
        await tab.page.keyboard.press("l")
        await tab.wait_text("main", "발동 가격 ₩71,000")
        assert "발동 대기" in await tab.page.inner_text("main")
        await tab.page.keyboard.press("l")
        await shoot(tab.page, "stop-order.png")
        await tab.open(f"orders/{id_}")
        await tab.wait_text("main", "stop order")
        await tab.wait_text("main", "trigger ₩71,000 · rsi_scalper")
        await tab.open("orders")
        await tab.page.click(f'[data-do="cancel"][data-order="{id_}"]')
        assert "waits in QTS" in await tab.page.inner_text("#confirm")
        await tab.page.fill("#reason", "changed my mind")
        await tab.page.keyboard.press("Enter")
        await tab.wait_text("main", "No orders.")
    assert await site.database.fetchval("SELECT count(*) FROM stop_order") == 0  # no run has it
    (row,) = await action_rows(site.database)
    assert (row["action"], row["target"], row["outcome"]) == ("cancel", str(id_), "DONE")


async def test_only_an_order_of_the_account_is_cancelled(site: Site) -> None:
    missing = uuid4()
    async with site.connect() as operator:
        status, answer = await operator.act(action="cancel", intent_id=str(missing), reason="x")
    assert status == 422
    assert f"order {missing} is not one of account paper:" in answer["error"]
