"""A quote as any venue gives it."""

from __future__ import annotations

from typing import Any

import msgspec


class Quote(msgspec.Struct, frozen=True, gc=False):
    """The last price of a symbol; volume runs up over the day. `raw` is what the venue said."""

    symbol: str
    price: float
    volume: float
    bid: float
    ask: float
    raw: dict[str, Any]
    source: str  # kis_rest, kis_ws, upbit_rest, upbit_ws


class BookLevel(msgspec.Struct, frozen=True, gc=False):
    price: float
    quantity: float


class OrderBook(msgspec.Struct, frozen=True):
    """An order book, best levels first."""

    symbol: str
    asks: list[BookLevel]
    bids: list[BookLevel]
    raw: dict[str, Any]
