"""Engines for tests; each is stopped at the end, and every event accounted for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from qts.events import AlertHooks, Catalogue, EventEngine, EventsConfig

MakeEngine = Callable[..., EventEngine]


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    """Makes engines; at the end the conservation law is checked on each of them."""
    made: list[EventEngine] = []
    before = sys.getswitchinterval()

    def make(
        config: EventsConfig | None = None,
        catalogue: Catalogue | None = None,
        hooks: AlertHooks | None = None,
    ) -> EventEngine:
        made.append(EventEngine(config, catalogue, hooks=hooks))
        return made[-1]

    yield make
    for engine in made:
        check_conservation(engine)
        stopped = engine.stop()
        assert stopped.ended, "a handler never returned"
        check_conservation(engine)
    assert sys.getswitchinterval() == before


@pytest.fixture
def engine(make_engine: MakeEngine) -> EventEngine:
    return make_engine()


def check_conservation(engine: EventEngine) -> None:
    for name, lane in engine.status().lanes.items():
        assert lane.balanced, f"{name} has lost count: {lane}"
