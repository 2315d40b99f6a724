"""The poller: the scan, bursts, refusals, the calendar and the whole day's quota."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from datetime import timedelta

import pytest

from qts.domain import QtsError, RefusedError, UnreachableError
from qts.feed import FeedConfig
from qts.venues import Quote, RateLimitConfig, RateLimitedError, RequestPriority, VenueRejectedError
from tests.feed.market import MONDAY_OPEN, Ticks, at_random, codes, poller_on, running
from tests.venues.manual_limiter import worst_window


async def test_every_symbol_is_seen_once_a_scan() -> None:
    async with poller_on(2500) as rig, running(rig):
        await rig.clock.advance(31.0)
        first = Counter(record.snapshot.context.symbol for record in rig.records[:2500])
        assert set(first) == set(codes(2500))
        assert set(first.values()) == {1}
        await rig.clock.advance(90.0)
        gaps = [b - a for a, b in itertools.pairwise(rig.market.times("001234"))]
        assert all(abs(gap - 30.0) < 1.5 for gap in gaps)
        assert 28.0 <= rig.poller.status().last_scan_s <= 30.5


async def test_the_scan_is_spread_evenly() -> None:
    async with poller_on(2500) as rig, running(rig):
        await rig.clock.advance(60.0)
        times = [round(at * 1e9) for at, *_ in rig.market.calls if at > 5]
        assert worst_window(times, 10**9) <= 4  # 2.8 a second


async def test_a_refused_poll_is_retried_and_none_is_lost() -> None:
    async with poller_on(900) as rig, running(rig):
        rig.market.fail = at_random(0.1, lambda: RateLimitedError("EGW00201"))
        await rig.clock.advance(125.0)
        seen = Counter(record.snapshot.context.symbol for record in rig.records)
        assert set(seen) == set(codes(900))
        assert min(seen.values()) >= 4
        assert rig.poller.status().refused > 0


async def test_a_lost_reply_is_retried() -> None:
    async with poller_on(90) as rig, running(rig):
        rig.market.fail = at_random(0.3, lambda: UnreachableError("cut"))
        await rig.clock.advance(125.0)
        seen = Counter(record.snapshot.context.symbol for record in rig.records)
        assert min(seen[symbol] for symbol in codes(90)) >= 4


async def test_a_batch_that_always_fails_does_not_stop_the_others() -> None:
    def fail(symbols: object) -> QtsError | None:
        return UnreachableError("always") if "000000" in symbols else None  # type: ignore[operator]

    async with poller_on(300) as rig, running(rig):
        rig.market.fail = fail
        await rig.clock.advance(95.0)
        assert len(rig.market.times("000299")) >= 3
        assert "000000" not in {record.snapshot.context.symbol for record in rig.records}


async def test_a_rejected_batch_waits_for_its_turn() -> None:
    async with poller_on(60) as rig, running(rig):
        rig.market.fail = lambda _symbols: VenueRejectedError("no such symbol", "OPSQ2001")
        await rig.clock.advance(61.0)
        assert len(rig.market.times("000000")) in (2, 3)


async def test_no_symbol_is_requested_twice_at_once() -> None:
    config = FeedConfig(interval_s=1.0, stream=False)
    async with poller_on(60, config=config) as rig, running(rig):
        rig.market.latency_s = 3.0
        await rig.clock.advance(30.0)
        assert rig.market.max_in_flight == 1
        assert len(rig.market.times("000000")) >= 8


async def test_a_jump_starts_a_burst_polled_once_a_second_while_the_scan_continues() -> None:
    async with poller_on(2500) as rig, running(rig):
        await rig.clock.advance(40.0)
        jumped_at = rig.clock.monotonic_ns() / 1e9
        rig.market.prices["001234"] = 103.5
        await rig.clock.advance(35.0)
        polls = rig.market.times("001234", RequestPriority.BURST)
        assert polls[0] - jumped_at <= 30.0 + 2.0
        for n in range(330):  # it keeps moving, so only time ends it
            rig.market.prices["001234"] = 103.5 * (1.02 if n % 20 < 10 else 1.0)
            await rig.clock.advance(1.0)
        polls = rig.market.times("001234", RequestPriority.BURST)
        gaps = sorted(b - a for a, b in itertools.pairwise(polls))
        assert abs(gaps[len(gaps) * 95 // 100] - 1.0) < 0.1
        assert 290 <= polls[-1] - polls[0] <= 301
        scans = [b - a for a, b in itertools.pairwise(rig.market.times("000500"))]
        assert all(gap < 32.0 for gap in scans)
        burst = [r for r in rig.records if r.snapshot.observation.state.polling_mode == "burst"]
        assert {record.snapshot.meta.loop_interval_ms for record in burst} == {1000.0}


async def test_of_fifteen_jumps_the_ten_largest_are_polled() -> None:
    async with poller_on(300) as rig, running(rig):
        await rig.clock.advance(40.0)
        for n in range(15):
            rig.market.prices[f"{n:06}"] = 104.0 + n
        await rig.clock.advance(33.0)
        assert set(rig.ingest.bursts.symbols) == set(codes(15)[5:])


async def test_a_poll_in_the_middle_of_a_jump_does_not_let_a_smaller_one_win() -> None:
    """The tenth, of 5 %, is first polled halfway; the eleventh, of 4 %, in one step."""
    config = FeedConfig(stream=False)
    async with poller_on(3000, config=config) as rig, running(rig):
        await rig.clock.advance(40.0)
        whole = [f"{n:06}" for n in range(9)]
        for symbol in whole:
            rig.market.prices[symbol] = 108.0
        rig.market.prices["000009"] = 102.6  # then 105
        rig.market.prices["000010"] = 104.0
        asked = len(rig.market.times("000009"))
        while len(rig.market.times("000009")) == asked:
            await rig.clock.advance(0.05)
        await rig.clock.advance(0.05)
        rig.market.prices["000009"] = 105.0
        await rig.clock.advance(2.0)
        assert set(rig.ingest.bursts.symbols) == {*whole, "000010"}  # so far
        await rig.clock.advance(31.0)
        assert set(rig.ingest.bursts.symbols) == {*whole, "000009"}


async def test_bursts_cost_one_request_a_second_where_a_call_takes_many() -> None:
    async with poller_on(300) as rig, running(rig):
        await rig.clock.advance(40.0)
        for n in range(10):
            rig.market.prices[f"{n:06}"] = 105.0
        await rig.clock.advance(33.0)
        before = len(rig.market.calls)
        await rig.clock.advance(10.0)
        bursts = [call for call in rig.market.calls[before:] if call[1] is RequestPriority.BURST]
        assert len(bursts) == 10
        assert all(len(symbols) == 10 for _, _, symbols in bursts)


async def test_a_live_stream_carries_the_bursts_and_polls_return_when_it_is_cut() -> None:
    async with poller_on(300) as rig:
        ticks = Ticks(rig.clock)
        rig.poller.attach_stream(ticks)
        async with running(rig):
            await rig.clock.advance(40.0)
            rig.market.prices["000007"] = 110.0
            await rig.clock.advance(33.0)
            assert ticks.symbols == {"000007"}
            assert not rig.market.times("000007", RequestPriority.BURST)
            rig.poller.on_quote(Quote("000007", 111.0, 5.0, 0.0, 0.0, {}, "kis_ws"))
            last = rig.records[-1].snapshot
            assert (last.meta.tick_source, last.observation.state.polling_mode) == (
                "kis_ws",
                "burst",
            )
            ticks.cut()
            await rig.clock.advance(3.0)
            assert len(rig.market.times("000007", RequestPriority.BURST)) >= 2


async def test_a_key_too_slow_for_bursts_has_them_while_the_stream_is_live() -> None:
    slow = RateLimitConfig(per_second=1)
    async with poller_on(20, slow, per_call=1) as rig:
        ticks = Ticks(rig.clock)
        rig.poller.attach_stream(ticks)
        assert rig.poller.plan.bursts == 0
        async with running(rig):
            await rig.clock.advance(40.0)
            rig.market.prices["000007"] = 110.0
            await rig.clock.advance(40.0)
            assert ticks.symbols == {"000007"}
            ticks.cut()
            await rig.clock.advance(3.0)
            assert not rig.ingest.bursts.symbols
            assert not rig.market.times("000007", RequestPriority.BURST)


async def test_nothing_is_polled_while_the_market_is_closed() -> None:
    sunday = MONDAY_OPEN - timedelta(minutes=30)
    async with poller_on(60, start=sunday) as rig, running(rig):
        await rig.clock.advance(29 * 60.0)
        assert not rig.market.calls
        assert not rig.poller.status().open
        await rig.clock.advance(120.0)
        assert rig.market.calls
        opened_at = 30 * 60.0
        assert opened_at <= rig.market.calls[0][0] <= opened_at + 1.0


async def test_polling_ends_with_the_session() -> None:
    closing = MONDAY_OPEN + timedelta(hours=6, minutes=29)
    async with poller_on(60, start=closing) as rig, running(rig):
        await rig.clock.advance(300.0)
        assert rig.market.calls[-1][0] <= 60.1


async def test_a_wrong_key_ends_the_poller_with_its_reason() -> None:
    async with poller_on(60) as rig, running(rig) as task:
        rig.market.fail = lambda _symbols: RefusedError("venues.kis.app_key is not known to KIS")
        await rig.clock.advance(2.0)
        with pytest.raises(RefusedError, match="app_key"):
            await task


async def test_an_order_overtakes_the_scan() -> None:
    async with (
        poller_on(2500, config=FeedConfig(interval_s=1.0, stream=False)) as rig,
        running(rig),
    ):
        waits = []
        for _ in range(50):
            await rig.clock.advance(0.31)
            asked = rig.clock.monotonic_ns()
            order = asyncio.create_task(rig.market.limiter.acquire(RequestPriority.ORDER))
            while not order.done():
                await rig.clock.advance(0.001)
            waits.append((rig.clock.monotonic_ns() - asked) / 1e6)
            rig.market.limiter.release()
        assert max(waits) < 60.0


async def test_a_whole_day_of_single_quotes_uses_its_quota_and_not_more() -> None:
    """A tenth of the key's limits and of the symbols: the same plan, a tenth of the work."""
    limits = RateLimitConfig(per_second=2, per_minute=100, per_day=10_000)
    config = FeedConfig(stream=False, max_bursts=1)
    async with poller_on(250, limits, config, per_call=1) as rig, running(rig):
        rig.market.latency_s = 0.0
        await rig.clock.advance(6.5 * 3600)
        times = [round(at * 1e9) for at, *_ in rig.market.calls]
        assert 9_500 <= len(times) <= 10_000
        assert worst_window(times, 10**9) <= 2
        assert worst_window(times, 60 * 10**9) <= 100
        assert rig.poller.status().refused == 0


async def test_a_day_full_of_surges_does_not_slow_the_planned_scan() -> None:
    limits = RateLimitConfig(per_second=4, per_minute=200, per_day=10_000)
    config = FeedConfig(stream=False, max_bursts=1)
    async with poller_on(250, limits, config, per_call=1) as rig, running(rig):
        rig.market.latency_s = 0.0
        planned = rig.poller.plan.interval_s
        slowest = 0.0
        for step in range(468):
            for n in range(25):
                rig.market.prices[f"{n * 10:06}"] = 100.0 + 5.0 * (step % 2)
            await rig.clock.advance(50.0)
            slowest = max(slowest, rig.poller.status().last_scan_s)
        bursts = sum(priority is RequestPriority.BURST for _, priority, _ in rig.market.calls)
        assert slowest <= 1.05 * planned
        assert 700 <= bursts <= 1300  # their tenth, and the initial balance
        assert 9_500 <= len(rig.market.calls) <= 10_000
