"""The feed's side of the link: ticks out in numbered frames, the newest of each symbol on request.

tick ─▶ frame, at most one in a millisecond ─▶ NATS
heartbeat, every half second: number of the last frame, ages of watched prices, status
NewestRequest(after) ─▶ newest tick of each symbol in a frame after that number
WatchRequest ─▶ Feed.watch
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from qts import telemetry
from qts.domain import OrderBook, Tick
from qts.feed import FeedCallbacks, FeedStatus, Surge
from qts.outbox import nats_errors
from qts.roles.connection import RoleConnection, encode
from qts.venues import IndexQuote

if TYPE_CHECKING:
    from nats.aio.msg import Msg

FRAME_INTERVAL_S = 0.001
HEARTBEAT_INTERVAL_S = 0.5

log = telemetry.logger("roles")


class TickRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tick, the base price of its symbol, and the number of the frame that it was sent in."""

    symbol: str
    price: float
    volume: float
    bid: float
    ask: float
    at: float
    venue_at: float
    base: float
    number: int = 0

    @classmethod
    def of(cls, tick: Tick, base: float, number: int) -> TickRow:
        prices = tick.price, tick.volume, tick.bid, tick.ask
        return cls(tick.symbol, *prices, tick.at, tick.venue_at, base, number)

    def tick(self, now: float) -> Tick:
        """Return the tick as it is received now; a clock that is ahead makes none of the future."""
        prices = self.price, self.volume, self.bid, self.ask
        return Tick(self.symbol, *prices, min(self.at, now), self.venue_at)


class FeedFrame(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """What a feed delivered within a millisecond; frames of a publisher are numbered from 1.

    As the answer to a NewestRequest: the newest ticks, of all frames up to `number`.
    """

    publisher: str
    number: int
    ticks: tuple[TickRow, ...] = ()
    books: tuple[OrderBook, ...] = ()
    indices: tuple[IndexQuote, ...] = ()
    volumes: tuple[Surge, ...] = ()


class FeedHeartbeat(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    """Sign of life of a feed: the number of its last frame, and the ages of watched prices."""

    publisher: str
    number: int
    status: FeedStatus
    ages: dict[str, float]


class WatchRequest(msgspec.Struct, frozen=True, array_like=True):
    """Symbols that are held or on order, most important first."""

    symbols: tuple[str, ...]
    on_order: tuple[str, ...]


class NewestRequest(msgspec.Struct, frozen=True, array_like=True):
    """Request for the newest tick of each symbol that has one in a frame after this number."""

    after: int


_feed: msgspec.msgpack.Decoder[FeedFrame | FeedHeartbeat] = msgspec.msgpack.Decoder(
    FeedFrame | FeedHeartbeat
)
decode_feed = _feed.decode
decode_watch = msgspec.msgpack.Decoder(WatchRequest).decode
decode_newest = msgspec.msgpack.Decoder(NewestRequest).decode


class PublishedFeed(Protocol):
    """What the publisher needs of the feed."""

    def watch(self, symbols: Sequence[str], on_order: Collection[str]) -> None: ...
    def price_age_s(self, symbol: str) -> float | None: ...
    def base_price(self, symbol: str) -> float: ...
    def status(self) -> FeedStatus: ...


def feed_subject(venue: str) -> str:
    return f"qts.feed.{venue}"


def watch_subject(venue: str) -> str:
    return f"qts.watch.{venue}"


def newest_subject(venue: str, publisher: str) -> str:
    return f"qts.newest.{venue}.{publisher}"


class FeedPublisher:
    """Publisher of one venue's feed, on its event loop: `callbacks`, then `run` with the feed."""

    def __init__(self, connection: RoleConnection, venue: str) -> None:
        self.id = uuid.uuid4().hex
        self.number = 0  # of the last frame
        self._connection = connection
        self._venue = venue
        self._base_price: Callable[[str], float] = lambda _symbol: 0.0
        self._newest: dict[str, TickRow] = {}
        self._ticks: list[TickRow] = []
        self._books: dict[str, OrderBook] = {}
        self._indices: list[IndexQuote] = []
        self._volumes: list[Surge] = []
        self._watched: tuple[str, ...] = ()
        self._due = asyncio.Event()

    @property
    def callbacks(self) -> FeedCallbacks:
        """What the feed calls."""
        return FeedCallbacks(self.on_tick, self._on_book, self._on_index, self._on_volume)

    def on_tick(self, tick: Tick) -> None:
        row = TickRow.of(tick, self._base_price(tick.symbol), self.number + 1)
        self._newest[tick.symbol] = row
        self._ticks.append(row)
        self._due.set()

    def _on_book(self, book: OrderBook) -> None:
        self._books[book.symbol] = book
        self._due.set()

    def _on_index(self, quote: IndexQuote) -> None:
        self._indices.append(quote)
        self._due.set()

    def _on_volume(self, surge: Surge) -> None:
        self._volumes.append(surge)
        self._due.set()

    async def run(self, feed: PublishedFeed) -> None:
        """Publish until cancelled."""
        self._base_price = feed.base_price

        async def on_watch(message: Msg) -> None:
            request = decode_watch(message.data)
            if request.symbols != self._watched:
                self._watched = request.symbols
                log.info("watched symbols changed", count=len(request.symbols))
            feed.watch(request.symbols, request.on_order)

        client = self._connection.client
        subscriptions = [
            await client.subscribe(watch_subject(self._venue), cb=on_watch),
            await client.subscribe(newest_subject(self._venue, self.id), cb=self._on_newest),
        ]
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send_frames())
                group.create_task(self._send_heartbeats(feed))
        finally:
            for each in subscriptions:
                try:
                    await each.unsubscribe()
                except nats_errors():
                    continue

    async def _send_frames(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            await self.send_frame()
            await asyncio.sleep(FRAME_INTERVAL_S)

    async def send_frame(self) -> None:
        """Send what has come since the last frame; one that is lost leaves its number out."""
        status = self._connection.status
        self.number += 1
        frame = FeedFrame(
            self.id,
            self.number,
            tuple(self._ticks),
            tuple(self._books.values()),
            tuple(self._indices),
            tuple(self._volumes),
        )
        self._ticks, self._books, self._indices, self._volumes = [], {}, [], []
        if await self._connection.publish(feed_subject(self._venue), encode(frame)):
            status.frames_sent += 1
            status.ticks_sent += len(frame.ticks)

    async def _send_heartbeats(self, feed: PublishedFeed) -> None:
        while True:
            ages = {each: feed.price_age_s(each) for each in self._watched}
            known = {symbol: age for symbol, age in ages.items() if age is not None}
            beat = FeedHeartbeat(self.id, self.number, feed.status(), known)
            await self._connection.publish(feed_subject(self._venue), encode(beat))
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)

    async def _on_newest(self, message: Msg) -> None:
        after = decode_newest(message.data).after
        rows = tuple(each for each in self._newest.values() if after < each.number <= self.number)
        try:
            await message.respond(encode(FeedFrame(self.id, self.number, rows)))
        except nats_errors() as error:  # the receiver requests it again
            log.debug("newest ticks not sent", error=repr(error))
