"""Quotes of symbols and indices, the same for every venue."""

from __future__ import annotations

from typing import Any

import msgspec


class Quote(msgspec.Struct, frozen=True, gc=False):
    """Last price of a symbol; `volume` accumulates over the day, `raw` is the venue's row.

    0 stands for what the venue did not send.
    """

    symbol: str
    price: float
    volume: float
    bid: float
    ask: float
    raw: dict[str, Any]
    source: str  # kis_rest, kis_ws, upbit_rest, upbit_ws
    at: float = 0.0  # of the last trade by the venue's clock, in seconds since the Unix epoch
    base: float = 0.0  # price that the day's limits are computed from


class IndexQuote(msgspec.Struct, frozen=True, gc=False):
    """Value of an index; `change` is the fraction since the previous close, 0 where unknown."""

    name: str
    value: float
    change: float = 0.0
    is_volatility: bool = False  # an index of volatility, such as VKOSPI
