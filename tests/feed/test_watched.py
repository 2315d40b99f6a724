"""Watched symbols: what is held or on order is priced every second, before anything else."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import timedelta
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.domain import QtsError, UnreachableError
from qts.feed import FeedConfig
from qts.feed import poller as poller_module
from qts.feed.fast_poller import REGISTER_AGAIN_S
from qts.venues import Quote, RateLimitConfig, RateLimitedError, RequestPriority
from tests.feed.market import MONDAY_OPEN, PollerRig, Ticks, codes, poller_on, running
from tests.venues.manual_limiter import worst_window

HELD = ["000007", "000300", "900001"]  # the last one is not among the scanned symbols
WATCHED = RequestPriority.WATCHED


def quote(rig: PollerRig, symbol: str, price: float = 100.0) -> None:
    rig.poller.on_quote(Quote(symbol, price, 0.0, 0.0, 0.0, {}, "kis_ws"))


def gaps(times: Sequence[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(times)]


async def test_without_a_stream_what_is_held_is_polled_every_second() -> None:
    async with poller_on(2500) as rig, running(rig):
        rig.poller.watch(HELD)
        await rig.clock.advance(60.0)
        for symbol in HELD:
            assert max(gaps(rig.market.times(symbol, WATCHED))) <= 1.1
            age = rig.poller.price_age_s(symbol)
            assert age is not None
            assert age <= 1.1
        scanned = rig.market.times("001234", RequestPriority.NORMAL)
        assert len(scanned) >= 2  # the scan goes on
        rig.poller.watch([])
        asked = len(rig.market.times(HELD[0], WATCHED))
        await rig.clock.advance(10.0)
        assert len(rig.market.times(HELD[0], WATCHED)) == asked
        assert rig.poller.price_age_s(HELD[0]) is None


async def test_a_full_set_of_bursts_does_not_delay_what_is_held() -> None:
    limits = RateLimitConfig(per_second=18)
    async with poller_on(300, limits, per_call=1) as rig, running(rig):
        await rig.clock.advance(300.0)
        for n in range(10):
            rig.market.prices[f"{n:06}"] = 110.0
        rig.poller.watch(["000200", "000201"])
        await rig.clock.advance(60.0)
        for symbol in ("000200", "000201"):
            assert max(gaps(rig.market.times(symbol, WATCHED))) <= 1.2
        times = [round(at * 1e9) for at, *_ in rig.market.calls]
        assert worst_window(times, 10**9) <= limits.per_second
        assert worst_window(times, 60 * 10**9) <= limits.per_minute


async def test_slots_of_the_stream_go_to_what_is_held_and_bursts_give_theirs_back() -> None:
    async with poller_on(300) as rig:
        ticks = Ticks(rig.clock, capacity=3)
        rig.poller.attach_stream(ticks)
        async with running(rig):
            await rig.clock.advance(40.0)
            for n in range(5):
                rig.market.prices[f"{n:06}"] = 110.0 + n
            await rig.clock.advance(33.0)
            assert len(ticks.symbols) == 3
            rig.poller.watch(["000200", "000201"])
            assert {"000200", "000201"} <= ticks.symbols
            assert len(ticks.symbols) == 3
            rig.poller.watch(["000200", "000201", "000202", "000203"])
            await rig.clock.advance(5.0)
            streamed = ticks.symbols
            assert len(streamed) == 3
            assert streamed < {"000200", "000201", "000202", "000203"}
            (polled,) = {"000200", "000201", "000202", "000203"} - streamed
            assert max(gaps(rig.market.times(polled, WATCHED))) <= 1.1
            bursts = rig.ingest.bursts.symbols
            assert bursts
            asked = {symbol: len(rig.market.times(symbol)) for symbol in bursts}
            await rig.clock.advance(3.0)
            assert all(len(rig.market.times(symbol)) > asked[symbol] for symbol in bursts)
            rig.poller.watch([polled])
            await rig.clock.advance(1.0)
            assert polled in ticks.symbols
        assert ticks.most <= 3


async def test_a_streamed_symbol_is_polled_until_a_price_follows_its_registration() -> None:
    async with poller_on(300) as rig:
        ticks = Ticks(rig.clock)
        rig.poller.attach_stream(ticks)
        async with running(rig):
            await rig.clock.advance(2.0)
            rig.poller.watch(["000200"])
            await rig.clock.advance(4.0)
            polls = rig.market.times("000200", WATCHED)
            assert 1 <= len(polls) <= 3
            await rig.clock.advance(30.0)
            assert rig.market.times("000200", WATCHED) == polls  # the stream has it now
            assert rig.poller.price_age_s("000200") == 0.0  # no trade, and a connection that lives


@pytest.mark.parametrize("how", ["cut", "silent"])
async def test_a_stream_that_is_cut_or_silent_leaves_what_is_held_to_polls(how: str) -> None:
    async with poller_on(300) as rig:
        ticks = Ticks(rig.clock)
        rig.poller.attach_stream(ticks)
        rig.poller.watch(HELD)
        async with running(rig):
            await rig.clock.advance(10.0)
            polls = len(rig.market.calls)
            cut_at = rig.clock.monotonic_ns() / 1e9
            ticks.cut() if how == "cut" else ticks.be_silent()
            for _ in range(100):
                await rig.clock.advance(0.1)
                assert all((rig.poller.price_age_s(symbol) or 0.0) < 2.0 for symbol in HELD)
            for symbol in HELD:
                times = [at for at in rig.market.times(symbol, WATCHED) if at >= cut_at]
                assert times[0] - cut_at <= 1.6
                assert max(gaps(times)) <= 1.1
            assert len(rig.market.calls) > polls
            if how == "cut":
                ticks.connect()
                await rig.clock.advance(5.0)
                asked = len(rig.market.times(HELD[0], WATCHED))
                await rig.clock.advance(10.0)
                assert len(rig.market.times(HELD[0], WATCHED)) == asked


async def test_a_refused_registration_is_polled_and_tried_again_after_a_minute() -> None:
    async with poller_on(300) as rig:
        ticks = Ticks(rig.clock)
        ticks.refused = {"000200", "000003"}
        rig.poller.attach_stream(ticks)
        rig.poller.watch(["000200"])
        async with running(rig):
            await rig.clock.advance(40.0)
            rig.market.prices["000003"] = 110.0  # a burst, refused as well
            await rig.clock.advance(40.0)
            assert max(gaps(rig.market.times("000200", WATCHED))) <= 1.1
            assert len(rig.market.times("000003", RequestPriority.BURST)) >= 5
            tried = [at for at, symbol in ticks.requests if symbol == "000200"]
            assert len(tried) == 2
            assert tried[1] - tried[0] >= REGISTER_AGAIN_S
            ticks.refused = set()
            await rig.clock.advance(REGISTER_AGAIN_S + 5.0)
            assert {"000200"} <= ticks.symbols


async def test_a_poll_without_a_reply_does_not_hold_back_the_next() -> None:
    async with poller_on(60) as rig, running(rig):
        rig.poller.watch(["000007"])
        await rig.clock.advance(5.0)
        rig.market.latency_s = 5.0
        asked = len(rig.market.times("000007", WATCHED))
        await rig.clock.advance(9.0)
        assert len(rig.market.times("000007", WATCHED)) - asked >= 4


async def test_failed_polls_let_the_age_grow() -> None:
    def fail(symbols: Sequence[str]) -> QtsError | None:
        return UnreachableError("cut") if "000007" in symbols else None

    async with poller_on(60) as rig, running(rig):
        rig.poller.watch(["000007"])
        await rig.clock.advance(5.0)
        rig.market.fail = fail
        await rig.clock.advance(5.0)
        age = rig.poller.price_age_s("000007")
        assert age is not None
        assert 4.0 <= age <= 6.0


async def test_outside_the_session_no_price_has_an_age_and_it_counts_from_the_opening() -> None:
    async with poller_on(60, start=MONDAY_OPEN - timedelta(minutes=10)) as rig, running(rig):
        rig.poller.watch(["000007"])
        await rig.clock.advance(590.0)
        assert rig.poller.price_age_s("000007") is None
        rig.market.fail = lambda _symbols: RateLimitedError("EGW00201")
        await rig.clock.advance(11.0)
        age = rig.poller.price_age_s("000007")
        assert age is not None
        assert age <= 1.1


async def test_more_than_can_be_polled_each_second_is_polled_in_turn_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Mock()
    monkeypatch.setattr(poller_module, "log", log)
    slow = RateLimitConfig(per_second=1, per_minute=1000)
    async with poller_on(20, slow, per_call=1) as rig, running(rig):
        rig.poller.watch(codes(4))
        await rig.clock.advance(60.0)
        plan = rig.poller.plan
        assert plan.demand.watched == 4
        assert 5.0 < plan.watch_interval_s < 6.0  # 4 / (0.8 x 1 / 1.1 s)
        assert "4 polled every 5.5 s" in plan.render()
        log.warning.assert_called_once()
        assert log.warning.call_args.args == ("held symbols cannot be polled each second",)
        for symbol in codes(4):
            between = gaps(rig.market.times(symbol, WATCHED))
            assert sum(between) / len(between) <= plan.watch_interval_s + 0.2
            assert max(between) <= plan.watch_interval_s + 2.0  # a permit that the scan has taken
        assert [call for call in rig.market.calls if call[1] is RequestPriority.NORMAL]


async def test_a_quiet_stream_on_a_slow_key_is_confirmed_by_its_heartbeat() -> None:
    slow = RateLimitConfig(per_second=1)
    async with poller_on(20, slow, per_call=1) as rig:
        ticks = Ticks(rig.clock)
        rig.poller.attach_stream(ticks)
        async with running(rig):
            rig.poller.watch(codes(10))
            await rig.clock.advance(60.0)
            for symbol in codes(10):
                quote(rig, symbol)
            ticks.be_silent()
            await rig.clock.advance(10.0)
            assert {rig.poller.price_age_s(symbol) for symbol in codes(10)} == {0.0}
            await rig.clock.advance(10.0)  # a heartbeat is missing
            ages = [rig.poller.price_age_s(symbol) or 0.0 for symbol in codes(10)]
            assert max(ages) > 2.0


@given(
    st.integers(1, 30),
    st.integers(60, 1200),
    st.lists(st.integers(0, 120), min_size=1, max_size=4),
    st.sampled_from([1, 30]),
)
async def test_no_limit_is_exceeded_whatever_is_held(
    per_second: int, per_minute: int, held: list[int], per_call: int
) -> None:
    limits = RateLimitConfig(per_second=per_second, per_minute=per_minute)
    config = FeedConfig(stream=False)
    async with poller_on(200, limits, config, per_call=per_call) as rig, running(rig):
        for count in held:
            rig.poller.watch(codes(count))
            await rig.clock.advance(15.0)
        times = [round(at * 1e9) for at, *_ in rig.market.calls]
        assert worst_window(times, 10**9) <= per_second
        assert worst_window(times, 60 * 10**9) <= per_minute
