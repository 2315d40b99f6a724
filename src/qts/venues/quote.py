"""Quotes and order books, the same for every venue."""

from __future__ import annotations

from typing import Any

import msgspec


class Quote(msgspec.Struct, frozen=True, gc=False):
    """Last price of a symbol; `volume` accumulates over the day, `raw` is the venue's row."""

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
    """Order book of a symbol, best levels first."""

    symbol: str
    asks: list[BookLevel]
    bids: list[BookLevel]
    raw: dict[str, Any]
