"""Stream of KIS over a WebSocket, and its market data as the feed uses it.

One connection per key takes 41 subscriptions and reconnects forever. One subscription is kept for
the fill notices, forty are for trades and order books of symbols: trades first, books with what is
left. KIS acknowledges each one, or rejects it: a rejected symbol is dropped, so that its consumer
can poll it and subscribe again; rejected fill notices are reported to their consumer, who has to
look for fills without them.

    connecting ── approved, subscribed ──▶ live ── dropped ──▶ backoff (1, 2, 4 … 60 s)
         ▲                                   └── key in use elsewhere ──▶ backoff 60 s │
         └─────────────────────────────────────────────────────────────────────────────┘

KIS repeats nothing after a drop: a consumer that needs every fill queries them in `on_live`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from datetime import date
from typing import NamedTuple

import aiohttp

from qts import telemetry
from qts.domain import Clock, Market, OrderBook, QtsError, RefusedError
from qts.venues.config import KisConfig
from qts.venues.errors import refuse_redirects
from qts.venues.kis.client import KisClient
from qts.venues.kis.frames import (
    BOOKS,
    FILLS,
    PAPER_FILLS,
    PING,
    TRADES,
    ControlMessage,
    FillNotice,
    Frame,
    MalformedFrameError,
    StreamCipher,
    fill_notice,
    order_book,
    parse,
    request,
    trade_quote,
)
from qts.venues.kis.quotes import KisQuotes, symbols_per_call
from qts.venues.market_data import (
    Calendar,
    MarketData,
    OpenStream,
    PublishedDays,
    Quote,
    VenueLimits,
)
from qts.venues.metrics import stream_reconnects

MAX_SUBSCRIPTIONS = 41
MAX_SYMBOLS = MAX_SUBSCRIPTIONS - 1  # one is for the fill notices
MAX_BACKOFF_S = 60.0
STABLE_AFTER_S = 30.0
RECEIVE_TIMEOUT_S = 60.0  # KIS pings about every ten seconds
_ACCEPTED = frozenset({"OPSP0000", "OPSP0001", "OPSP0002", "OPSP0003"})
_SUBSCRIBED = frozenset({"OPSP0000", "OPSP0002"})  # now, or already
_KEY_IN_USE = "OPSP8996"
_PERMANENT = frozenset({"OPSP0008", "OPSP8991", "OPSP8992"})  # too many, unknown service or key
_REDIRECTS = refuse_redirects("KIS")

log = telemetry.logger("venues")
_FILLS_REJECTED = telemetry.gauge(
    "qts_kis_fill_notices_rejected", "1 while KIS rejects the subscription to fill notices, else 0."
)


class StreamSubscription(NamedTuple):
    service: str
    key: str


class KisStream:
    """Live trades and fill notices of one key. Call all methods on the event loop of `run`."""

    capacity = MAX_SYMBOLS

    def __init__(
        self,
        client: KisClient,
        clock: Clock,
        on_quote: Callable[[Quote], None],
        on_live: Callable[[], None] | None = None,
        on_book: Callable[[OrderBook], None] | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._on_quote = on_quote
        self._on_book = on_book
        self._on_fill: Callable[[FillNotice], None] | None = None
        self._on_live = on_live
        self._on_fills_live: Callable[[], None] | None = None
        self._on_fills_rejected: Callable[[str], None] | None = None
        self._fills: StreamSubscription | None = None
        self._symbols: dict[str, None] = {}
        self._registered: dict[str, float] = {}  # on this connection
        self._books: dict[str, None] = {}
        self._rejected_books: set[str] = set()  # on this connection
        self._heard_ns = 0
        self._ciphers: dict[str, StreamCipher] = {}
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._approval = ""
        self._requests: asyncio.Queue[tuple[StreamSubscription, bool]] = asyncio.Queue()
        self._reconnects = stream_reconnects("kis")
        self.malformed_frames = 0
        self.rejections: dict[str, int] = {}
        self.fills_rejected = ""  # why KIS sends no fill notices

    @property
    def symbols(self) -> Collection[str]:
        """Subscribed symbols, whether KIS has acknowledged them or not."""
        return self._symbols

    @property
    def silence_s(self) -> float:
        """Seconds since the last message of the connection."""
        return (self._clock.monotonic_ns() - self._heard_ns) / 1e9

    def registered_at(self, symbol: str) -> float | None:
        """Return when KIS acknowledged the symbol on this connection, None if it has not."""
        return self._registered.get(symbol)

    @property
    def live(self) -> bool:
        return self._socket is not None

    def subscribe(self, symbol: str) -> None:
        if symbol in self._symbols:
            return
        if len(self._symbols) >= MAX_SYMBOLS:
            raise RefusedError(
                f"KIS allows {MAX_SUBSCRIPTIONS} subscriptions per key, {MAX_SYMBOLS} of them for "
                f"symbols, and all are in use; unsubscribe a symbol first"
            )
        self._symbols[symbol] = None
        self.set_books(list(self._books))  # trades come first
        self._requests.put_nowait((StreamSubscription(TRADES, symbol), True))

    def unsubscribe(self, symbol: str) -> None:
        if symbol in self._symbols:
            del self._symbols[symbol]
            self._registered.pop(symbol, None)
            self._requests.put_nowait((StreamSubscription(TRADES, symbol), False))

    @property
    def books(self) -> Collection[str]:
        """Symbols whose order book is subscribed."""
        return self._books

    def set_books(self, symbols: Sequence[str]) -> None:
        """Subscribe to the order books of these symbols, as many as trades leave capacity for."""
        wanted = [symbol for symbol in symbols if symbol not in self._rejected_books]
        wanted.sort(key=lambda symbol: symbol not in self._books)  # KIS blocks those who churn
        kept = dict.fromkeys(wanted[: MAX_SYMBOLS - len(self._symbols)])
        before, self._books = self._books, kept
        for gone in before.keys() - kept.keys():
            self._requests.put_nowait((StreamSubscription(BOOKS, gone), False))
        for symbol in kept.keys() - before.keys():
            self._requests.put_nowait((StreamSubscription(BOOKS, symbol), True))

    def subscribe_fills(
        self,
        on_fill: Callable[[FillNotice], None],
        on_live: Callable[[], None] | None = None,
        on_rejected: Callable[[str], None] | None = None,
    ) -> None:
        """Subscribe to notices of our orders; `on_live` is called when some may be missing.

        That is when KIS has acknowledged the subscription, and when a notice is unreadable.
        `on_rejected` is called with the reason when KIS sends no notices; call this method again
        to retry.
        """
        self._on_fill, self._on_fills_live = on_fill, on_live
        self._on_fills_rejected = on_rejected
        config = self._client.config
        if not config.hts_id:
            raise RefusedError("venues.kis.hts_id is not set; KIS needs it to send fill notices")
        service = PAPER_FILLS if config.paper else FILLS
        if self._fills is None:
            self._fills = StreamSubscription(service, config.hts_id.reveal())
            self._requests.put_nowait((self._fills, True))

    async def run(self) -> None:
        """Connect, subscribe and deliver until cancelled; reconnect after every drop."""
        failures = 0
        try:
            while True:
                began_ns = self._clock.monotonic_ns()
                retry_in_s = MAX_BACKOFF_S
                try:
                    await self._run_connection()
                except KeyInUseError:
                    log.error("KIS key in use elsewhere; retrying", retry_in_s=retry_in_s)
                except (QtsError, aiohttp.ClientError, TimeoutError, OSError) as error:
                    # Only a connection that lasted resets the backoff: KIS blocks reconnect loops.
                    lasted_s = (self._clock.monotonic_ns() - began_ns) / 1e9
                    failures = 0 if lasted_s > STABLE_AFTER_S else failures + 1
                    retry_in_s = min(2.0**failures, MAX_BACKOFF_S) * random.uniform(0.5, 1.0)  # noqa: S311 - spread, not secrecy
                    log.warning(
                        "KIS stream disconnected; reconnecting",
                        error=str(error) or type(error).__name__,
                        retry_in_s=round(retry_in_s, 1),
                    )
                self._reconnects.inc()
                await self._clock.sleep(retry_in_s)
        finally:
            _FILLS_REJECTED.set(0)

    async def _run_connection(self) -> None:
        self._approval = await self._client.approval_key()
        async with aiohttp.ClientSession(middlewares=[_REDIRECTS]) as session:
            address = self._client.config.stream + "/tryitout"
            async with session.ws_connect(address, autoping=True) as socket:
                self._requests = asyncio.Queue()
                if self._fills is not None:
                    self._requests.put_nowait((self._fills, True))
                for symbol in self._symbols:
                    self._requests.put_nowait((StreamSubscription(TRADES, symbol), True))
                for symbol in self._books:
                    self._requests.put_nowait((StreamSubscription(BOOKS, symbol), True))
                sender = asyncio.create_task(self._send_requests(socket))
                try:
                    await self._receive(socket)
                finally:
                    self._socket = None
                    self._registered.clear()
                    self._rejected_books.clear()
                    sender.cancel()
                    await asyncio.wait({sender})

    async def _send_requests(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            subscription, subscribe = await self._requests.get()
            await socket.send_str(request(self._approval, *subscription, subscribe=subscribe))

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._heard_ns = socket, self._clock.monotonic_ns()
        if self._on_live is not None:
            self._on_live()
        while True:
            message = await socket.receive(timeout=RECEIVE_TIMEOUT_S)
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise ConnectionError(f"closed by KIS ({message.type.name.lower()})")
            self._heard_ns = self._clock.monotonic_ns()
            try:
                await self._handle(socket, message.data)
            except MalformedFrameError as error:
                self.malformed_frames += 1
                if due := telemetry.log_every(60.0, "kis-frame"):
                    log.error("malformed KIS frame; skipped", error=str(error), **due)
                if message.data.split("|", 2)[1:2] in ([FILLS], [PAPER_FILLS]):
                    self._fills_missed()

    async def _handle(self, socket: aiohttp.ClientWebSocketResponse, text: str) -> None:
        parsed = parse(text, self._ciphers)
        if isinstance(parsed, Frame):
            self._deliver(parsed)
        elif parsed.header.tr_id == PING:
            await socket.send_str(text)
        else:
            self._acknowledged(parsed)

    def _deliver(self, frame: Frame) -> None:
        if frame.service == TRADES:
            for record in frame.records:
                self._on_quote(trade_quote(record))
        elif frame.service == BOOKS:
            self._deliver_books(frame)
        elif frame.service in (FILLS, PAPER_FILLS) and self._on_fill is not None:
            for record in frame.records:
                self._on_fill(fill_notice(record))

    def _deliver_books(self, frame: Frame) -> None:
        at = self._clock.now().timestamp()
        for record in frame.records:
            book = order_book(record, at)
            if book is not None and self._on_book is not None:
                self._on_book(book)

    def _fills_missed(self) -> None:
        if self._on_fills_live is not None:
            self._on_fills_live()

    def _acknowledged(self, control: ControlMessage) -> None:
        if (cipher := control.cipher) is not None:
            self._ciphers[control.header.tr_id] = cipher
        service, key = control.header.tr_id, control.header.tr_key
        if control.code in _ACCEPTED:
            self._accepted(service, key, control.code)
            return
        self.rejections[control.code] = self.rejections.get(control.code, 0) + 1
        text = control.body.msg1.strip() if control.body else ""
        if service not in (FILLS, PAPER_FILLS):
            log.warning("KIS rejected subscription", code=control.code, error=text)
        if control.code == _KEY_IN_USE:
            raise KeyInUseError(text)
        if control.code not in _PERMANENT:
            raise ConnectionError(f"{control.code} {text}")
        if service in (FILLS, PAPER_FILLS):
            self._reject_fills(f"{control.code} {text}")
        elif service == BOOKS:
            self._books.pop(key, None)
            self._rejected_books.add(key)
        else:
            self._symbols.pop(key, None)
            self._registered.pop(key, None)

    def _accepted(self, service: str, key: str, code: str) -> None:
        if service in (FILLS, PAPER_FILLS):
            self.fills_rejected = ""
            _FILLS_REJECTED.set(0)
            self._fills_missed()
        elif service == TRADES and key in self._symbols and code in _SUBSCRIBED:
            self._registered.setdefault(key, self._clock.monotonic_ns() / 1e9)

    def _reject_fills(self, reason: str) -> None:
        """Keep the stream for quotes: KIS closes a connection that asks with a wrong id."""
        self._fills = None
        if not self.fills_rejected:
            log.error("KIS rejected the subscription to fill notices", reason=reason)
        self.fills_rejected = reason
        _FILLS_REJECTED.set(1)
        if self._on_fills_rejected is not None:
            self._on_fills_rejected(reason)


class KeyInUseError(Exception):
    """Another connection uses the same key."""


SCAN_S = 30.0
NO_INDICES = "a paper key has no index prices"


def kis_limits(config: KisConfig, *, multi: bool) -> VenueLimits:
    """Return what KIS allows the key for quotes; `multi`: thirty symbols per request, if it can."""
    return VenueLimits(
        rates=config.key_limits,
        per_call=symbols_per_call(config, multi=multi),
        scan_s=SCAN_S,
        streamed=KisStream.capacity,
        no_indices=NO_INDICES if config.paper else "",
        shares_key=True,
    )


def kis_market_data(
    client: KisClient,
    calendar: Calendar,
    set_day: Callable[[date, bool], None] | None,
    open_stream: OpenStream,
    *,
    multi: bool,
) -> MarketData:
    """Return the market data of a connected client; `set_day` takes the trading days of KIS."""
    config = client.config
    quotes = KisQuotes(client, multi=multi)
    secrets = (config.app_key, config.app_secret, config.account, config.hts_id)
    return MarketData(
        source=quotes,
        limiter=client.limiter,
        limits=kis_limits(config, multi=multi),
        market=Market.KRX,
        mode="PAPER" if config.paper else "PROD" if config.url is None else "SIMULATION",
        calendar=calendar,
        secrets=tuple(filter(None, secrets)),
        open_stream=open_stream,
        indices=quotes,
        trading_days=None
        if config.paper or set_day is None
        else PublishedDays(quotes.trading_days, set_day),
    )
