"""Bars that a strategy has received: added one by one, or with their rows taken before."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from qts.domain import Bar, Timeframe
from qts.strategies import NoParams, Strategy, StrategyBars

COLUMNS = np.dtype([(name, np.float64) for name in Bar._fields[2:]])


class Minutes(Strategy[NoParams], key="minutes"):
    timeframes = ("1m",)
    warm_up = 0


def made(number: int) -> Bar:
    price = 100.0 + number
    return Bar("005930", Timeframe.M1, 60.0 * number, price, price + 1, price - 1, price, 5.0)


def new_bars() -> StrategyBars:
    bars = StrategyBars.of(Minutes(NoParams()))
    assert bars is not None
    return bars


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.booleans(),
            st.sampled_from((0, 1, 40, 600, 1300)),
            st.sampled_from((0, 1, 30)),
        ),
        max_size=6,
    )
)
def test_rows_taken_before_make_no_difference(parts: list[tuple[bool, bool, int, int]]) -> None:
    plain, ahead, number = new_bars(), new_bars(), 0
    end = (True, True, 1, 0)
    for (is_expected, is_read, count, missing), later in pairwise([*parts, end, end]):
        bars = [made(number + each) for each in range(count)]
        number += count
        if is_expected:
            # Every other row is of this series, and they are not in order.
            table = np.zeros(2 * count, COLUMNS)
            places = np.arange(2 * count)[::-2]
            table[places] = np.array([tuple(each[2:]) for each in bars], COLUMNS)
            ahead.expect("005930", Timeframe.M1, table, places)
            if later[0]:  # the others never come
                bars = bars[: max(0, count - missing)]
                number -= count - len(bars)
        for index, bar in enumerate(bars):
            plain.add(bar, ())
            ahead.add(bar, ())
            if is_read and index % 97 in (0, 96):
                for n in (1, 33, 500, 501):
                    seen = ahead.bars("005930", "1m", n)
                    assert seen.tolist() == plain.bars("005930", "1m", n).tolist()
                    assert len(seen) == min(n, 500, number - len(bars) + index + 1)
                    assert seen["at"][-1] == bar.at
