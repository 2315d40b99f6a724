"""KIS's WebSocket: one session per key, 41 registrations, kept alive and re-made for ever.

    connecting ── approved, subscribed ──▶ live ── dropped ──▶ waiting (1, 2, 4 … 60 s)
         ▲                                   └── key in use elsewhere ──▶ waiting 60 s │
         └─────────────────────────────────────────────────────────────────────────────┘

Nothing is repeated after a drop: whoever needs every fill looks them up when `on_live` is called.
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
    fill_of,
    parse,
    request,
    trade_quote,
)
from qts.venues.quote import Quote

REGISTRATIONS = 41
LONGEST_WAIT_S = 60.0
STEADY_S = 30.0
SILENCE_S = 60.0  # KIS pings about every ten seconds
_FINE = frozenset({"OPSP0000", "OPSP0001", "OPSP0002", "OPSP0003"})
_IN_USE = "OPSP8996"
_NEVER = frozenset({"OPSP0008", "OPSP8991", "OPSP8992"})  # too many, no such service, no such key

log = telemetry.logger("venues")


class StreamSubscription(NamedTuple):
    service: str
    key: str


class KisStream:
    """Live trades and fill notices. Methods are called on the loop that runs `run`."""

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
        self._wanted: dict[StreamSubscription, None] = {}
        self._secrets: dict[str, StreamCipher] = {}
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._approval = ""
        self._sent: asyncio.Queue[tuple[StreamSubscription, bool]] = asyncio.Queue()
        self.sessions = 0
        self.broken_frames = 0
        self.refusals: dict[str, int] = {}

    @property
    def free(self) -> int:
        """Registrations that are still to be had."""
        return REGISTRATIONS - len(self._wanted)

    @property
    def live(self) -> bool:
        return self._socket is not None

    def subscribe(self, symbol: str) -> None:
        self._register(StreamSubscription(TRADES, symbol))

    def unsubscribe(self, symbol: str) -> None:
        registration = StreamSubscription(TRADES, symbol)
        if registration in self._wanted:
            del self._wanted[registration]
            self._sent.put_nowait((registration, False))

    def subscribe_fills(
        self, on_fill: Callable[[FillNotice], None], on_live: Callable[[], None] | None = None
    ) -> None:
        """Notices of our own orders; `on_live` is called whenever some may have been missed.

        That is when KIS has acknowledged the registration, from when on they come, and when
        one of them could not be read.
        """
        self._on_fill, self._on_fills_live = on_fill, on_live
        config = self._client.config
        if not config.hts_id:
            raise RefusedError("venues.kis.hts_id is not set; KIS needs it to send fill notices")
        service = PAPER_FILLS if config.paper else FILLS
        self._register(StreamSubscription(service, config.hts_id.reveal()))

    async def run(self) -> None:
        """Until cancelled: connect, subscribe, deliver; again after every drop."""
        failures = 0
        while True:
            began_ns = self._clock.monotonic_ns()
            wait_s = LONGEST_WAIT_S
            try:
                await self._session()
            except KeyInUseError:
                log.error("another session uses this KIS key; trying again in a minute")
            except (QtsError, aiohttp.ClientError, TimeoutError, OSError) as error:
                log.warning("KIS stream lost", reason=str(error) or type(error).__name__)
                # Only a session that lasted starts afresh: KIS blocks who connects in a loop.
                lasted_s = (self._clock.monotonic_ns() - began_ns) / 1e9
                failures = 0 if lasted_s > STEADY_S else failures + 1
                wait_s = min(2.0**failures, LONGEST_WAIT_S) * random.uniform(0.5, 1.0)  # noqa: S311 - spread, not secrecy
            await self._clock.sleep(wait_s)

    def _register(self, registration: StreamSubscription) -> None:
        if registration in self._wanted:
            return
        if not self.free:
            raise RefusedError(
                f"KIS allows {REGISTRATIONS} registrations on a key, and all are taken; "
                f"unwatch a symbol first"
            )
        self._wanted[registration] = None
        self._sent.put_nowait((registration, True))

    async def _session(self) -> None:
        self._approval = await self._client.approval_key()
        async with aiohttp.ClientSession() as session:
            address = self._client.config.stream + "/tryitout"
            async with session.ws_connect(address, autoping=True) as socket:
                self._sent = asyncio.Queue()
                for registration in self._wanted:
                    self._sent.put_nowait((registration, True))
                speaking = asyncio.create_task(self._speak(socket))
                try:
                    await self._listen(socket)
                finally:
                    self._socket = None
                    speaking.cancel()
                    await asyncio.wait({speaking})

    async def _speak(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            registration, subscribe = await self._sent.get()
            await socket.send_str(request(self._approval, *registration, subscribe=subscribe))

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.sessions += 1
        if self._on_live is not None:
            self._on_live()
        while True:
            message = await socket.receive(timeout=SILENCE_S)
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise ConnectionError(f"closed by KIS ({message.type.name.lower()})")
            try:
                await self._take(socket, message.data)
            except MalformedFrameError as error:
                self.broken_frames += 1
                if due := telemetry.log_every(60.0, "kis-frame"):
                    log.error("a frame of KIS could not be read", reason=str(error), **due)
                if _names_fills(message.data):
                    self._fills_missed()

    async def _take(self, socket: aiohttp.ClientWebSocketResponse, text: str) -> None:
        found = parse(text, self._secrets)
        if isinstance(found, Frame):
            self._deliver(found)
        elif found.header.tr_id == PING:
            await socket.send_str(text)
        else:
            self._acknowledged(found)

    def _deliver(self, frame: Frame) -> None:
        if frame.service == TRADES:
            for record in frame.records:
                self._on_quote(trade_quote(record))
        elif frame.service in (FILLS, PAPER_FILLS) and self._on_fill is not None:
            for record in frame.records:
                self._on_fill(fill_of(record))

    def _fills_missed(self) -> None:
        if self._on_fills_live is not None:
            self._on_fills_live()

    def _acknowledged(self, control: ControlMessage) -> None:
        if (secret := control.cryptography) is not None:
            self._secrets[control.header.tr_id] = secret
        if control.code in _FINE:
            if control.header.tr_id in (FILLS, PAPER_FILLS):
                self._fills_missed()
            return
        self.refusals[control.code] = self.refusals.get(control.code, 0) + 1
        text = control.body.msg1.strip() if control.body else ""
        log.warning("KIS refused a registration", code=control.code, reason=text)
        if control.code == _IN_USE:
            raise KeyInUseError(text)
        if control.code not in _NEVER:
            raise ConnectionError(f"{control.code} {text}")
        self._wanted.pop(StreamSubscription(control.header.tr_id, control.header.tr_key), None)


def _names_fills(text: str) -> bool:
    return text.split("|", 2)[1:2] in ([FILLS], [PAPER_FILLS])


class KeyInUseError(Exception):
    """A second session on one key."""
