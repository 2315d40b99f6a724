"""Upbit error replies and number formats."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from aiohttp import web

from qts.simulators.market.ticks import COIN
from qts.simulators.server import reply


class UpbitError(Exception):
    """Error reply with an HTTP status and a name."""

    def __init__(self, status: int, name: str | int, message: str = "") -> None:
        self.status = status
        self.name = name
        self.message = message or str(name)
        super().__init__(self.message)

    def reply(self) -> web.Response:
        return reply({"error": {"name": self.name, "message": self.message}}, self.status)


def text(amount: int) -> str:
    """Format an integer of 1/COIN as the REST API does: 0.01, 100000000."""
    whole, part = divmod(abs(amount), COIN)
    sign = "-" if amount < 0 else ""
    return f"{sign}{whole}.{part:08}".rstrip("0").rstrip(".")


def number(amount: int) -> float | int:
    """Convert an integer of 1/COIN to the number of the quotation API and the streams."""
    return amount // COIN if amount % COIN == 0 else amount / COIN


def amount_of(value: object, error: str) -> int:
    """Parse a client's number to 1/COIN; raise UpbitError for more than eight decimals."""
    try:
        scaled = Decimal(str(value)) * COIN
    except InvalidOperation:
        raise UpbitError(400, error, f"{value!r} is not a number") from None
    if not scaled.is_finite() or scaled != scaled.to_integral_value() or scaled <= 0:
        raise UpbitError(400, error, f"{value!r} is not a positive number of eight decimals")
    return int(scaled)
