"""Ticks over a connection that loses them: every gap is seen, and healed with the newest ticks."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from qts.domain import ManualClock, OrderBook, Tick
from qts.feed import FeedCallbacks
from qts.roles.connection import encode
from qts.roles.feed_publisher import FeedFrame, FeedHeartbeat, FeedPublisher, decode_feed
from qts.roles.remote_feed import NO_FEED_STATUS, SILENT, FrameNumbers, Gap, RemoteFeed
from qts.venues import Calendar
from tests.pipeline.portfolios import NOW
from tests.roles.channel import Channel


class Market:
    """A publisher and a receiver, and what the receiver was given."""

    def __init__(self, *, calendar: Calendar | None = None) -> None:
        self.channel, self.clock = Channel(), ManualClock(NOW)
        self.publisher = FeedPublisher(self.channel.connection, "upbit")
        self.ticks: list[Tick] = []
        self.books: list[OrderBook] = []
        callbacks = FeedCallbacks(self.ticks.append, self.books.append)
        self.receiver = Channel()
        connection = self.receiver.connection
        self.feed = RemoteFeed(connection, "upbit", calendar, callbacks, self.clock)
        self.price = 0.0
        self.status = replace(NO_FEED_STATUS, poller=replace(NO_FEED_STATUS.poller, open=True))

    async def frame(self, *symbols: str) -> FeedFrame:
        for symbol in symbols:
            self.price += 1.0
            self.publisher.on_tick(Tick(symbol, self.price, at=self.price))
        await self.publisher.send_frame()
        frame = decode_feed(self.channel.sent.pop()[1])
        assert isinstance(frame, FeedFrame)
        return frame

    def beat(self, **ages: float) -> FeedHeartbeat:
        return FeedHeartbeat(self.publisher.id, self.publisher.number, self.status, ages)

    async def heal(self) -> None:
        """Answer the request that the receiver would send."""
        after = self.feed._numbers.heal_after
        if after is None:
            return
        replies: list[bytes] = []

        class Request:
            data = encode((after,))

            async def respond(self, data: bytes) -> None:
                replies.append(data)

        await self.publisher._on_newest(cast("Any", Request()))
        frame = decode_feed(replies[0])
        assert isinstance(frame, FeedFrame)
        self.feed.heal(frame)

    @property
    def newest(self) -> dict[str, float]:
        return {each.symbol: each.price for each in self.ticks}


async def test_ticks_arrive_whole_and_in_order() -> None:
    market = Market()
    tick = Tick("KRW-BTC", 91_000_000.5, 0.25, 91_000_000.0, 91_000_001.0, 12.5, 12.25)
    market.publisher.on_tick(tick)
    market.publisher._on_book(book := OrderBook("KRW-BTC", at=12.5))
    market.feed.take(await market.frame("KRW-ETH"))
    assert market.ticks == [tick, Tick("KRW-ETH", 1.0, at=1.0)]
    assert market.books == [book]


async def test_a_gap_is_counted_and_healed_with_the_newest_ticks() -> None:
    market = Market()
    market.feed.take(await market.frame("A", "B"))
    await market.heal()  # a publisher that is new is asked for all it has
    await market.frame("A")  # lost
    await market.frame("B")  # lost
    market.feed.take(await market.frame("C"))
    counts = market.receiver.status
    assert (counts.gaps, counts.frames_missed, counts.gaps_pending) == (1, 2, 1)
    await market.heal()
    assert market.newest == {"A": 3.0, "B": 4.0, "C": 5.0}
    assert (counts.ticks_healed, counts.gaps_healed, counts.gaps_pending) == (2, 2, 0)


async def test_a_heartbeat_shows_a_gap_at_the_end() -> None:
    market = Market()
    market.feed.take(await market.frame("A"))
    await market.heal()
    await market.frame("A")  # lost, and nothing follows
    market.feed.take(market.beat())
    await market.heal()
    assert market.newest == {"A": 2.0}


async def test_a_second_feed_is_a_spare_until_the_first_is_silent() -> None:
    market, spare = Market(), Market()
    market.feed.take(await market.frame("A"))
    market.feed.take(await spare.frame("A", "A"))
    assert len(market.ticks) == 1
    await market.clock.advance(3)
    assert market.feed.is_silent
    assert market.feed.status().plan == SILENT
    market.feed.take(await spare.frame("A"))
    assert len(market.ticks) == 2
    assert not market.feed.is_silent


async def test_prices_age_while_the_feed_is_silent() -> None:
    market = Market()
    market.feed.watch(["A"])
    await market.clock.advance(4)
    assert market.feed.price_age_s("A") == 4.0
    assert market.feed.price_age_s("B") is None
    market.feed.take(market.beat(A=1.5))
    assert market.feed.price_age_s("A") == 1.5
    await market.clock.advance(2)
    assert market.feed.price_age_s("A") == 3.5
    market.feed.take(await market.frame("A"))
    assert market.feed.price_age_s("A") == 0.0


async def test_a_tick_of_a_clock_that_is_ahead_is_not_of_the_future() -> None:
    market = Market()
    now = market.clock.now().timestamp()
    market.publisher.on_tick(Tick("A", 1.0, at=now + 5, venue_at=now))
    market.publisher.on_tick(Tick("B", 1.0, at=now - 5))
    market.feed.take(await market.frame())
    assert [each.at for each in market.ticks] == [now, now - 5]


async def test_the_market_is_open_when_the_feed_says_so() -> None:
    market = Market()
    market.feed.watch(["A"])
    market.status = NO_FEED_STATUS
    market.feed.take(market.beat())
    assert (market.feed.is_open, market.feed.price_age_s("A")) == (False, None)
    await market.clock.advance(3)  # then the calendar
    assert market.feed.is_open


async def test_a_publisher_without_a_connection_buffers_nothing() -> None:
    market = Market()
    market.channel.is_up = False
    market.publisher.on_tick(Tick("A", 1.0))
    await market.publisher.send_frame()
    assert market.channel.status.frames_sent == 0
    market.channel.is_up = True
    market.feed.take(await market.frame("B"))
    await market.heal()
    assert market.newest == {"B": 1.0, "A": 1.0}


# What becomes of each frame, and whether the receiver heals after it.
_FATES = st.lists(
    st.tuples(
        st.lists(st.sampled_from("ABC"), min_size=1, max_size=3),
        st.sampled_from(("arrives", "is lost", "comes twice")),
        st.sampled_from(("nothing", "heartbeat", "heal")),
    ),
    max_size=40,
)


@settings(max_examples=300)
@given(_FATES)
def test_whatever_is_lost_the_newest_ticks_arrive(
    fates: list[tuple[list[str], str, str]],
) -> None:
    async def play() -> None:
        market, lost, expected = Market(), 0, dict[str, float]()
        market.feed.take(await market.frame("A"))
        for symbols, fate, then in fates:
            frame = await market.frame(*symbols)
            if fate == "is lost":
                lost += 1
            else:
                market.feed.take(frame)
                if fate == "comes twice":
                    market.feed.take(frame)
            if then == "heartbeat":
                market.feed.take(market.beat())
            elif then == "heal":
                await market.heal()
        market.feed.take(market.beat())
        await market.heal()
        counts = market.receiver.status
        assert counts.frames_missed == lost
        assert counts.frames_received == market.publisher.number - lost
        assert counts.gaps_pending == 0
        for row in market.publisher._newest.values():
            expected[row.symbol] = row.price
        assert market.newest == expected
        by_symbol: dict[str, list[float]] = {}
        for each in market.ticks:
            by_symbol.setdefault(each.symbol, []).append(each.price)
        assert all(each == sorted(set(each)) for each in by_symbol.values())

    asyncio.run(play())


@given(st.lists(st.integers(1, 30), unique=True).map(sorted))
def test_numbers_are_missed_or_taken(arrived: list[int]) -> None:
    numbers = FrameNumbers()
    numbers.follow("a", 0)
    gaps = [gap for each in arrived if (gap := numbers.frame(each)) is not None]
    missed = sum(each.frames for each in gaps)
    assert missed == (arrived[-1] - len(arrived) if arrived else 0)
    assert numbers.last == (arrived[-1] if arrived else 0)


def test_an_answer_heals_only_the_gaps_that_it_covers() -> None:
    numbers = FrameNumbers()
    numbers.follow("a", 4)
    assert numbers.heal_after == 0
    assert not numbers.healed(3)
    assert numbers.healed(4)
    assert numbers.frame(8) == Gap(4, 8)
    assert numbers.heal_after == 4
    assert numbers.frame(12) == Gap(8, 12)
    assert not numbers.healed(7)
    assert numbers.heal_after == 4
    assert numbers.healed(11)
    assert not numbers.healed(11)
    assert numbers.is_old(12)
    assert not numbers.is_old(13)
