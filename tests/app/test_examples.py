"""The settings that are shipped as examples are settings."""

from __future__ import annotations

from pathlib import Path

from qts.app.account_configs import check_venues, uses_simulated_venue
from qts.config import load

VENUES = Path(__file__).parents[2] / "examples" / "venues"


def test_the_upbit_example_is_on_paper_and_on_the_simulator() -> None:
    config = load(VENUES / "upbit.toml", {})
    check_venues(config)
    assert (config.feed.venue, config.brokers.broker, config.brokers.mode) == (
        "upbit",
        "paper",
        "paper",
    )
    assert uses_simulated_venue(config)
