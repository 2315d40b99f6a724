"""Bounds of the database settings."""

from __future__ import annotations

import msgspec
import pytest

from qts.database import DatabaseConfig
from qts.domain import Secret


def test_defaults_are_valid() -> None:
    assert msgspec.convert({}, DatabaseConfig) == DatabaseConfig()


def test_a_url_is_not_printed() -> None:
    assert "canary" not in repr(DatabaseConfig(url=Secret("postgresql://a:canary@b/c")))


def test_a_pool_has_its_minimum_below_its_maximum() -> None:
    with pytest.raises(ValueError, match=r"pool_min \(11\) must not be above pool_max \(10\)"):
        DatabaseConfig(pool_min=11)


@pytest.mark.parametrize(
    "wrong",
    [
        {"pool_min": -1},
        {"pool_max": 0},
        {"connect_timeout_s": 0},
        {"statement_timeout_s": 0},
        {"idle_transaction_timeout_s": 0},
        {"pool_size": 3},
    ],
)
def test_a_value_out_of_bounds_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, DatabaseConfig)
