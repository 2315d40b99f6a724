"""Durations such as 500ms, 5s, 2m."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.domain import RefusedError, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("5s", 5),
        ("5", 5),
        ("1.5h", 5400),
        ("2m", 120),
        ("1d", 86400),
        (" 90s ", 90),
    ],
)
def test_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


ARABIC_FIVE = chr(0x665)
REFUSED = [
    *(
        "0",
        "0s",
        "-5s",
        "s",
        "5x",
        "5S",
        "1e3s",
        "nan",
        "inf",
        "1.s",
        ".5s",
        "1,5s",
        "5m30s",
        "0x10",
    ),
    *("", " ", "5 s", "5s\n5s", "9" * 400, f"{ARABIC_FIVE}s"),
]


@pytest.mark.parametrize("text", REFUSED)
def test_anything_else_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        parse_duration(text)
    assert repr(text) in str(refusal.value)
    assert "ms, s, m, h or d" in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1
    assert refusal.value.exit_code == 2


@given(st.integers(1, 10**9))
def test_milliseconds_are_exact(number: int) -> None:
    assert parse_duration(f"{number}ms") == number / 1000
    assert parse_duration(f"{number}m") == number * 60


@given(st.text(max_size=20))
def test_any_text_is_a_positive_duration_or_refused(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except RefusedError:
        return
    assert 0 < seconds < math.inf
