"""How far an order has come."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import ClassVar

from qts.cache.value import Value, are_plain

_STATUS = re.compile(r"[A-Z][A-Z_]{0,31}")


class OrderStatus(Value, frozen=True, kw_only=True):
    """`ord:<order_id>`."""

    kind: ClassVar[str] = "order"
    prefix: ClassVar[str] = "ord:"
    named_by: ClassVar[str] = "order_id"
    dated_by: ClassVar[str] = "last_update"

    order_id: str
    status: str
    filled_qty: Decimal
    pending_qty: Decimal
    avg_fill_price: Decimal
    last_update: int

    def check(self) -> None:
        if not _STATUS.fullmatch(self.status):
            self.refuse("status", repr(self.status), "a word such as PARTIALLY_FILLED")
        if not are_plain((), (self.filled_qty, self.pending_qty, self.avg_fill_price)):
            self.not_negative("filled_qty", "pending_qty", "avg_fill_price")
