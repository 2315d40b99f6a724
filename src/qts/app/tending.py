"""What is looked after between ticks: the stops' holdings, the broker's reach, the fail-safe."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from qts.domain import Failed
from qts.events import payloads as p

if TYPE_CHECKING:
    from qts.app.trading import Trading

CALM_EVERY_S = 5.0
SYNC_S = 0.1


async def keep_stops(trading: Trading) -> None:
    """What is held, for the stops; and a word when the broker is not to be reached."""
    knew = True
    while True:
        await trading.clock.sleep(SYNC_S)
        knows = trading.reconciler.may_trade()
        if knows:
            await _know_positions(trading)
        trading.deciding.holding.tell()
        if knew and not knows:
            lost = "news were lost, and its books are not compared yet"
            trading.changes.emit(
                "BROKER_DISCONNECT", p.BrokerDisconnect(broker=trading.broker.name, reason=lost)
            )
        knew = knows


async def _know_positions(trading: Trading) -> None:
    """What was held before, where the broker did not answer at the start."""
    holding = trading.deciding.holding
    if not holding.known.is_set():
        with contextlib.suppress(Failed):  # asked again at once
            await holding.load(trading.ground, trading.broker)


async def keep_calm(trading: Trading) -> None:
    """Codes that are over end by themselves, where the rules let them."""
    while True:
        await trading.clock.sleep(CALM_EVERY_S)
        with contextlib.suppress(Failed):
            await trading.fail_safe.calm()
            if trading.reconciler.may_trade():
                await trading.fail_safe.recheck("the books agree and the broker answers")
