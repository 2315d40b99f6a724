"""Stream of KIS over a WebSocket: one connection per key, 41 subscriptions, reconnects forever.

    connecting ── approved, subscribed ──▶ live ── dropped ──▶ backoff (1, 2, 4 … 60 s)
         ▲                                   └── key in use elsewhere ──▶ backoff 60 s │
         └─────────────────────────────────────────────────────────────────────────────┘

KIS repeats nothing after a drop: a consumer that needs every fill queries them in `on_live`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

import aiohttp

from qts import telemetry
from qts.domain import Clock, QtsError, RefusedError
from qts.venues.kis.client import KisClient
from qts.venues.kis.frames import (
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
    parse,
    request,
    trade_quote,
)
from qts.venues.quote import Quote

MAX_SUBSCRIPTIONS = 41
MAX_BACKOFF_S = 60.0
STABLE_AFTER_S = 30.0
RECEIVE_TIMEOUT_S = 60.0  # KIS pings about every ten seconds
_ACCEPTED = frozenset({"OPSP0000", "OPSP0001", "OPSP0002", "OPSP0003"})
_KEY_IN_USE = "OPSP8996"
_PERMANENT = frozenset({"OPSP0008", "OPSP8991", "OPSP8992"})  # too many, unknown service or key

log = telemetry.logger("venues")


class StreamSubscription(NamedTuple):
    service: str
    key: str


class KisStream:
    """Live trades and fill notices of one key. Call all methods on the event loop of `run`."""

    def __init__(
        self,
        client: KisClient,
        clock: Clock,
        on_quote: Callable[[Quote], None],
        on_live: Callable[[], None] | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._on_quote = on_quote
        self._on_fill: Callable[[FillNotice], None] | None = None
        self._on_live = on_live
        self._on_fills_live: Callable[[], None] | None = None
        self._subscriptions: dict[StreamSubscription, None] = {}
        self._ciphers: dict[str, StreamCipher] = {}
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._approval = ""
        self._requests: asyncio.Queue[tuple[StreamSubscription, bool]] = asyncio.Queue()
        self.malformed_frames = 0
        self.rejections: dict[str, int] = {}

    @property
    def free(self) -> int:
        """Subscriptions left on this key."""
        return MAX_SUBSCRIPTIONS - len(self._subscriptions)

    @property
    def live(self) -> bool:
        return self._socket is not None

    def subscribe(self, symbol: str) -> None:
        self._add(StreamSubscription(TRADES, symbol))

    def unsubscribe(self, symbol: str) -> None:
        subscription = StreamSubscription(TRADES, symbol)
        if subscription in self._subscriptions:
            del self._subscriptions[subscription]
            self._requests.put_nowait((subscription, False))

    def subscribe_fills(
        self, on_fill: Callable[[FillNotice], None], on_live: Callable[[], None] | None = None
    ) -> None:
        """Subscribe to notices of our orders; `on_live` is called when some may be missing.

        That is when KIS has acknowledged the subscription, and when a notice is unreadable.
        """
        self._on_fill, self._on_fills_live = on_fill, on_live
        config = self._client.config
        if not config.hts_id:
            raise RefusedError("venues.kis.hts_id is not set; KIS needs it to send fill notices")
        service = PAPER_FILLS if config.paper else FILLS
        self._add(StreamSubscription(service, config.hts_id.reveal()))

    async def run(self) -> None:
        """Connect, subscribe and deliver until cancelled; reconnect after every drop."""
        failures = 0
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
            await self._clock.sleep(retry_in_s)

    def _add(self, subscription: StreamSubscription) -> None:
        if subscription in self._subscriptions:
            return
        if not self.free:
            raise RefusedError(
                f"KIS allows {MAX_SUBSCRIPTIONS} subscriptions per key, and all are in use; "
                f"unsubscribe a symbol first"
            )
        self._subscriptions[subscription] = None
        self._requests.put_nowait((subscription, True))

    async def _run_connection(self) -> None:
        self._approval = await self._client.approval_key()
        async with aiohttp.ClientSession() as session:
            address = self._client.config.stream + "/tryitout"
            async with session.ws_connect(address, autoping=True) as socket:
                self._requests = asyncio.Queue()
                for subscription in self._subscriptions:
                    self._requests.put_nowait((subscription, True))
                sender = asyncio.create_task(self._send_requests(socket))
                try:
                    await self._receive(socket)
                finally:
                    self._socket = None
                    sender.cancel()
                    await asyncio.wait({sender})

    async def _send_requests(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            subscription, subscribe = await self._requests.get()
            await socket.send_str(request(self._approval, *subscription, subscribe=subscribe))

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        if self._on_live is not None:
            self._on_live()
        while True:
            message = await socket.receive(timeout=RECEIVE_TIMEOUT_S)
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise ConnectionError(f"closed by KIS ({message.type.name.lower()})")
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
        elif frame.service in (FILLS, PAPER_FILLS) and self._on_fill is not None:
            for record in frame.records:
                self._on_fill(fill_notice(record))

    def _fills_missed(self) -> None:
        if self._on_fills_live is not None:
            self._on_fills_live()

    def _acknowledged(self, control: ControlMessage) -> None:
        if (cipher := control.cipher) is not None:
            self._ciphers[control.header.tr_id] = cipher
        if control.code in _ACCEPTED:
            if control.header.tr_id in (FILLS, PAPER_FILLS):
                self._fills_missed()
            return
        self.rejections[control.code] = self.rejections.get(control.code, 0) + 1
        text = control.body.msg1.strip() if control.body else ""
        log.warning("KIS rejected subscription", code=control.code, error=text)
        if control.code == _KEY_IN_USE:
            raise KeyInUseError(text)
        if control.code not in _PERMANENT:
            raise ConnectionError(f"{control.code} {text}")
        rejected = StreamSubscription(control.header.tr_id, control.header.tr_key)
        self._subscriptions.pop(rejected, None)


class KeyInUseError(Exception):
    """Another connection uses the same key."""
