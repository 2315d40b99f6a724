"""Port of a venue that accepts orders.

place ──▶ broker order id     accepted (ACKED)
  ├─ VenueRejectedError       declined: nothing was placed
  ├─ RateLimitedError         too many requests: nothing was placed
  ├─ VenueBlockedError        banned by the venue: no orders until the operator resumes
  ├─ UnreachableError         certainly not sent: nothing was placed
  └─ OutcomeUnknownError      may have been placed: find it, never send it again
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from qts.domain import Account, AccountKey, BrokerOrder, Fill, OperationError, OrderRequest


class VenueBlockedError(OperationError):
    """Ban by the venue (HTTP 418); `until` is None if the venue gave no end."""

    def __init__(self, text: str, until: datetime | None = None) -> None:
        super().__init__(text)
        self.until = until


class OrderMatches(msgspec.Struct, frozen=True):
    """Orders of a venue that may be the one whose outcome is unknown.

    `candidates` carry its client order id, or fit it and were placed at about that time.
    `elsewhen` fit it and are dated otherwise, or where the client order id should be they have
    none: not proof of the order, but as long as there is one the order is not proven absent.
    """

    candidates: tuple[BrokerOrder, ...]
    elsewhen: tuple[BrokerOrder, ...] = ()


def match_orders(
    orders: Iterable[BrokerOrder],
    request: OrderRequest,
    between: tuple[datetime, datetime],
    known: frozenset[str],
) -> OrderMatches:
    """Match by symbol, side, type, quantity and price, at a venue without client order ids."""
    first, last = between
    fits = [o for o in orders if o.broker_order_id not in known and is_match(o, request)]
    return OrderMatches(
        tuple(order for order in fits if first <= order.placed_at <= last),
        tuple(order for order in fits if not first <= order.placed_at <= last),
    )


def is_match(order: BrokerOrder, request: OrderRequest) -> bool:
    """Whether the order has the symbol, side, type, quantity and price of the request."""
    requested = (request.symbol, request.side, request.type, request.quantity, request.price)
    return requested == (order.symbol, order.side, order.type, order.quantity, order.price)


class StreamGap(msgspec.Struct, frozen=True):
    """Interruption of the venue stream: reports may be missing, so the caller must reconcile."""

    reason: str


ExecutionReport = Fill | BrokerOrder | StreamGap


class Broker(Protocol):
    name: str
    key: AccountKey  # of the account that takes the orders

    async def place(self, request: OrderRequest) -> str:
        """Send the order once; return the broker order id or raise as drawn above."""
        ...

    async def cancel(self, broker_order_id: str) -> None:
        """Request a cancel; raise VenueRejectedError if nothing is left to cancel."""
        ...

    async def find_order(
        self, request: OrderRequest, sent_at: datetime, known: frozenset[str]
    ) -> OrderMatches:
        """Search the venue's lists, as they are now, for an order that may have been placed.

        `sent_at` is our time: an adapter widens its search by the difference between the clocks.
        `known` holds broker order ids that belong to other attempts, or were known before.
        """
        ...

    async def orders(self, since: datetime) -> Sequence[BrokerOrder]:
        """Return every open order, and every order placed since then by our clock."""
        ...

    async def fills(self, since: datetime) -> Sequence[Fill]:
        """Return every fill since then, oldest first; a fill always has the same trade_id."""
        ...

    async def account(self) -> Account: ...

    def execution_reports(self) -> AsyncIterator[ExecutionReport]:
        """Yield updates of our orders until closed, beginning with a StreamGap."""
        ...
