"""The journal of a run, where one is asked for."""

from __future__ import annotations

from qts.app.venue import Ground
from qts.pipeline import DecisionJournal, JournalHeader
from qts.strategies import load_strategy


def journal_of(ground: Ground) -> DecisionJournal | None:
    """One file for each run, named after its beginning."""
    config, _, clock = ground
    pipeline, began = config.pipeline, clock.now()
    if pipeline.journal is None:
        return None
    strategies = {name: pipeline.params_of(load_strategy(name).key) for name in pipeline.strategies}
    header = JournalHeader(began, strategies, config.risk.limits.exact)
    return DecisionJournal(pipeline.journal / f"{began:%Y%m%dT%H%M%S.%f}.journal", header)
