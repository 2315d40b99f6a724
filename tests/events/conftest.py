"""Engines for tests; each is stopped and checked at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from qts.events import Catalogue, EventEngine, EventsConfig, LaneAlert, log_alert

MakeEngine = Callable[..., EventEngine]


def codes_into(codes: list[str]) -> Callable[[LaneAlert], None]:
    """Return a callback that keeps the fail-safe codes of alerts."""

    def keep(alert: LaneAlert) -> None:
        if alert.kind == "fail_safe":
            codes.append(alert.code)

    return keep


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    """Create engines; at the end, check that each has counted every event once."""
    engines: list[EventEngine] = []
    before = sys.getswitchinterval()

    def make(
        config: EventsConfig | None = None,
        catalogue: Catalogue | None = None,
        on_alert: Callable[[LaneAlert], None] = log_alert,
    ) -> EventEngine:
        engines.append(EventEngine(config, catalogue, on_alert=on_alert))
        return engines[-1]

    yield make
    for engine in engines:
        check_conservation(engine)
        report = engine.stop()
        assert report.ended, "a handler did not return"
        check_conservation(engine)
    assert sys.getswitchinterval() == before


@pytest.fixture
def engine(make_engine: MakeEngine) -> EventEngine:
    return make_engine()


def check_conservation(engine: EventEngine) -> None:
    for name, lane in engine.status().lanes.items():
        assert lane.balanced, f"{name} is not balanced: {lane}"
