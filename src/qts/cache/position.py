"""What is held of a symbol."""

from __future__ import annotations

from decimal import Decimal
from typing import ClassVar

from qts.cache.value import Value, are_plain


class Position(Value, frozen=True, kw_only=True):
    """`pos:<symbol>`. A negative quantity is a short position."""

    kind: ClassVar[str] = "position"
    prefix: ClassVar[str] = "pos:"
    named_by: ClassVar[str] = "symbol"
    dated_by: ClassVar[str] = "updated_at"

    symbol: str
    qty: Decimal
    avg_price: Decimal
    unrealized_pnl: Decimal
    exposure_pct: Decimal
    updated_at: int

    def check(self) -> None:
        signed = self.qty, self.unrealized_pnl, self.exposure_pct
        if not are_plain(signed, (self.avg_price,)):
            self.finite("qty", "unrealized_pnl", "exposure_pct")
            self.not_negative("avg_price")
