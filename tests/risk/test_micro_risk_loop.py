"""The micro risk loop: exits are asked for at once, once, and on the right side."""

from __future__ import annotations

import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.domain import ExitLevels, ManualClock
from qts.events import payloads as p
from qts.risk import (
    EmergencyOrder,
    HoldTimeLimits,
    MicroRiskLoop,
    PositionShadow,
    StopsConfig,
    ageless,
)


class Desk:
    """What the loop published and what it raised."""

    def __init__(self, price_age_s: Callable[[str], float | None] = ageless, **config: Any) -> None:
        self.events: list[tuple[str, Any]] = []
        self.codes: list[str] = []
        self.clock = ManualClock()
        self.loop = MicroRiskLoop(
            StopsConfig(**config),
            lambda name, payload: self.events.append((name, payload)),
            lambda code, _: self.codes.append(code),
            self.clock,
            price_age_s,
        )

    def hold(self, *held: tuple[str, float, float], equity: float = 1e9) -> None:
        self.loop.set_positions(
            [PositionShadow(symbol=s, quantity=q, average=a) for s, q, a in held], equity
        )

    def tick(self, symbol: str, price: float) -> None:
        self.loop.stops.on_tick(symbol, price, self.clock.monotonic_ns() + 1)

    @property
    def exits(self) -> list[EmergencyOrder]:
        return [payload for _, payload in self.events if isinstance(payload, EmergencyOrder)]


@pytest.mark.parametrize(("quantity", "price", "side"), [(10, 9_800, "SELL"), (-10, 10_200, "BUY")])
def test_loss_leaves_on_the_other_side(quantity: float, price: float, side: str) -> None:
    desk = Desk()
    desk.hold(("A", quantity, 10_000))
    desk.tick("A", price)
    desk.tick("A", price)
    (order,) = desk.exits
    assert (order.side, order.qty, order.reason) == (side, 10, "EXIT_MAE")


def test_trailing_stop_is_told_as_such() -> None:
    desk = Desk()
    desk.hold(("A", 10, 10_000))
    for price in (10_200, 10_149):
        desk.tick("A", price)
    ((name, payload),) = desk.events
    assert name == "TRAILING_STOP_HIT"
    assert isinstance(payload, p.TrailingStopHit)
    assert (payload.qty, payload.price, payload.stop_price) == (10, 10_149, 10_149)


@pytest.mark.parametrize(
    ("quantity", "loss", "best", "trail"),
    [(10, 9_800, 10_200, 10_149), (-10, 10_200, 9_800, 9_849)],
)
def test_the_stop_price_is_where_all_of_a_position_is_sold(
    quantity: float, loss: float, best: float, trail: float
) -> None:
    desk = Desk()
    desk.hold(("A", quantity, 10_000))
    assert desk.loop.stop_price("A") == pytest.approx(loss)
    desk.tick("A", best)  # arms the trailing stop
    assert desk.loop.stop_price("A") == pytest.approx(trail)
    assert desk.loop.stop_price("B") is None
    desk.loop.park("A", "too small")
    assert desk.loop.stop_price("A") is None


def test_position_that_is_gone_is_not_watched() -> None:
    desk = Desk()
    desk.hold(("A", 10, 10_000), ("B", 10, 10_000))
    desk.hold(("B", 10, 10_000))
    desk.tick("A", 9_000)
    desk.tick("A", 9_000)
    assert not desk.events
    assert len(desk.loop.stops) == 1


def test_refused_exit_is_asked_for_again() -> None:
    desk = Desk()
    desk.hold(("A", 10, 10_000))
    desk.tick("A", 9_800)
    desk.loop.rearm("A", "no connection")
    desk.tick("A", 9_800)
    assert len(desk.exits) == 2
    assert desk.codes == ["GR074"]


def test_refused_half_is_asked_for_again() -> None:
    desk = Desk()
    desk.hold(("A", 10, 10_000))
    desk.tick("A", 9_850)
    desk.tick("A", 9_850)
    desk.loop.rearm("A", "no connection")
    desk.tick("A", 9_850)
    assert [order.qty for order in desk.exits] == [5, 5]


async def test_scalp_leaves_after_its_hour_and_a_holding_stays() -> None:
    desk = Desk()
    desk.loop.set_positions(
        [
            PositionShadow(symbol="A", quantity=1, average=10_000),
            PositionShadow(symbol="B", quantity=1, average=10_000, kind="PORTFOLIO"),
        ],
        1e9,
    )
    await desk.clock.advance(3_601)
    desk.loop.check()
    desk.loop.check()
    (order,) = desk.exits
    assert (order.symbol, order.reason) == ("A", "EXIT_TIME")


async def test_old_positions_are_warned_of_once() -> None:
    desk = Desk()
    desk.hold(("A", 10, 10_000))
    await desk.clock.advance(2)
    for _ in range(2):
        desk.loop.check()
    assert desk.codes == ["FS101"]


def test_a_price_that_is_too_old_is_warned_of_once_until_it_is_fresh_again() -> None:
    ages: dict[str, float | None] = {"A": 0.0, "B": 1.9}
    desk = Desk(price_age_s=ages.get)
    desk.hold(("A", 10, 10_000), ("B", 10, 10_000))
    desk.loop.check()
    assert desk.codes == []
    ages["A"] = 2.1
    for _ in range(3):
        desk.loop.check()
    assert desk.codes == ["FS105"]
    ages["A"] = 0.1
    desk.loop.check()
    ages["A"] = 2.5
    desk.loop.check()
    assert desk.codes == ["FS105", "FS105"]


def test_outside_the_session_no_price_is_too_old() -> None:
    desk = Desk(price_age_s=lambda _symbol: None)
    desk.hold(("A", 10, 10_000))
    desk.loop.check()
    assert desk.codes == []


async def test_without_a_feed_no_price_is_too_old() -> None:
    """In a backtest a minute may lie between two ticks."""
    desk = Desk()
    desk.hold(("A", 10, 10_000))
    await desk.clock.advance(60)
    desk.hold(("A", 10, 10_000))
    desk.loop.check()
    assert desk.codes == []


def test_rising_volatility_warns_then_halves_then_ends_everything() -> None:
    desk = Desk()
    desk.hold(("A", 10, 10_000), ("B", 4, 500))
    desk.loop.volatility(26, 0.01)
    desk.loop.volatility(27, 0.01)
    assert desk.codes == ["GR073"]
    desk.loop.volatility(28, 0.051)
    assert sorted((order.symbol, order.qty) for order in desk.exits) == [("A", 5), ("B", 2)]
    desk.loop.volatility(41, 0.051)
    assert [name for name, _ in desk.events[2:4]] == ["EMERGENCY_STOP", "ETEDA_SUSPEND"]
    assert len(desk.exits) == 4
    assert desk.codes[-1] == "FS104"
    desk.loop.volatility(45, 0.09)
    assert len(desk.exits) == 4


def test_losses_of_the_whole_account_end_everything() -> None:
    desk = Desk(mae_half=0.5, mae_full=0.5)
    desk.hold(("A", 100, 10_000), ("B", 100, 10_000), equity=1_000_000)
    desk.tick("A", 9_700)
    desk.loop.check()
    assert not desk.exits
    desk.tick("B", 9_750)
    desk.loop.check()
    desk.loop.check()
    assert sorted(order.symbol for order in desk.exits) == ["A", "B"]
    assert desk.codes == ["FS104", "AN020"]


def test_failed_round_is_told_and_the_loop_lives() -> None:
    desk = Desk(interval_ms=50)
    twice = threading.Event()

    def broken() -> None:
        if desk.codes:
            twice.set()
        raise ZeroDivisionError

    desk.loop.check = broken  # type: ignore[method-assign]
    stopped = threading.Event()
    thread = threading.Thread(target=desk.loop.run, args=(stopped,))
    thread.start()
    assert twice.wait(10)
    stopped.set()
    thread.join(10)
    assert set(desk.codes) == {"FS100"}


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"mae_half .0\.03. must not be above"):
        StopsConfig(mae_half=0.03)


async def test_a_position_near_its_loss_limit_is_noticed_once() -> None:
    desk = Desk()
    desk.hold(("A", 10, 10_000), ("B", -10, 10_000))
    for price in (9_850, 9_845, 9_830, 9_900, 9_830):  # 1.6 % of 10,000 is 160
        desk.tick("A", price)
        desk.loop.check()
    assert desk.codes == ["GR071"]
    desk.tick("B", 10_165)
    desk.loop.check()
    assert desk.codes == ["GR071", "GR071"]
    desk.hold(("B", -10, 10_000))
    await desk.clock.advance(0.5)
    desk.hold(("A", 10, 9_000), ("B", -10, 10_000))  # another position
    desk.tick("A", 8_850)
    desk.loop.check()
    assert desk.codes == ["GR071"] * 3


async def test_a_position_near_its_time_limit_is_noticed_once() -> None:
    desk = Desk(sync_late_s=1e9, holding=HoldTimeLimits(scalp_s=100))
    desk.hold(("A", 10, 10_000))
    await desk.clock.advance(79)
    desk.loop.check()
    assert desk.codes == []
    for _ in range(3):
        await desk.clock.advance(1)
        desk.loop.check()
    assert desk.codes == ["GR072"]


async def test_a_trailing_stop_that_moves_all_the_time_is_noticed_once_a_minute() -> None:
    desk = Desk(sync_late_s=1e9)
    desk.hold(("A", 10, 10_000))
    for step in range(150):
        desk.tick("A", 10_200 + step)
        await desk.clock.advance(0.5)
        desk.loop.check()
    assert desk.codes == ["GR070"]
    desk = Desk(sync_late_s=1e9)
    desk.hold(("A", 10, 10_000))
    for step in range(80):
        desk.tick("A", 10_200 + step)
        await desk.clock.advance(1.1)
        desk.loop.check()
    assert desk.codes == []


def test_a_price_that_jumps_is_warned_of_once_a_minute() -> None:
    desk = Desk(mae_half=0.5, mae_full=0.6, trail_arm=0.9)
    desk.hold(("A", 10, 10_000))
    for price in (10_400, 10_400, 11_000, 11_000, 12_000, 12_000):
        desk.tick("A", price)
        desk.loop.check()
    assert desk.codes == ["AN001"]


def test_open_profit_that_jumps_is_warned_of_and_a_fill_is_no_jump() -> None:
    desk = Desk(mae_half=0.5, mae_full=0.6, mae_account=0.9)
    desk.hold(("A", 100, 10_000), ("B", 100, 10_000), equity=2_000_000)
    desk.loop.check()
    desk.tick("A", 9_700)
    desk.loop.check()
    assert desk.codes == []  # 1.5 % of the equity
    desk.tick("A", 9_500)
    desk.tick("B", 9_700)
    desk.loop.check()
    assert desk.codes == ["AN020"]
    desk.hold(("A", 100, 10_000), equity=2_000_000)
    desk.loop.check()
    assert desk.codes == ["AN020"]


def test_after_a_kill_the_sale_of_everything_is_reported_once() -> None:
    desk = Desk(mae_half=0.5, mae_full=0.6)
    desk.hold(("A", 10, 10_000), ("B", 1, 10), equity=100_000)
    desk.tick("A", 9_500)
    desk.loop.check()
    assert desk.codes == ["FS104"]
    desk.loop.park("B", "too small")
    desk.loop.check()
    assert desk.codes == ["FS104", "GR075"]
    for _ in range(2):
        desk.hold(("B", 1, 10))
        desk.loop.check()
    assert desk.codes == ["FS104", "GR075", "FS092"]


levels = st.none() | st.builds(
    ExitLevels, stop=st.none() | st.just(Decimal(80)), target=st.none() | st.just(Decimal(130))
)
changes = st.lists(
    st.tuples(
        st.sampled_from("ABC"),
        st.sampled_from((0, 5, 10, -10)),
        st.sampled_from((99.0, 100.0, 103.0)),
        levels,
        st.sampled_from(("SCALP", "SWING")),
    ),
    max_size=12,
)


@given(changes)
async def test_one_position_at_a_time_is_as_all_of_them(made: list[tuple[Any, ...]]) -> None:
    each, whole = Desk(), Desk()
    held: dict[str, PositionShadow] = {}
    for number, (symbol, quantity, average, exits, kind) in enumerate(made):
        shadow = PositionShadow(
            symbol=symbol, quantity=quantity, average=average, exits=exits, kind=kind
        )
        if quantity:
            held[symbol] = shadow
            each.loop.set_position(shadow)
        else:
            held.pop(symbol, None)
            each.loop.remove_position(symbol)
        each.loop.set_equity(1e4)
        whole.loop.set_positions(held.values(), 1e4)
        for desk in (each, whole):
            for name in "ABC":
                desk.tick(name, 100.0 - number % 3 - (name == "B") * number)
            await desk.clock.advance(600)
            desk.loop.check()
        assert list(each.loop._symbols) == list(whole.loop._symbols)
        for name in "ABC":
            assert each.loop.stops.position(name) == whole.loop.stops.position(name)
    assert (each.events, each.codes) == (whole.events, whole.codes)
