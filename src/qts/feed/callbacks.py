"""What a feed delivers besides records: ticks, order books, index values and volume surges."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from qts.domain import OrderBook, Tick
from qts.feed.surge import Surge
from qts.venues import IndexQuote


def ignore(_value: object) -> None:
    """Take a value that nothing is done with."""


class FeedCallbacks(NamedTuple):
    """Consumers of a feed, called on its event loop; what is not given is ignored."""

    on_tick: Callable[[Tick], None] = ignore
    on_book: Callable[[OrderBook], None] = ignore
    on_index: Callable[[IndexQuote], None] = ignore
    on_volume: Callable[[Surge], None] = ignore  # the volume's rate passed `feed.volume_ratio`
    on_surge: Callable[[Surge], None] = ignore  # a burst starts
