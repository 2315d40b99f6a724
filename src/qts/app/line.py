"""Says it when the line to the venue is cut: an event of lane P0, and a word for the owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qts import telemetry
from qts.events import payloads as p

if TYPE_CHECKING:
    from qts.app.trading import Trading

log = telemetry.logger("app")

LOOK_S = 0.1  # a stream that was cut stays away for half a second at least
CUT = "stream is cut; prices are polled until it is back"
OPEN = "stream is open"


class Line:
    """`run` it beside the trading until cancelled."""

    def __init__(self, trading: Trading) -> None:
        self._trading = trading
        self._was_up = False

    async def run(self) -> None:
        while True:
            self.look()
            await self._trading.clock.sleep(LOOK_S)

    def look(self) -> None:
        trading, venue = self._trading, self._trading.config.feed.venue
        is_up = trading.feed.state().streaming
        if self._was_up and not is_up and not trading.stopping:  # a stop ends the feed first
            log.warning("the venue's stream is cut", venue=venue)
            cut = p.BrokerDisconnect(broker=venue, reason=CUT)
            trading.changes.emit("BROKER_DISCONNECT", cut)
        elif is_up and not self._was_up:
            now = trading.clock.now().timestamp()
            trading.notices.note(now, "info", f"{venue} {OPEN}", "BROKER_CONNECT")
        self._was_up = is_up
