"""Orders of a day as the ledger has them, and the exits of what is held."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from qts.domain import MANUAL, ExitLevels, IntentType, Position, Side
from qts.explain import DayLedger
from qts.explain.ledger import load_exits, load_live_ledger
from qts.pipeline import PortfolioState
from tests.accounts import VENUE
from tests.orders.kit import PRICE, SYMBOL, OrderKit

D = Decimal
HOUR = timedelta(hours=1)


async def ledger_of(kit: OrderKit) -> DayLedger:
    """Return everything: rows have the time of the database."""
    now = await kit.database.fetchval("SELECT now()")
    first = min(now, kit.clock.now())
    return await load_live_ledger(kit.database, VENUE, first - HOUR, max(now, first) + HOUR)


async def test_an_order_has_its_fills_and_its_signal(kit: OrderKit) -> None:
    name = await kit.order(reason="because")
    for quantity in (D("0.5"), D("1.5")):
        await kit.context.ledger.record_fill(kit.venue.trade(name, quantity, PRICE, fee=D(1)))
    await kit.order(quantity=D(1))
    filled, resting = (await ledger_of(kit)).orders
    assert (filled.strategy, filled.symbol, filled.side) == ("scalper", SYMBOL, Side.BUY)
    assert (filled.quantity, filled.filled, filled.fees) == (D(2), D(2), D(2))
    assert (filled.limit, filled.reason) == (PRICE, "because")
    assert filled.decided_at == kit.clock.now().timestamp()
    assert filled.signal_id is not None
    assert (resting.quantity, resting.fills) == (D(1), ())


async def test_a_manual_order_is_an_order_and_what_others_traded_is_none(kit: OrderKit) -> None:
    name = await kit.order(strategy_key=MANUAL, reason="cli ann: lunch")
    await kit.context.ledger.record_fill(kit.venue.trade(name, D(2), PRICE))
    foreign = kit.venue.by_hand(SYMBOL, Side.BUY, D(1))
    await kit.context.ledger.record_fill(kit.venue.trade(foreign, D(1), PRICE))
    (order,) = (await ledger_of(kit)).orders
    assert (order.strategy, order.reason) == (MANUAL, "cli ann: lunch")
    assert order.filled == 2


async def test_an_order_that_was_not_sent_is_refused_by_its_code(kit: OrderKit) -> None:
    await kit.kill.set(False, "tests", "enough")
    await kit.submit()
    await kit.submit(strategy_key=MANUAL)
    found = await ledger_of(kit)
    assert found.orders == []
    assert [(each.strategy_key, each.reason) for each in found.refused] == [
        ("scalper", "KILL_SWITCH")
    ]


async def test_a_position_has_the_exits_of_its_last_entry_before_the_time(kit: OrderKit) -> None:
    first, second = (ExitLevels(stop=D(90), target=D(level)) for level in (110, 120))
    await kit.order(exits=first)
    at = await kit.database.fetchval("SELECT clock_timestamp()")
    await kit.order(exits=second)
    await kit.order(side=Side.SELL, intent_type=IntentType.EXIT_TP)
    held = {SYMBOL: Position(SYMBOL, D(2), PRICE)}

    async def exits(owner: str, when: timedelta) -> dict[str, ExitLevels]:
        opening = PortfolioState(D(0), held, {SYMBOL: owner})
        return await load_exits(kit.database, VENUE, opening, at + when)

    assert await exits("scalper", -HOUR) == {}
    assert await exits("scalper", timedelta()) == {SYMBOL: first}
    assert await exits("scalper", HOUR) == {SYMBOL: second}
    assert await exits(MANUAL, HOUR) == {}  # another owner: they hold no longer
