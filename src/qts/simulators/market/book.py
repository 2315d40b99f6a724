"""The order book around a price, computed when asked: same seed, symbol and second, same book."""

from __future__ import annotations

from typing import NamedTuple

from qts.simulators.market.ticks import TickTable

_MASK = (1 << 64) - 1


class SimulatedLevel(NamedTuple):
    price: int
    quantity: int


class SimulatedBook(NamedTuple):
    """Best first on both sides; a side is short or empty where a price limit ends it."""

    asks: tuple[SimulatedLevel, ...]
    bids: tuple[SimulatedLevel, ...]


class BookShape(NamedTuple):
    """What a book is built around."""

    price: int
    at_ask: bool
    """The last trade took an ask; it stands where the price is."""
    lower: int
    upper: int
    size: float
    """A usual quantity on one level."""


def build(table: TickTable, around: BookShape, key: int, levels: int) -> SimulatedBook:
    best_ask = around.price if around.at_ask else around.price + table.tick(around.price)
    best_bid = around.price - table.tick_below(around.price) if around.at_ask else around.price
    asks = [p for p in table.ladder(best_ask, levels, up=True) if p <= around.upper]
    bids = [p for p in table.ladder(best_bid, levels, up=False) if p >= around.lower]
    return SimulatedBook(
        tuple(_level(p, key, depth, around.size) for depth, p in enumerate(asks)),
        tuple(_level(p, ~key, depth, around.size) for depth, p in enumerate(bids)),
    )


def _level(price: int, key: int, depth: int, size: float) -> SimulatedLevel:
    share = 0.25 + 1.5 * noise(key ^ price)
    return SimulatedLevel(price, 1 + int(size * share * (1 + 0.25 * depth)))


def noise(key: int) -> float:
    """A number in [0, 1) that belongs to the key (splitmix64)."""
    z = (key * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) / 2**64
