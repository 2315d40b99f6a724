"""Upbit's WebSocket: quotes of any markets, or our own orders; re-made after every drop.

Whether a new request adds to an older one is not documented, so the full set is always sent. Own
orders come as events only: whoever needs them all looks them up when `on_live` is called.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import msgspec

from qts import telemetry
from qts.domain import Clock, QtsError
from qts.venues.quote import Quote
from qts.venues.upbit.client import UpbitClient, ticker_quote

LONGEST_WAIT_S = 60.0
STEADY_S = 30.0  # a session that lasted so long starts the waits afresh
PING_S = 30.0  # Upbit closes a connection that is silent for 120 s

log = telemetry.logger("venues")


class UpbitStream:
    """Quotes of `markets`; with `on_order` set, events of our own orders instead."""

    def __init__(
        self,
        client: UpbitClient,
        clock: Clock,
        on_quote: Callable[[Quote], None],
        on_order: Callable[[dict[str, Any]], None] | None = None,
        on_live: Callable[[], None] | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._on_quote = on_quote
        self._on_order = on_order
        self._on_live = on_live
        self._markets: tuple[str, ...] = ()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self.sessions = 0
        self.broken_frames = 0

    @property
    def live(self) -> bool:
        return self._socket is not None

    async def watch(self, markets: Sequence[str]) -> None:
        """The markets to be quoted from now on, all of them."""
        self._markets = tuple(markets)
        if self._socket is not None and self._markets:
            await self._socket.send_bytes(self._request())

    async def run(self) -> None:
        """Until cancelled: connect, subscribe, deliver; again after every drop."""
        failures = 0
        while True:
            began_ns = self._clock.monotonic_ns()
            try:
                await self._session()
            except (QtsError, aiohttp.ClientError, TimeoutError, OSError) as error:
                log.warning("Upbit stream lost", reason=str(error) or type(error).__name__)
            lasted_s = (self._clock.monotonic_ns() - began_ns) / 1e9
            failures = 0 if lasted_s > STEADY_S else failures + 1
            longest = min(2.0**failures, LONGEST_WAIT_S)
            await self._clock.sleep(longest * random.uniform(0.5, 1.0))  # noqa: S311 - spread, not secrecy

    async def _session(self) -> None:
        private = self._on_order is not None
        address = self._client.config.stream_url + ("/private" if private else "")
        headers = {"Authorization": self._client.authorization()} if private else {}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.ws_connect(address, heartbeat=PING_S) as socket,
        ):
            if private or self._markets:
                await socket.send_bytes(self._request())
            self._socket = socket
            self.sessions += 1
            if self._on_live is not None:
                self._on_live()
            try:
                await self._listen(socket)
            finally:
                self._socket = None

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.type not in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
                break
            try:
                self._deliver(msgspec.json.decode(message.data))
            except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
                self.broken_frames += 1
                if due := telemetry.log_every(60.0, "upbit-frame"):
                    log.error("a frame of Upbit could not be read", reason=str(error), **due)
        raise ConnectionError("closed by Upbit")

    def _deliver(self, found: dict[str, Any]) -> None:
        kind = found.get("type")
        if kind == "ticker":
            self._on_quote(ticker_quote(found, "upbit_ws"))
        elif kind == "myOrder" and self._on_order is not None:
            self._on_order(found)
        elif "error" in found:
            log.warning("Upbit refused a subscription", reason=str(found["error"]))

    def _request(self) -> bytes:
        what: dict[str, Any] = {"type": "myOrder"}
        if self._on_order is None:
            what = {"type": "ticker", "codes": list(self._markets), "is_only_realtime": True}
        return msgspec.json.encode([{"ticket": str(uuid.uuid4())}, what, {"format": "DEFAULT"}])
