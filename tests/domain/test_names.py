"""Refusal of unknown names."""

from __future__ import annotations

import pytest

from qts.domain import RefusedError, check_name, name_choices, nearest_name

BROKERS = ["paper", "kis", "upbit"]


def test_nearest_name_ignores_case() -> None:
    assert nearest_name("PAPRE", BROKERS) == "paper"
    assert nearest_name("papre", ["Paper"]) == "Paper"
    assert nearest_name("binance", BROKERS) is None
    assert nearest_name("papre", BROKERS, cutoff=0.9) is None


def test_a_long_list_is_cut_and_its_nearest_name_is_still_found() -> None:
    names = [f"{number:06}" for number in range(100, 2600)]
    text = name_choices("0025999", names)
    assert text.startswith("000100, 000101, ")
    assert text.endswith("000111 and 2488 more; did you mean 002599?")


def test_an_unknown_name_is_refused() -> None:
    check_name("broker", "kis", BROKERS)
    with pytest.raises(RefusedError) as refused:
        check_name("broker", "kiss", BROKERS)
    assert str(refused.value) == (
        "broker 'kiss' is unknown; expected one of paper, kis, upbit; did you mean kis?"
    )
    with pytest.raises(RefusedError, match=r"^symbol 'x' is unknown; none is known$"):
        check_name("symbol", "x", [])
