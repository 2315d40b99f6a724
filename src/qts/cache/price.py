"""The best bid, ask and last price of a symbol."""

from __future__ import annotations

from decimal import Decimal
from typing import ClassVar

from qts.cache.value import Value, are_plain


class Price(Value, frozen=True, kw_only=True):
    """`price:<symbol>`. 0 stands for a side that is empty, as at a price limit."""

    kind: ClassVar[str] = "price"
    prefix: ClassVar[str] = "price:"
    named_by: ClassVar[str] = "symbol"
    dated_by: ClassVar[str] = "timestamp"

    symbol: str
    bid: Decimal
    ask: Decimal
    last: Decimal
    volume: Decimal
    timestamp: int

    def check(self) -> None:
        if not are_plain((), (self.bid, self.ask, self.last, self.volume)):
            self.not_negative("bid", "ask", "last", "volume")
