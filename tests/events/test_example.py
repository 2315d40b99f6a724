"""The first example of the lanes."""

from __future__ import annotations

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "events_first.py"


def test_the_first_example_shows_the_lanes_in_their_order() -> None:
    assert runpy.run_path(str(EXAMPLE))["main"]() == [
        "P0 FILL_CONFIRMED",
        "P1 PRICE_TICK",
        "P2 STRATEGY_EVALUATE",
        "P3 LOG_WRITE",
    ]
