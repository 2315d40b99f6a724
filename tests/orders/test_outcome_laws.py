"""Laws of an unknown outcome: a placed order is never absent, no order belongs to two attempts.

A venue without client order ids, with any clock, any lag below the time that an attempt is given,
orders of others that look the same, and fills at any moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from qts.brokers import OrderMatches, match_orders
from qts.domain import BrokerOrder, OrderRequest, OrderState, OrderType, Side
from qts.orders.resolve import Answer, decide_outcome
from tests.orders.kit import START

ABSENT_AFTER_S = 15.0
WINDOW_S = 60.0
TOLERANCE_S = 2.0
QUANTITY = Decimal(6)

Decide = Callable[[OrderMatches, int, bool, Decimal], Answer]
seconds = st.floats(0, ABSENT_AFTER_S, allow_nan=False)


@dataclass
class Attempt:
    """An attempt at second `sent`, and whether its order reached the venue."""

    sent: float
    is_placed: bool
    state: str = "UNKNOWN"
    order_id: str = ""


@dataclass
class Order:
    """An order of the venue, ours or another's; it shows and fills at its own times."""

    name: str
    placed: float
    shows: float
    filled: Decimal
    fills: float
    of: Attempt | None = None
    owner: Attempt | None = None


@dataclass
class World:
    """What happens at the venue, in our seconds; the venue dates it by its own clock."""

    side: Side
    skew_s: float
    measured_s: float
    orders: list[Order] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)

    def seen(self, now: float) -> list[BrokerOrder]:
        return [
            BrokerOrder(
                broker_order_id=order.name,
                symbol="005930",
                side=self.side,
                type=OrderType.MARKET,
                quantity=QUANTITY,
                filled=order.filled if now >= order.fills else Decimal(0),
                state=OrderState.OPEN,
                placed_at=(START + timedelta(seconds=order.placed + self.skew_s)).replace(
                    microsecond=0
                ),
            )
            for order in self.orders
            if now >= order.shows
        ]

    def traded(self, now: float) -> Decimal:
        """Return how far the holding is ahead of the fills that are known as ours."""
        filled = [order for order in self.orders if now >= order.fills]
        return sum((order.filled for order in filled if order.owner is None), Decimal(0))

    def look(self, now: float, decide: Decide) -> None:
        for attempt in self.attempts:
            if attempt.state != "UNKNOWN" or attempt.sent > now:
                continue
            known = frozenset(o.name for o in self.orders if o.owner not in (None, attempt))
            found = match_orders(self.seen(now), self.request(), self.between(attempt.sent), known)
            rivals = sum(a is not attempt and a.state == "UNKNOWN" for a in self.attempts)
            is_over = now - attempt.sent >= ABSENT_AFTER_S
            answer = decide(found, rivals, is_over, self.traded(now))
            if answer == "accepted":
                (order,) = found.candidates
                taken = next(o for o in self.orders if o.name == order.broker_order_id)
                assert taken.owner is None, "claimed by two attempts"
                taken.owner, attempt.state = attempt, "ACKED"
            elif answer == "absent":
                assert not attempt.is_placed, "a placed order is absent"
                attempt.state = "ABSENT"

    def between(self, sent: float) -> tuple[Any, Any]:
        margin = timedelta(seconds=abs(self.measured_s) + TOLERANCE_S)
        sent_at = START + timedelta(seconds=sent)
        return sent_at - margin, sent_at + timedelta(seconds=WINDOW_S) + margin

    def request(self) -> OrderRequest:
        return OrderRequest(
            client_order_id="x",
            symbol="005930",
            side=self.side,
            type=OrderType.MARKET,
            quantity=QUANTITY,
        )


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, list[float]]:
    skew_s = draw(st.one_of(st.floats(-200, 200), st.sampled_from([0.0, -3.7, 3.7, -90.0, 90.0])))
    measured_s = draw(st.one_of(st.just(0.0), st.just(skew_s)))  # none measured, or right
    world = World(draw(st.sampled_from(Side)), skew_s, measured_s)
    for number in range(draw(st.integers(1, 2))):
        attempt = Attempt(draw(st.floats(0, 20)), draw(st.booleans()))
        world.attempts.append(attempt)
        if attempt.is_placed:
            arrives = attempt.sent + draw(st.floats(0, 6))
            shows = draw(st.floats(arrives, attempt.sent + ABSENT_AFTER_S, exclude_max=True))
            world.orders.append(_order(draw, f"ours {number}", arrives, shows, attempt))
    for number in range(draw(st.integers(0, 2))):
        placed = draw(st.floats(-30, 40))
        world.orders.append(_order(draw, f"foreign {number}", placed, placed + draw(seconds)))
    return world, sorted(draw(st.lists(st.floats(0, 120), min_size=1, max_size=8)))


def _order(
    draw: st.DrawFn, name: str, placed: float, shows: float, of: Attempt | None = None
) -> Order:
    filled = Decimal(draw(st.integers(0, int(QUANTITY))))
    return Order(name, placed, shows, filled, placed + draw(seconds), of)


def follow(given_world: tuple[World, list[float]], decide: Decide) -> None:
    world, moments = given_world
    for moment in moments:
        world.look(moment, decide)


@settings(max_examples=1000, deadline=None)
@given(worlds())
def test_a_placed_order_is_never_absent_nor_claimed_twice(
    given_world: tuple[World, list[float]],
) -> None:
    follow(given_world, decide_outcome)


def ignores_other_times(
    found: OrderMatches, rivals: int, is_over: bool, _traded: Decimal | None
) -> Answer:
    return decide_outcome(OrderMatches(found.candidates), rivals, is_over, Decimal(0))


def does_not_wait(
    found: OrderMatches, rivals: int, _is_over: bool, traded: Decimal | None
) -> Answer:
    return decide_outcome(found, rivals, True, traded)


@pytest.mark.parametrize("planted", [ignores_other_times, does_not_wait])
def test_the_law_finds_a_planted_bug(planted: Decide) -> None:
    @settings(max_examples=2000, deadline=None, database=None, phases=[Phase.generate])
    @given(worlds())
    def law(given_world: tuple[World, list[float]]) -> None:
        follow(given_world, planted)

    with pytest.raises(AssertionError, match="a placed order is absent"):
        law()


def one(*names: str) -> tuple[BrokerOrder, ...]:
    return tuple(
        BrokerOrder(
            broker_order_id=name,
            symbol="005930",
            side=Side.BUY,
            type=OrderType.MARKET,
            quantity=QUANTITY,
            filled=Decimal(0),
            state=OrderState.OPEN,
            placed_at=START,
        )
        for name in names
    )


@pytest.mark.parametrize(
    ("found", "rivals", "is_over", "traded", "answer"),
    [
        (OrderMatches(one("a")), 0, False, 0, "accepted"),
        (OrderMatches(one("a")), 0, True, 6, "accepted"),
        (OrderMatches(one("a")), 1, False, 0, "waiting"),
        (OrderMatches(one("a")), 1, True, 0, "ambiguous"),
        (OrderMatches(one("a", "b")), 0, False, 0, "ambiguous"),
        (OrderMatches(one("a"), one("b")), 0, False, 0, "ambiguous"),
        (OrderMatches((), one("b")), 0, False, 0, "waiting"),
        (OrderMatches((), one("b")), 0, True, 0, "ambiguous"),
        (OrderMatches(()), 0, False, 0, "waiting"),
        (OrderMatches(()), 0, True, 1, "ambiguous"),
        (OrderMatches(()), 0, True, None, "waiting"),
        (OrderMatches((), one("b")), 0, True, None, "ambiguous"),
        (OrderMatches(()), 0, True, -1, "absent"),
        (OrderMatches(()), 3, True, 0, "absent"),
    ],
)
def test_decisions(
    found: OrderMatches, rivals: int, is_over: bool, traded: int | None, answer: str
) -> None:
    moved = None if traded is None else Decimal(traded)
    assert decide_outcome(found, rivals, is_over, moved) == answer
