"""Order book around a price, computed on demand: same seed, symbol and second, same book."""

from __future__ import annotations

from typing import NamedTuple

from qts.simulators.market.ticks import TickTable

_MASK = (1 << 64) - 1


class SimulatedLevel(NamedTuple):
    price: int
    quantity: int


class SimulatedBook(NamedTuple):
    """Order book, best levels first; a side is short or empty at a price limit."""

    asks: tuple[SimulatedLevel, ...]
    bids: tuple[SimulatedLevel, ...]


class BookShape(NamedTuple):
    """Parameters of an order book."""

    price: int
    at_ask: bool
    """Whether the last trade was at the ask, which is then the best ask."""
    lower: int
    upper: int
    size: float
    """Usual quantity of one level."""
    gap: int = 0
    """Levels next to the last price that are empty on both sides."""


def build(table: TickTable, shape: BookShape, key: int, levels: int) -> SimulatedBook:
    gap = shape.gap
    best_ask = shape.price if shape.at_ask else shape.price + table.tick(shape.price)
    best_bid = shape.price - table.tick_below(shape.price) if shape.at_ask else shape.price
    asks = [p for p in table.prices_from(best_ask, levels + gap, up=True)[gap:] if p <= shape.upper]
    bids = [
        p for p in table.prices_from(best_bid, levels + gap, up=False)[gap:] if p >= shape.lower
    ]
    return SimulatedBook(
        tuple(_level(p, key, depth, shape.size) for depth, p in enumerate(asks)),
        tuple(_level(p, ~key, depth, shape.size) for depth, p in enumerate(bids)),
    )


def _level(price: int, key: int, depth: int, size: float) -> SimulatedLevel:
    share = 0.25 + 1.5 * noise(key ^ price)
    return SimulatedLevel(price, 1 + int(size * share * (1 + 0.25 * depth)))


def noise(key: int) -> float:
    """Return a number in [0, 1) that is a function of the key (splitmix64)."""
    z = (key * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) / 2**64
