"""Stream of Upbit over a WebSocket: quotes, or events of our orders; reconnects after every drop.

Upbit does not document whether a request adds to an earlier one, so the full set is always sent.
It repeats no order events: a consumer that needs all orders queries them in `on_live`.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import msgspec

from qts import telemetry
from qts.domain import Clock, OrderBook, QtsError
from qts.venues.errors import refuse_redirects
from qts.venues.market_data import Quote
from qts.venues.metrics import stream_reconnects
from qts.venues.upbit.client import BOOK_LEVELS, UpbitClient, order_book, ticker_quote

MAX_BACKOFF_S = 60.0
STABLE_AFTER_S = 30.0  # a connection that lasted longer resets the backoff
PING_INTERVAL_S = 10.0  # a connection without a reply is closed within 15 s

REDIRECTS = refuse_redirects("Upbit")

log = telemetry.logger("venues")


class UpbitStream:
    """Quotes of the subscribed symbols; with `on_order`, events of our orders instead."""

    def __init__(
        self,
        client: UpbitClient,
        clock: Clock,
        on_quote: Callable[[Quote], None],
        on_order: Callable[[dict[str, Any]], None] | None = None,
        on_live: Callable[[], None] | None = None,
        on_book: Callable[[OrderBook], None] | None = None,
    ) -> None:
        self._client = client
        self._on_book = on_book
        self._books: tuple[str, ...] = ()
        self._clock = clock
        self._on_quote = on_quote
        self._on_order = on_order
        self._on_live = on_live
        self._symbols: tuple[str, ...] = ()
        self._registered: dict[str, float] = {}
        self._heard_ns = 0
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._reconnects = stream_reconnects("upbit")
        self.malformed_frames = 0

    @property
    def live(self) -> bool:
        return self._socket is not None

    @property
    def silence_s(self) -> float:
        """Seconds since the last message of the connection."""
        return (self._clock.monotonic_ns() - self._heard_ns) / 1e9

    def registered_at(self, symbol: str) -> float | None:
        """Return when the symbol was requested on this connection, None if it was not.

        Upbit confirms no subscription; it sends an error for one it refuses.
        """
        return self._registered.get(symbol)

    async def subscribe(self, symbols: Sequence[str], books: Sequence[str] = ()) -> None:
        """Replace the symbols whose tickers and whose order books are subscribed."""
        self._symbols, self._books = tuple(symbols), tuple(books)
        if self._socket is not None and self._symbols:
            await self._socket.send_bytes(self._request())
            self._note_registered()

    async def run(self) -> None:
        """Connect, subscribe and deliver until cancelled; reconnect after every drop."""
        failures = 0
        while True:
            began_ns = self._clock.monotonic_ns()
            try:
                await self._run_connection()
            except (QtsError, aiohttp.ClientError, TimeoutError, OSError) as error:
                reason = str(error) or type(error).__name__
                log.warning("Upbit stream disconnected; reconnecting", error=reason)
            lasted_s = (self._clock.monotonic_ns() - began_ns) / 1e9
            failures = 0 if lasted_s > STABLE_AFTER_S else failures + 1
            backoff_s = min(2.0**failures, MAX_BACKOFF_S)
            self._reconnects.inc()
            await self._clock.sleep(backoff_s * random.uniform(0.5, 1.0))  # noqa: S311 - spread, not secrecy

    async def _run_connection(self) -> None:
        private = self._on_order is not None
        address = self._client.config.stream_url + ("/private" if private else "")
        headers = {"Authorization": self._client.authorization()} if private else {}
        async with (
            aiohttp.ClientSession(headers=headers, middlewares=[REDIRECTS]) as session,
            session.ws_connect(address, heartbeat=PING_INTERVAL_S) as socket,
        ):
            self._heard_ns = self._clock.monotonic_ns()
            if private or self._symbols:
                await socket.send_bytes(self._request())
                self._note_registered()
            self._socket = socket
            if self._on_live is not None:
                self._on_live()
            try:
                await self._receive(socket)
            finally:
                self._socket = None
                self._registered = {}

    def _note_registered(self) -> None:
        at = self._clock.monotonic_ns() / 1e9
        self._registered = {s: self._registered.get(s, at) for s in self._symbols}

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.type not in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
                break
            self._heard_ns = self._clock.monotonic_ns()
            try:
                self._deliver(msgspec.json.decode(message.data))
            except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
                self.malformed_frames += 1
                if due := telemetry.log_every(60.0, "upbit-frame"):
                    log.error("malformed Upbit frame; skipped", error=str(error), **due)
        raise ConnectionError("closed by Upbit")

    def _deliver(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "ticker":
            self._on_quote(ticker_quote(message, "upbit_ws"))
        elif kind == "orderbook" and self._on_book is not None:
            self._on_book(order_book(message, self._clock.now().timestamp()))
        elif kind == "myOrder" and self._on_order is not None:
            self._on_order(message)
        elif "error" in message:
            self._registered = {}  # polled until the next request
            log.warning("Upbit rejected subscription", error=str(message["error"]))

    def _request(self) -> bytes:
        contents: list[dict[str, Any]] = [{"type": "myOrder"}]
        if self._on_order is None:
            codes = list(self._symbols)
            contents = [{"type": "ticker", "codes": codes, "is_only_realtime": True}]
            if self._books:
                deep = [f"{symbol}.{BOOK_LEVELS}" for symbol in self._books]
                contents.append({"type": "orderbook", "codes": deep})
        ticket = {"ticket": str(uuid.uuid4())}
        return msgspec.json.encode([ticket, *contents, {"format": "DEFAULT"}])
