"""What the matching engine needs of a market."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from qts.simulators.market.book import Book

State = Literal["continuous", "auction", "closed"]


class Trade(NamedTuple):
    price: int
    quantity: int
    crossed: bool
    """An auction's single price."""


class Tradable(Protocol):
    @property
    def time(self) -> int: ...

    def state(self, index: int) -> State: ...

    def book(self, index: int) -> Book: ...

    def last_trade(self, index: int) -> Trade | None: ...
