"""The feed of another process: its ticks arrive over NATS, in the place of a `Feed`.

    frame ─▶ number in order ─▶ callbacks of the run
         └─▶ gap: counted, and healed with the newest tick of each symbol that it may have changed
    no frame and no heartbeat for SILENT_S ─▶ prices age; another publisher is followed

One publisher is followed at a time. A second feed of the venue is a spare: it is ignored while the
first one shows signs of life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from qts import telemetry
from qts.domain import Clock
from qts.feed import FeedCallbacks, FeedStatus, PollerStatus
from qts.outbox import nats_errors
from qts.roles.connection import RoleConnection, encode, raise_if_cancelled
from qts.roles.feed_publisher import (
    HEARTBEAT_INTERVAL_S,
    FeedFrame,
    FeedHeartbeat,
    NewestRequest,
    WatchRequest,
    decode_feed,
    feed_subject,
    newest_subject,
    watch_subject,
)
from qts.venues import Calendar, RateLimiterStatus

if TYPE_CHECKING:
    from nats.aio.msg import Msg

SILENT_S = 2.0
HEAL_TIMEOUT_S = 1.0
SILENT = "no ticks: the feed role shows no sign of life"

log = telemetry.logger("roles")


class Gap(NamedTuple):
    """Frames that did not arrive: all after `after` and before `before`."""

    after: int
    before: int

    @property
    def frames(self) -> int:
        return self.before - self.after - 1


class FrameNumbers:
    """Numbers of the frames of one publisher at a time, in the order in which they arrive."""

    def __init__(self) -> None:
        self.publisher = ""
        self.last = 0
        self.heal_after: int | None = None  # ticks of frames after it may be missing,
        self._heal_until = 0  # up to this one

    def follow(self, publisher: str, number: int) -> None:
        """Begin with a publisher whose frames up to `number` were not received."""
        self.publisher = publisher
        self.last = self._heal_until = number
        self.heal_after = 0

    def frame(self, number: int) -> Gap | None:
        """Take the number of a frame; return the gap in front of it. An old one has none."""
        gap = self._missing(number)
        self.last = max(self.last, number)
        return gap

    def is_old(self, number: int) -> bool:
        """Return whether a frame came before: twice, or after a later one."""
        return number <= self.last

    def heartbeat(self, number: int) -> Gap | None:
        """Take the number of the last frame that was sent; return the gap up to it."""
        gap = self._missing(number + 1)
        self.last = max(self.last, number)
        return gap

    def healed(self, number: int) -> bool:
        """Take an answer that is complete up to `number`; return whether it closes all gaps."""
        if self.heal_after is None or number < self._heal_until:
            return False
        self.heal_after = None
        return True

    def _missing(self, number: int) -> Gap | None:
        if number <= self.last + 1:
            return None
        if self.heal_after is None:
            self.heal_after = self.last
        self._heal_until = number - 1
        return Gap(self.last, number)


class RemoteFeed:
    """Feed of one venue on one event loop; `calendar` is None for a market that is always open."""

    def __init__(
        self,
        connection: RoleConnection,
        venue: str,
        calendar: Calendar | None,
        callbacks: FeedCallbacks,
        clock: Clock,
    ) -> None:
        self.calendar = calendar
        self.shares_key = self.is_recorded = False  # the feed role has the key, and records
        self._connection = connection
        self._counts = connection.status
        self._venue = venue
        self._callbacks = callbacks
        self._clock = clock
        self._numbers = FrameNumbers()
        self._heard_ns = clock.monotonic_ns()
        self._applied: dict[str, int] = {}  # number of the frame of the last tick, by symbol
        self._bases: dict[str, float] = {}
        self._confirmed_ns: dict[str, int] = {}  # by symbol that is watched
        self._watch: WatchRequest | None = None
        self._status: FeedStatus | None = None
        self._heal = asyncio.Event()

    # --- as a Feed ------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Return whether the market trades now: as the feed says, or the calendar without it."""
        if self._status is not None and not self.is_silent:
            return self._status.poller.open
        return self.calendar is None or self.calendar.current(self._clock.now()) is not None

    @property
    def is_silent(self) -> bool:
        """Return whether the feed shows no sign of life."""
        return self._clock.monotonic_ns() - self._heard_ns > SILENT_S * 1e9

    def watch(self, symbols: Sequence[str], on_order: Collection[str] = ()) -> None:
        """Have the feed price these symbols first; the request is repeated with each heartbeat."""
        now_ns = self._clock.monotonic_ns()
        known = self._confirmed_ns
        self._confirmed_ns = {each: known.get(each, now_ns) for each in symbols}
        self._watch = WatchRequest(tuple(symbols), tuple(on_order))

    def price_age_s(self, symbol: str) -> float | None:
        """Return the seconds since the price of a watched symbol was last confirmed.

        None outside the trading session and for a symbol that is not watched. It grows while the
        feed is silent. May be called from any thread.
        """
        at_ns = self._confirmed_ns.get(symbol)
        if at_ns is None or not self.is_open:
            return None
        return (self._clock.monotonic_ns() - at_ns) / 1e9

    def base_price(self, symbol: str) -> float:
        """Return the price that the day's limits are computed from; 0 where it is not known."""
        return self._bases.get(symbol, 0.0)

    def status(self) -> FeedStatus:
        """Return the figures of the last heartbeat; a feed that is silent streams nothing."""
        last = self._status or NO_FEED_STATUS
        if not self.is_silent and self._status is not None:
            return last
        return msgspec.structs.replace(last, streaming=False, plan=SILENT)

    async def run(self, active: asyncio.Event | None = None) -> None:  # noqa: ARG002
        """Take ticks until cancelled; a standby takes all of them too."""
        client = self._connection.client
        subscription = await client.subscribe(feed_subject(self._venue), cb=self._on_message)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._heal_gaps())
                group.create_task(self._send_watch())
        finally:
            try:
                await subscription.unsubscribe()
            except nats_errors() as error:
                log.debug("unsubscribed late", error=repr(error))

    # --- frames ---------------------------------------------------------------------------------

    async def _on_message(self, message: Msg) -> None:
        try:
            found = decode_feed(message.data)
        except msgspec.MsgspecError:
            self._counts.refused += 1
            return
        self.take(found)

    def take(self, message: FeedFrame | FeedHeartbeat) -> None:
        """Take a frame or a heartbeat, in the order of arrival."""
        if not self._follows(message):
            return
        self._heard_ns = self._clock.monotonic_ns()
        if isinstance(message, FeedHeartbeat):
            gap = self._numbers.heartbeat(message.number)
            self._confirm(message)
        elif self._numbers.is_old(message.number):
            self._counts.duplicates += 1
            return
        else:
            gap = self._numbers.frame(message.number)
        if gap is not None:
            self._counts.gaps += 1
            self._counts.frames_missed += gap.frames
            log.warning("frames of the feed missing", venue=self._venue, count=gap.frames)
        if self._numbers.heal_after is not None:
            self._counts.gaps_pending = 1
            self._heal.set()
        if isinstance(message, FeedFrame):
            self._counts.frames_received += 1
            self._deliver(message)

    def _follows(self, message: FeedFrame | FeedHeartbeat) -> bool:
        """Return whether the message is of the publisher to follow; choose one if there is none."""
        numbers = self._numbers
        if message.publisher == numbers.publisher:
            return True
        if numbers.publisher and not self.is_silent:
            return False
        if numbers.publisher:
            log.warning("another feed followed", venue=self._venue)
        before = message.number - isinstance(message, FeedFrame)
        numbers.follow(message.publisher, before)
        self._applied.clear()
        return True

    def _deliver(self, frame: FeedFrame) -> None:
        now_ns, confirmed = self._clock.monotonic_ns(), self._confirmed_ns
        on_tick, now = self._callbacks.on_tick, self._clock.now().timestamp()
        for row in frame.ticks:
            symbol = row.symbol
            self._applied[symbol] = row.number
            if row.base:
                self._bases[symbol] = row.base
            if symbol in confirmed:
                confirmed[symbol] = now_ns
            on_tick(row.tick(now))
        self._counts.ticks_received += len(frame.ticks)
        for book in frame.books:
            self._callbacks.on_book(book)
        for quote in frame.indices:
            self._callbacks.on_index(quote)
        for surge in frame.volumes:
            self._callbacks.on_volume(surge)

    def _confirm(self, beat: FeedHeartbeat) -> None:
        self._status = beat.status
        now_ns, confirmed = self._clock.monotonic_ns(), self._confirmed_ns
        for symbol, age_s in beat.ages.items():
            if symbol in confirmed:
                confirmed[symbol] = max(confirmed[symbol], now_ns - round(age_s * 1e9))

    # --- healing --------------------------------------------------------------------------------

    async def _heal_gaps(self) -> None:
        while True:
            raise_if_cancelled()
            await self._heal.wait()
            self._heal.clear()
            after, publisher = self._numbers.heal_after, self._numbers.publisher
            if after is None:
                continue
            subject = newest_subject(self._venue, publisher)
            try:
                reply = await self._connection.client.request(
                    subject, encode(NewestRequest(after)), timeout=HEAL_TIMEOUT_S
                )
                found = decode_feed(reply.data)
            except nats_errors():
                continue  # requested again after the next frame or heartbeat
            except msgspec.MsgspecError:
                self._counts.refused += 1
                continue
            if isinstance(found, FeedFrame):
                self.heal(found)

    def heal(self, newest: FeedFrame) -> None:
        """Take the newest ticks of a publisher: those that are newer than what arrived."""
        numbers = self._numbers
        if newest.publisher != numbers.publisher:
            return
        rows = [each for each in newest.ticks if each.number > self._applied.get(each.symbol, 0)]
        # A frame in flight brings its ticks itself, with their volume.
        missed = [each for each in rows if each.number <= numbers.last]
        if not numbers.healed(newest.number):
            return
        self._deliver(FeedFrame(newest.publisher, newest.number, tuple(missed)))
        self._counts.ticks_received -= len(missed)
        self._counts.ticks_healed += len(missed)
        self._counts.gaps_healed += 1
        self._counts.gaps_pending = 0

    async def _send_watch(self) -> None:
        """Repeat the request to watch; say so when the feed falls silent or is back."""
        was_silent = False
        while True:
            if self.is_silent != was_silent:
                was_silent = not was_silent
                what = "feed silent; prices age" if was_silent else "feed active again"
                log.warning(what, venue=self._venue)
            if self._watch is not None:
                await self._connection.publish(watch_subject(self._venue), encode(self._watch))
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)


NO_FEED_STATUS = FeedStatus(
    seconds=0.0,
    plan="",
    interval_s=0.0,
    lag_s=0.0,
    records=0,
    lost=0,
    skipped=0,
    recording="off",
    surges=0,
    symbols_known=0,
    streaming=False,
    watched="",
    poller=PollerStatus(0, 0, 0, 0.0, 0, 0, 0, 0, [], open=False),
    budget=RateLimiterStatus(0, 0, 0, 0, 0, 0, 0, 0),
)
