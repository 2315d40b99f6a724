"""A dashboard with something on every page, and a look at all of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

from qts.dashboard.live_status import LimitStatus
from qts.database import Database
from qts.domain import AccountKey, IntentType, ManualClock, Side
from qts.outbox import PermanentError, PostgresBus
from qts.pipeline import trading_day_start
from qts.risk import KillSwitch
from tests.accounts import PAPER
from tests.dashboard.conftest import Site
from tests.dashboard.reporting import money, reporting_run
from tests.dashboard.test_actions import dead_event
from tests.dashboard.test_alerts import two_alerts
from tests.dashboard.test_candles import line
from tests.dashboard.test_equity import store
from tests.dashboard.test_orders_page import unknown_order
from tests.dashboard.test_overview import SAMSUNG, name_samsung
from tests.dashboard.test_pages import PAGES, BrowserTab
from tests.orders.fake_venue import Venue
from tests.orders.kit import STREAMS, OrderKit

# days ago, symbol, price of the purchase and of the sale, reason of the sale
TRIPS = [
    (9, "005930", 70_000, 71_400, IntentType.EXIT_TP),
    (6, "000660", 180_000, 176_400, IntentType.EXIT_STOPLOSS),
    (6, "005930", 70_500, 70_900, IntentType.EXIT_SIGNAL),
    (2, "005930", 71_000, 70_300, IntentType.EXIT_STOPLOSS),
    (1, "000660", 175_000, 181_000, IntentType.EXIT_SIGNAL),
]
LIMITS = [
    LimitStatus(name="orders_per_day", used=Decimal(7), limit=Decimal(100)),
    LimitStatus(name="daily_loss", used=Decimal(12_000), limit=Decimal(30_000)),
]


async def store_trips(database: Database) -> None:
    """Store the round trips as a run does; each is of 10 shares and takes 90 minutes."""
    noon = trading_day_start(datetime.now(UTC)) + timedelta(hours=12)
    async with PostgresBus.open(database, STREAMS) as bus:
        clock = ManualClock(noon - timedelta(days=10))
        venue = Venue(clock)
        venue.key = PAPER
        kit = OrderKit(database, bus, venue, clock)
        await kit.open()
        await kit.kill.enable_unset(("rsi_scalper",), "test")
        for days, symbol, *prices, reason in TRIPS:
            at = noon - timedelta(days=days)
            legs = zip((Side.BUY, Side.SELL), prices, (IntentType.ENTRY, reason), strict=True)
            for side, price, intent in legs:
                await clock.advance(max(0.0, (at - clock.now()).total_seconds()))
                order = await kit.order(
                    symbol=symbol, side=side, quantity=Decimal(10), price=Decimal(price),
                    intent_type=intent, strategy_key="rsi_scalper",
                )  # fmt: skip
                fill = venue.trade(order, Decimal(10), Decimal(price))
                await kit.context.ledger.record_fill(fill)
                at += timedelta(minutes=90)


def walk(number: int) -> Iterator[bytes]:
    """Yield recorded ticks of a random walk, with a gap of five minutes in it."""
    chance, price, volume = random.Random(7), 70_600, 0  # noqa: S311 - a picture, not a secret
    for at in range(number):
        price += 100 * chance.choice((-1, 0, 0, 1))
        volume += chance.randrange(1, 400)
        yield line(at, "005930", price, at * 2.5 + 300 * (at > number / 2), volume)


async def fill_site(site: Site) -> UUID:
    """Store orders, alerts, equity, a dead event and ticks; start a run; return an order's id."""
    now = datetime.now(UTC)
    day = trading_day_start(now)
    await name_samsung(site.database)
    await store_trips(site.database)
    await KillSwitch(site.database, PAPER).enable_unset((), "test")
    await dead_event(site.database, PermanentError("no"))
    await two_alerts(site)
    intent = await unknown_order(site.database)
    step = (now - day) / 200
    chance, equity, curve = random.Random(3), 100_000_000, []  # noqa: S311 - a picture
    for number in range(1, 200):
        equity += chance.randrange(-30_000, 32_000)
        curve.append((day + number * step, equity))
    await store(site.database, [(day - timedelta(minutes=1), 100_000_000), *curve])
    ticks = b"".join(walk(600))
    await asyncio.to_thread((site.record / "2026-11-16.0001.jsonl").write_bytes, ticks)
    for name, book in (("stocks", "kis"), ("coins", "upbit")):
        async with reporting_run(site.database, name, AccountKey.of(book, "x")) as ended:
            await ended.write(money(5_000_000, 1200, -300), mode="live")
    site.run(positions=[SAMSUNG], limits=LIMITS)
    return intent


async def look_around(tab: BrowserTab, intent: UUID) -> AsyncIterator[str]:
    """Open each page, one order, one symbol and a dialog, and yield its name when it is drawn."""
    for name in (*PAGES, f"orders/{intent}", "market/005930"):
        await tab.open(name)
        yield name
    await tab.open("overview")
    await tab.page.keyboard.press("k")
    await tab.page.wait_for_selector("dialog[open]")
    yield "dialog"
    await tab.page.keyboard.press("Escape")
    await tab.page.wait_for_selector("dialog[open]", state="detached")


async def set_look(tab: BrowserTab, theme: str, language: str, width: int) -> None:
    """Choose theme, language and width of the window."""
    from playwright.async_api import TimeoutError as PageTimeoutError

    found = "[document.documentElement.dataset.theme, document.documentElement.lang]"
    changed = f"([at, before]) => {found}[at] !== before"
    await tab.page.set_viewport_size({"width": width, "height": 900})
    for at, key, wanted in ((0, "t", theme), (1, "l", language)):
        while (before := (await tab.page.evaluate(found))[at]) != wanted:
            await tab.page.keyboard.press(key)
            with suppress(PageTimeoutError):  # a key may be lost while a busy machine draws
                await tab.page.wait_for_function(changed, arg=[at, before], timeout=5000)
