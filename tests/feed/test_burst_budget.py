"""Budget of bursts: covered to their end, and never more than their share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qts.feed.bursts import BurstBudget


def test_a_full_set_can_start_at_once() -> None:
    assert BurstBudget(10, 300.0, 1, at=0.0).slots([], 0.0) == 10
    assert BurstBudget(10, 300.0, 30, at=0.0).slots([], 0.0) == 30


def test_active_bursts_are_covered_and_no_other_starts() -> None:
    budget = BurstBudget(10, 300.0, 1, at=0.0)
    for second in range(300):
        assert budget.slots([300.0 - second] * 10, float(second)) == 10
        for _ in range(10):
            budget.spend()
    assert budget.slots([], 300.0) == 0


def test_an_early_end_frees_budget_for_the_next() -> None:
    budget = BurstBudget(2, 300.0, 1, at=0.0)
    for _ in range(100):
        budget.spend()
    assert budget.slots([200.0], 100.0) == 2
    assert budget.slots([], 100.0) == 1


def test_symbols_that_share_a_request_share_its_cost() -> None:
    budget = BurstBudget(10, 300.0, 30, at=0.0)
    assert budget.slots([300.0] * 7, 0.0) == 30


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.integers(0, 400), st.floats(0, 2)), min_size=1, max_size=60
    )
)
def test_spending_never_exceeds_income_plus_a_full_set(
    steps: list[tuple[float, int, float]],
) -> None:
    budget, at, came_in, spent, per_s = BurstBudget(3, 100.0, 1, at=0.0), 0.0, 0.0, 0, 0.0
    for wait, requests, rate in steps:
        at += wait
        came_in += wait * per_s
        budget.set_income(rate, at)
        per_s = rate
        for _ in range(requests):
            if budget.slots([], at) == 0:
                break
            budget.spend()
            spent += 1
    assert spent <= 3 * 100.0 + came_in + 1e-6
