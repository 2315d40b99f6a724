"""Matching of the paper venue: which orders fill, at which price and fee."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from qts.brokers import FeesConfig, PaperConfig, PaperMatchingEngine
from qts.domain import (
    BookLevel,
    Fill,
    InstrumentClass,
    Instruments,
    OrderBook,
    OrderRequest,
    OrderType,
    Side,
    Tick,
    TimeInForce,
    krx_instrument,
)
from qts.venues import VenueRejectedError
from tests.instruments import LISTED

STOCK, BITCOIN = "005930", "KRW-BTC"
CASH = Decimal(100_000_000)
FREE = FeesConfig(krx_fee=0, krx_sale_tax=0, upbit_fee=0)
SECOND = 10**9


def engine(costs: FeesConfig = FREE, **settings: Any) -> PaperMatchingEngine:
    return PaperMatchingEngine(PaperConfig(**settings), costs, CASH, LISTED)


def order(side: Side, quantity: Any, price: Any = None, symbol: str = STOCK) -> OrderRequest:
    return OrderRequest(
        client_order_id="x",
        symbol=symbol,
        side=side,
        type=OrderType.MARKET if price is None else OrderType.LIMIT,
        quantity=Decimal(quantity),
        price=None if price is None else Decimal(price),
    )


def prices(fills: Sequence[Fill]) -> list[int]:
    return [int(fill.price) for fill in fills]


def free(venue: PaperMatchingEngine, symbol: str = STOCK) -> Decimal:
    return venue.account.free(symbol)


@pytest.mark.parametrize(("side", "price"), [(Side.BUY, 70_100), (Side.SELL, 70_000)])
def test_a_market_order_pays_the_opposite_quote(side: Side, price: int) -> None:
    venue = engine()
    venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_100), 0)
    venue.submit("own", order(Side.BUY, 10), 0)
    assert prices(venue.submit("a", order(side, 10), 0)) == [price]


@pytest.mark.parametrize(
    ("settings", "side", "price"),
    [
        ({"slippage_ticks": 2}, Side.BUY, 70_300),
        ({"slippage_ticks": 2}, Side.SELL, 69_800),
        ({"slippage_bps": 10}, Side.BUY, 70_200),  # 70,170.1 is not on a tick: the next worse one
        ({"slippage_bps": 10}, Side.SELL, 69_900),
    ],
)
def test_slippage_is_against_us_and_on_a_tick(
    settings: dict[str, Any], side: Side, price: int
) -> None:
    venue = engine(**settings)
    venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_100), 0)
    venue.submit("own", order(Side.BUY, 10), 0)
    assert prices(venue.submit("a", order(side, 10), 0)) == [price]


def test_slippage_never_goes_beyond_a_limit() -> None:
    venue = engine(slippage_ticks=50)
    venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_100), 0)
    assert prices(venue.submit("a", order(Side.BUY, 10, 70_200), 0)) == [70_200]


def test_a_limit_order_takes_a_better_price_at_once() -> None:
    venue = engine()
    venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_100), 0)
    assert prices(venue.submit("a", order(Side.BUY, 10, 71_000), 0)) == [70_100]


def test_a_resting_order_trades_at_its_own_price() -> None:
    venue = engine()
    venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_100), 0)
    assert not venue.submit("a", order(Side.BUY, 10, 69_500), 0)
    assert venue.is_open("a")
    assert not venue.on_tick(Tick(STOCK, 69_500, 1, 69_500, 69_600), 1)  # touched, not passed
    assert prices(venue.on_tick(Tick(STOCK, 69_000, 1, 68_900, 69_000), 2)) == [69_500]
    assert not venue.is_open("a")


def test_a_trade_through_the_price_fills_even_where_no_quote_shows_it() -> None:
    venue = engine()
    venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_100), 0)
    venue.submit("a", order(Side.BUY, 10, 69_500), 0)
    assert prices(venue.on_tick(Tick(STOCK, 69_400, 1, 69_400, 69_600), 1)) == [69_500]


def test_a_market_without_quotes_trades_at_its_last_price() -> None:
    venue = engine()
    venue.on_tick(Tick(STOCK, 70_000, 1, 0, 0), 0)
    assert prices(venue.submit("a", order(Side.BUY, 10), 0)) == [70_000]


@pytest.mark.parametrize("last", [0, -5, float("nan"), float("inf")])
def test_a_tick_that_is_no_price_trades_nothing(last: float) -> None:
    venue = engine()
    venue.on_tick(Tick(STOCK, 70_000, 1, 0, 0), 0)
    venue.submit("a", order(Side.BUY, 10, 69_000), 0)
    assert not venue.on_tick(Tick(STOCK, last, float("nan"), last, last), 1)
    with pytest.raises(VenueRejectedError, match="no price"):
        venue.submit("b", order(Side.BUY, 10), 1)


def test_an_order_trades_only_after_its_latency() -> None:
    venue = engine(latency_ms=100)
    venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_100), 0)
    assert not venue.submit("a", order(Side.BUY, 10), 0)
    assert not venue.on_tick(Tick(STOCK, 80_000, 1, 80_000, 80_100), 99_999_999)
    assert prices(venue.on_tick(Tick(STOCK, 90_000, 1, 90_000, 90_100), 100_000_000)) == [90_100]


def test_random_latency_is_the_same_for_the_same_seed() -> None:
    def first_fills(seed: int) -> list[int]:
        venue = engine(latency_jitter_ms=1000, seed=seed)
        venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_000), 0)
        for n in range(5):
            venue.submit(f"{n}", order(Side.BUY, 1), 0)
        return [
            len(venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_000), n * 10**8)) for n in range(11)
        ]

    assert first_fills(1) == first_fills(1)
    assert first_fills(1) != first_fills(2)
    assert sum(first_fills(1)) == 5


def test_only_a_share_of_a_tick_can_be_accepted() -> None:
    venue = engine(volume_share=0.25)
    venue.on_tick(Tick(STOCK, 70_000, 10, 70_000, 70_100), 0)
    (first,) = venue.submit("a", order(Side.BUY, 5), 0)
    assert first.quantity == 2  # a quarter of ten is two and a half, and there are no halves
    assert not venue.submit("b", order(Side.BUY, 5), 0)  # the tick is used up
    fills = venue.on_tick(Tick(STOCK, 70_000, 20, 70_000, 70_100), 1)
    assert [(fill.broker_order_id, int(fill.quantity)) for fill in fills] == [("a", 3), ("b", 2)]
    assert [fill.trade_id for fill in (first, fills[0])] == ["a.1", "a.2"]


@pytest.mark.parametrize(
    ("kind", "settings", "fee"),
    [
        ("STOCK", FeesConfig(), 1_505),  # 0.015 % and 0.20 %
        ("ETF", FeesConfig(), 105),
        ("ETN", FeesConfig(), 105),
        ("STOCK", FeesConfig(krx_sale_tax=0.0015), 1_155),
        ("ETF", FeesConfig(krx_sale_tax=0.0015), 105),
    ],
)
def test_the_tax_of_a_sale_is_that_of_its_class(kind: str, settings: FeesConfig, fee: int) -> None:
    known = Instruments([krx_instrument(STOCK, InstrumentClass(kind))])
    venue = PaperMatchingEngine(PaperConfig(), settings, CASH, known)
    venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_000), 0)
    (bought,) = venue.submit("a", order(Side.BUY, 10), 0)
    (sold,) = venue.submit("b", order(Side.SELL, 10), 0)
    assert (int(bought.fee), int(sold.fee)) == (105, fee)


def test_orders_follow_the_ticks_of_their_class() -> None:
    known = Instruments([krx_instrument(STOCK, InstrumentClass.ETF)])
    venue = PaperMatchingEngine(PaperConfig(slippage_ticks=1), FREE, CASH, known)
    venue.on_tick(Tick(STOCK, 70_000, 1, 69_995, 70_005), 0)
    (bought,) = venue.submit("a", order(Side.BUY, 1), 0)
    assert bought.price == 70_010
    with pytest.raises(VenueRejectedError, match="not on a tick"):
        venue.submit("b", order(Side.BUY, 1, 70_003), 0)


def test_odd_lots_are_sold_with_the_rest_only() -> None:
    known = Instruments([krx_instrument(STOCK)])
    venue = PaperMatchingEngine(PaperConfig(), FREE, CASH, known)
    venue.on_tick(Tick(STOCK, 1_000, 1, 1_000, 1_000), 0)
    venue.submit("a", order(Side.BUY, 15), 0)
    known.replace([krx_instrument(STOCK, lot=Decimal(10))])
    with pytest.raises(VenueRejectedError, match="no multiple of 10"):
        venue.submit("b", order(Side.SELL, 12), 0)
    (sold,) = venue.submit("c", order(Side.SELL, 15), 0)
    assert sold.quantity == 15


def test_fees_and_taxes_are_the_markets() -> None:
    venue = engine(FeesConfig())
    venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_000), 0)
    venue.on_tick(Tick(BITCOIN, 100_000_000, 1, 0, 0), 0)
    (bought,) = venue.submit("a", order(Side.BUY, 11), 0)
    (sold,) = venue.submit("b", order(Side.SELL, 11), 0)
    (coin,) = venue.submit("c", order(Side.BUY, "0.01234567", symbol=BITCOIN), 0)
    assert bought.fee == 115  # 0.015 % of 770,000 is 115.5, cut to the won
    assert sold.fee == 1_655  # and 0.20 % tax on top
    assert coin.fee == Decimal("617.28350000")


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (order(Side.BUY, "1.5", 70_000), "lot"),
        (order(Side.BUY, 1, 70_050), "tick"),
        (order(Side.BUY, 1, 5_000, "KRW-XRP"), None),
        (order(Side.BUY, "0.9", 5_000, "KRW-XRP"), "least"),
        (order(Side.BUY, 1_429, 70_000), "insufficient_cash"),
        (order(Side.BUY, 1_428, 70_000), None),
        (order(Side.SELL, 1, 70_000), "insufficient_holding"),
        (order(Side.BUY, 1, None, "000660"), "no_price"),
    ],
)
def test_a_wrong_order_is_rejected(request_: OrderRequest, code: str | None) -> None:
    venue = engine()
    venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_100), 0)
    if code is None:
        venue.submit("a", request_, 0)
        assert venue.is_open("a")
        return
    with pytest.raises(VenueRejectedError) as raised:
        venue.submit("a", request_, 0)
    assert raised.value.code == code
    assert venue.account.free_cash == CASH


def test_open_orders_hold_what_they_may_need_and_a_cancel_gives_it_back() -> None:
    venue = engine()
    venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_100), 0)
    venue.submit("own", order(Side.BUY, 10), 0)
    before = venue.account.free_cash
    venue.submit("a", order(Side.BUY, 10, 60_000), 0)
    venue.submit("b", order(Side.SELL, 6, 80_000), 0)
    assert (venue.account.free_cash, free(venue)) == (before - 600_000, Decimal(4))
    with pytest.raises(VenueRejectedError):
        venue.submit("c", order(Side.SELL, 5), 0)
    assert venue.cancel("a") is not None
    assert venue.cancel("b") is not None
    assert venue.cancel("a") is None
    assert (venue.account.free_cash, free(venue)) == (before, Decimal(10))


# -- properties

Move = tuple[str, int, int, int]
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["tick", "buy", "sell", "market_buy", "market_sell", "cancel"]),
        st.integers(0, 40),  # ticks of 100 won above 68,000
        st.integers(1, 30),  # a quantity, a volume
        st.integers(0, 20),  # which order
    ),
    max_size=60,
)


def play(
    venue: PaperMatchingEngine, moves: list[Move]
) -> tuple[list[Fill], dict[str, OrderRequest]]:
    fills: list[Fill] = []
    accepted: dict[str, OrderRequest] = {}
    venue.on_tick(Tick(STOCK, 70_000, 50, 70_000, 70_100), 0)
    for at, (what, level, quantity, which) in enumerate(moves):
        price, now = 68_000 + 100 * level, at * SECOND
        if what == "tick":
            fills += venue.on_tick(Tick(STOCK, price, quantity, price, price + 100), now)
        elif what == "cancel":
            venue.cancel(f"{which}")
        else:
            side = Side.BUY if what.endswith("buy") else Side.SELL
            limit = None if what.startswith("market") else price
            request = order(side, quantity, limit)
            try:
                fills += venue.submit(f"{at}", request, now)
            except VenueRejectedError:
                continue
            accepted[f"{at}"] = request
    return fills, accepted


@given(MOVES, st.sampled_from([0.0, 0.3]), st.sampled_from([0, 3]))
def test_money_and_holdings_are_the_sum_of_the_fills(
    moves: list[Move], share: float, slippage: int
) -> None:
    venue = engine(FeesConfig(), volume_share=share, slippage_ticks=slippage)
    fills, accepted = play(venue, moves)
    spent = sum((f.side.sign * f.price * f.quantity + f.fee for f in fills), Decimal(0))
    assert venue.account.cash == CASH - spent
    account = venue.account.snapshot()
    assert sum(h.quantity for h in account.holdings) == sum(f.side.sign * f.quantity for f in fills)
    assert all(h.quantity > 0 for h in account.holdings)
    assert len({fill.trade_id for fill in fills}) == len(fills)
    for name, request in accepted.items():
        own = [fill for fill in fills if fill.broker_order_id == name]
        filled = sum((fill.quantity for fill in own), Decimal(0))
        assert filled <= request.quantity
        if filled == request.quantity:
            assert not venue.is_open(name)
        if request.price is not None:
            assert all((request.price - f.price) * f.side.sign >= 0 for f in own)


@given(MOVES)
def test_no_funds_are_held_without_open_orders(moves: list[Move]) -> None:
    venue = engine(FeesConfig(), volume_share=0.3)
    _, accepted = play(venue, moves)
    for name in accepted:
        venue.cancel(name)
    assert venue.account.free_cash == venue.account.cash
    owned = sum((h.quantity for h in venue.account.snapshot().holdings), Decimal(0))
    assert free(venue) == owned


@given(MOVES)
def test_the_same_inputs_give_the_same_fills(moves: list[Move]) -> None:
    settings: dict[str, Any] = {
        "volume_share": 0.3,
        "slippage_bps": 5.0,
        "latency_jitter_ms": 1500.0,
        "seed": 7,
    }
    assert play(engine(**settings), moves) == play(engine(**settings), moves)


def book(bids: list[tuple[int, int]], asks: list[tuple[int, int]], at: float = 0.0) -> OrderBook:
    def levels(side: list[tuple[int, int]]) -> tuple[BookLevel, ...]:
        return tuple(BookLevel(float(price), float(quantity)) for price, quantity in side)

    return OrderBook(STOCK, levels(bids), levels(asks), at)


def filled(fills: Sequence[Fill]) -> list[tuple[int, int]]:
    return [(int(fill.price), int(fill.quantity)) for fill in fills]


def test_a_market_order_walks_the_book_and_waits_for_the_next() -> None:
    venue = engine()
    venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_100), 0)
    venue.on_book(book([(70_000, 9)], [(70_100, 3), (70_200, 4)]), 0)
    fills = venue.submit("a", order(Side.BUY, 10), 0)
    assert filled(fills) == [(70_100, 3), (70_200, 4)]
    assert venue.is_open("a")
    assert not venue.on_tick(Tick(STOCK, 70_100, 1, 70_000, 70_100), 1)  # the same book: used up
    (rest,) = venue.on_book(book([(70_000, 9)], [(70_300, 50)]), 2)
    assert filled([rest]) == [(70_300, 3)]
    assert not venue.is_open("a")


def test_a_limit_order_takes_levels_up_to_its_price_and_rests_with_the_remainder() -> None:
    venue = engine()
    venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_100), 0)
    venue.on_book(book([(70_000, 9)], [(70_100, 3), (70_200, 4), (70_300, 9)]), 0)
    fills = venue.submit("a", order(Side.BUY, 10, 70_200), 0)
    assert filled(fills) == [(70_100, 3), (70_200, 4)]
    (maker,) = venue.on_book(book([(70_000, 9)], [(70_100, 2)]), 1)
    assert filled([maker]) == [(70_200, 2)]  # reached: at its own price, by the depth
    (last,) = venue.on_tick(Tick(STOCK, 70_100, 1, 70_000, 70_300), 2)  # a trade passed it
    assert filled([last]) == [(70_200, 1)]


def test_what_a_book_does_not_hold_of_an_ioc_order_is_cancelled() -> None:
    venue = engine()
    venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_100), 0)
    venue.on_book(book([(69_900, 2)], []), 0)
    ioc = replace(order(Side.BUY, 5), time_in_force=TimeInForce.IOC)
    assert not venue.submit("a", ioc, 0)  # nothing is offered
    assert venue.cancelled == ["a"]


@pytest.mark.parametrize(("quantity", "filled_"), [(5, 5), (6, 0)])
def test_a_fok_order_takes_levels_for_all_of_it_or_none(quantity: int, filled_: int) -> None:
    venue = engine()
    venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_100), 0)
    venue.on_book(book([(69_900, 2)], [(70_100, 3), (70_200, 2)]), 0)
    fok = replace(order(Side.BUY, quantity, 70_300), time_in_force=TimeInForce.FOK)
    fills = venue.submit("a", fok, 0)
    assert sum(each.quantity for each in fills) == filled_
    assert venue.cancelled == ([] if filled_ else ["a"])
    left = replace(order(Side.BUY, 5, 70_300), time_in_force=TimeInForce.IOC)
    assert sum(each.quantity for each in venue.submit("b", left, 0)) == 5 - filled_


@given(st.integers(1, 40), st.integers(0, 60), st.sampled_from([0.0, 0.5, 1.0]))
def test_a_fok_order_fills_all_of_it_or_nothing(quantity: int, volume: int, share: float) -> None:
    venue = engine(volume_share=share)
    venue.on_tick(Tick(STOCK, 70_000, volume, 70_000, 70_100), 0)
    fok = replace(order(Side.BUY, quantity), time_in_force=TimeInForce.FOK)
    found = sum(each.quantity for each in venue.submit("a", fok, 0))
    assert found == (quantity if not share or quantity <= int(volume * share) else 0)
    assert venue.is_open("a") is False


@pytest.mark.parametrize(("book_at", "tick_at", "now"), [(0.0, 0.0, 11.0), (0.0, 2.0, 2.0)])
def test_an_old_book_is_not_used(book_at: float, tick_at: float, now: float) -> None:
    """Too old by itself, or older than the last price by more than a second."""
    venue, now_ns = engine(), round(now * SECOND)
    venue.on_book(book([(60_000, 1)], [(60_100, 1)], book_at), now_ns)
    venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_100, tick_at), now_ns)
    (fill,) = venue.submit("a", order(Side.BUY, 10), now_ns)
    assert filled([fill]) == [(70_100, 10)]


LEVELS = st.lists(st.integers(1, 20), min_size=0, max_size=6)


@given(LEVELS, st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_paper_orders_take_no_more_than_a_book_holds(depth: list[int], wants: list[int]) -> None:
    venue = engine()
    venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_100), 0)
    asks = [(70_100 + 100 * n, quantity) for n, quantity in enumerate(depth)]
    venue.on_book(book([(70_000, 1)], asks), 0)
    fills: list[Fill] = []
    for number, quantity in enumerate(wants):
        fills += venue.submit(f"{number}", order(Side.BUY, quantity), 0)
        fills += venue.on_tick(Tick(STOCK, 70_000, 1, 70_000, 70_100), number)
    taken: dict[Decimal, Decimal] = {}
    for fill in fills:
        taken[fill.price] = taken.get(fill.price, Decimal(0)) + fill.quantity
    assert all(quantity <= dict(asks)[int(price)] for price, quantity in taken.items())
    assert sum(taken.values()) == min(sum(depth), sum(wants))
