"""A venue that has shut us out answers nothing any more: nothing leaves until a person resumes."""

from __future__ import annotations

from qts.orders import markets
from qts.orders.attempts import Attempts
from qts.orders.floor import Floor


async def shut_out(floor: Floor, text: str) -> None:
    """Switch the account off, tell the fail-safe, and suspend every market: the last so that
    whoever dies in between is followed by one who does it all again."""
    broker = floor.broker.name
    for known in await markets.suspended(floor.database, broker):
        if (known.symbol, known.code) == (markets.ALL, markets.BLOCKED):
            return
    await floor.safety.switch_off(text)
    await floor.safety.fail("FS110", text)
    async with floor.database.transaction() as tx:
        moves = Attempts(tx, floor.bus, floor.config, floor.clock.now())
        await moves.suspend(broker, markets.ALL, markets.BLOCKED, text)
    floor.ledger.tell(moves.changes)
