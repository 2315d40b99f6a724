"""The limits of an account and how much of them is used."""

from __future__ import annotations

from decimal import Decimal
from typing import ClassVar

from qts.cache.value import VER_MAX, Value, are_plain


class Risk(Value, frozen=True, kw_only=True):
    """`risk:<account>`; the one account of a small house is called `account`."""

    kind: ClassVar[str] = "risk"
    prefix: ClassVar[str] = "risk:"
    named_by: ClassVar[str] = "account"
    dated_by: ClassVar[str] = "updated_at"

    account: str = "account"
    exposure_used: Decimal
    daily_pnl: Decimal
    trade_count: int
    remaining_limit: Decimal
    max_exposure_pct: Decimal
    daily_loss_limit: Decimal
    updated_at: int

    def check(self) -> None:
        signed = self.exposure_used, self.daily_pnl, self.remaining_limit, self.daily_loss_limit
        if not are_plain(signed, (self.max_exposure_pct,)):
            self.finite("exposure_used", "daily_pnl", "remaining_limit", "daily_loss_limit")
            self.not_negative("max_exposure_pct")
        if not 0 <= self.trade_count <= VER_MAX:
            self.refuse("trade_count", self.trade_count, "0 or more")
