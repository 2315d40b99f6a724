"""Codes that orders and fills raise, from the venue's answer to the safety log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from decimal import Decimal

import msgspec
import pytest

from qts.database import Database
from qts.domain import IntentType, ManualClock, Side, UnreachableError
from qts.risk import SafetyState
from qts.venues import RateLimitedError, VenueRejectedError
from tests.orders.kit import PRICE, SYMBOL, OrderKit, open_kit

D = Decimal
EXIT = {"side": Side.SELL, "intent_type": IntentType.EXIT_STOPLOSS}


async def raised(kit: OrderKit) -> list[str]:
    """Codes of the safety log, the oldest first."""
    await kit.work()
    return [entry.code for entry in reversed(await kit.fail_safe.log())]


async def state(kit: OrderKit) -> SafetyState:
    return (await kit.fail_safe.now()).state


async def place(kit: OrderKit, error: Exception | None, **more: object) -> None:
    kit.venue.before = lambda _request: error
    await kit.submit(**more)
    await kit.work()


async def test_orders_that_are_not_answered_in_time_stop_trading_once(kit: OrderKit) -> None:
    for symbol in ("KRW-BTC", "KRW-ETH"):
        await place(kit, TimeoutError(), symbol=symbol)
    await place(kit, None, symbol="KRW-XRP")  # the venue is there
    for symbol in ("KRW-SOL", "KRW-ADA"):
        await place(kit, TimeoutError(), symbol=symbol)
    assert await raised(kit) == []
    await place(kit, TimeoutError(), symbol="KRW-DOT")
    assert (await raised(kit), await state(kit)) == (["FS042"], SafetyState.FAIL)
    for symbol in ("KRW-AVAX", "KRW-LINK", "KRW-TRX"):  # exits leave in FAIL, into the same outage
        await place(kit, TimeoutError(), symbol=symbol, **EXIT)
    assert (await raised(kit), await state(kit)) == (["FS042"] * 2, SafetyState.FAIL)


async def test_three_orders_in_a_row_that_cannot_be_sent_stop_trading(
    database: Database, clock: ManualClock
) -> None:
    async with open_kit(database, clock, throttle_base_s=60, throttle_max_s=60) as kit:
        for symbol in ("KRW-BTC", "KRW-ETH"):
            await place(kit, UnreachableError("no route"), symbol=symbol)
        await place(kit, RateLimitedError("429"), symbol="KRW-XRP")  # the venue is there
        for symbol in ("KRW-SOL", "KRW-ADA"):
            await place(kit, UnreachableError("no route"), symbol=symbol)
        assert await raised(kit) == []
        await place(kit, UnreachableError("no route"), symbol="KRW-DOT")
        assert (await raised(kit), await state(kit)) == (["FS090"], SafetyState.FAIL)


async def test_three_rejected_entries_in_a_row_stop_trading(kit: OrderKit) -> None:
    rejected = VenueRejectedError("no money", "insufficient_funds_bid")
    for _ in range(2):
        await place(kit, rejected)
    await place(kit, None)
    for _ in range(2):
        await place(kit, rejected)
    await place(kit, rejected, symbol="KRW-ETH", **EXIT)  # GR074 reports exits
    assert await raised(kit) == []
    await place(kit, rejected)
    assert (await raised(kit), await state(kit)) == (["FS040"], SafetyState.FAIL)


@pytest.mark.parametrize("code", ["market_not_found", "APBK0656"])
async def test_a_symbol_that_the_venue_does_not_know_stops_trading(
    kit: OrderKit, code: str
) -> None:
    for _ in range(2):
        await place(kit, VenueRejectedError("no such symbol", code), **EXIT)
    assert (await raised(kit), await state(kit)) == (["FS091"], SafetyState.FAIL)


async def test_a_slow_venue_is_warned_of_once_a_minute(kit: OrderKit, clock: ManualClock) -> None:
    async def later(_order_id: str) -> None:
        await clock.advance(2.6)  # of the five seconds that it may take

    kit.venue.meanwhile = later
    for _ in range(3):
        await place(kit, None)
    assert (await raised(kit), await state(kit)) == (["AN050"], SafetyState.WARNING)
    await clock.advance(60)
    await place(kit, None)
    assert await raised(kit) == ["AN050"] * 2


async def test_a_quick_venue_raises_nothing(kit: OrderKit, clock: ManualClock) -> None:
    async def later(_order_id: str) -> None:
        await clock.advance(2.4)

    kit.venue.meanwhile = later
    await place(kit, None)
    assert await raised(kit) == []


async def by_report(kit: OrderKit) -> None:
    await kit.reconciler.handle_report(kit.venue.trades[-1])


async def by_history(kit: OrderKit) -> None:
    await kit.reconciler.reconcile_now()


@pytest.mark.parametrize("lacks", [{"price": D(0)}, {"quantity": D(0)}])
@pytest.mark.parametrize("look", [by_report, by_history])
async def test_a_fill_without_price_or_quantity_is_not_applied_and_stops_trading(
    kit: OrderKit, lacks: dict[str, Decimal], look: Callable[[OrderKit], Awaitable[None]]
) -> None:
    name = await kit.order()
    fill = kit.venue.trade(name, D(1), PRICE)
    kit.venue.trades[-1] = msgspec.structs.replace(fill, **lacks)
    for _ in range(2):
        await look(kit)
    assert (await raised(kit), await state(kit)) == (["FS041"], SafetyState.FAIL)
    assert (await kit.position())[0] == 0
    good = kit.venue.trade(name, D(1), PRICE)  # it keeps no other fill out of the ledger
    await kit.reconciler.handle_report(good)
    assert (await kit.position())[0] == 1


async def test_a_sale_of_more_than_is_held_does_not_add_up(kit: OrderKit) -> None:
    sell = await kit.order(side=Side.SELL, intent_type=IntentType.EXIT_SIGNAL)
    await kit.context.ledger.record_fill(kit.venue.trade(sell, D(1), D(110)))
    assert (await raised(kit), await state(kit)) == (["AN030"], SafetyState.WARNING)


async def test_a_trade_id_with_other_figures_does_not_add_up(kit: OrderKit) -> None:
    name = await kit.order()
    await kit.context.ledger.record_fill(kit.venue.trade(name, D(1), PRICE, trade_id="T"))
    for _ in range(2):
        await kit.context.ledger.record_fill(kit.venue.trade(name, D(1), D(99), trade_id="T"))
    assert await raised(kit) == ["AN030"]


async def test_codes_that_cannot_be_stored_keep_the_outcome(
    database: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_kit(database, clock) as kit:

        async def no_database(_code: str, _text: str) -> None:
            raise UnreachableError("no database")

        monkeypatch.setattr(kit.context.safety, "raise_code", no_database)
        kit.venue.before = lambda _request: TimeoutError()
        submitted = await kit.submit()
        await kit.work()
        assert await kit.attempts(submitted.intent_id) == ["UNKNOWN"]
        assert await kit.suspended() == {SYMBOL: "UNKNOWN"}
