"""Spans of a tick's way through a strategy: which ones follow which.

    span       follows the span before it by
    tick
    strategy   symbol and time of the tick
    gate       the id of the signal
    commit     (runs inside gate)
    request    the id of the intent
    fill       the id of the intent

A tick that is not sampled has no span; what it leads to has: the trace of such an order starts with
`strategy`, that of an exit of the stops with `gate`. Ticks, signals and proposals carry nothing of
a trace, so that a journaled decision is the same with traces and without.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from qts import telemetry
from qts.domain import Tick
from qts.pipeline.steps import signal_id_of
from qts.strategies import Instruction, Signal


def tick_key(tick: Tick) -> Hashable:
    """Return what the span of a tick is remembered under."""
    return tick.symbol, tick.at


def trace_call(
    strategy_key: str, returned: Sequence[Instruction], began_ns: int, source: object = None
) -> None:
    """Record a call that ends now, where it returned signals or its `source` is a sampled tick."""
    signals = [each for each in returned if isinstance(each, Signal)]
    before = tick_key(source) if isinstance(source, Tick) else None
    if not signals and not telemetry.trace_id_of(before):
        return
    with telemetry.span(
        "strategy", follows=before, began_ns=began_ns, strategy=strategy_key, signals=len(signals)
    ) as call:
        for signal in signals:
            call.remember(signal_id_of(strategy_key, signal))
