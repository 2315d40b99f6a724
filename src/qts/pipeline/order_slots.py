"""Slots that orders occupy while they are in flight: a strategy, a symbol and a side."""

from __future__ import annotations

from qts.domain import FILL_AT_ONCE, OrderType, Side
from qts.pipeline.evaluate import contradict
from qts.risk import OrderProposal
from qts.strategies import Signal

OrderSlot = tuple[str, str, Side]  # of a strategy and a symbol


def slots_of(key: str, order: Signal | OrderProposal) -> set[OrderSlot]:
    symbol = symbol_of(order)
    return {(key, symbol, side) for side in sides_in_flight(order)}


def sides_in_flight(order: Signal | OrderProposal) -> tuple[Side, ...]:
    """Return the sides of its symbol that an order occupies; one that may rest its own alone.

    A stop order occupies none: it trades later, if at all.
    """
    if getattr(order, "trigger", None) is not None:
        return ()
    is_limit = getattr(order, "type", None) is OrderType.LIMIT
    rests = is_limit and order.time_in_force not in FILL_AT_ONCE
    return (order.side,) if rests else (Side.BUY, Side.SELL)


def one_of_each(signals: list[Signal]) -> list[Signal]:
    """Return the latest signal per symbol and side; an exit displaces entries that contradict it.

    Two entries of opposite sides stay: both are refused (GR030).
    """
    exits = [each for each in signals if _is_exit(each)]
    kept = [
        each
        for each in signals
        if _is_exit(each) or not any(_excludes(exiting, each) for exiting in exits)
    ]
    return list({(symbol_of(each), getattr(each, "side", None)): each for each in kept}.values())


def symbol_of(signal: Signal | OrderProposal) -> str:
    """Return its symbol; a later step refuses what is not a signal."""
    return getattr(signal, "symbol", "")


def _excludes(exiting: Signal, entry: Signal) -> bool:
    if exiting.symbol != symbol_of(entry) or not isinstance(entry, Signal):
        return False
    return exiting.side is entry.side or contradict((exiting, entry))


def _is_exit(signal: Signal) -> bool:
    return getattr(getattr(signal, "intent_type", None), "is_exit", False)
