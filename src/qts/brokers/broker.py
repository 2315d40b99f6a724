"""Port of a venue that accepts orders.

place ──▶ broker order id     accepted (ACKED)
  ├─ VenueRejectedError       declined: nothing was placed
  ├─ RateLimitedError         too many requests: nothing was placed
  ├─ VenueBlockedError        banned by the venue: no orders until the operator resumes
  ├─ UnreachableError         certainly not sent: nothing was placed
  └─ OutcomeUnknownError      may have been placed: find it, never send it again
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
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
    """Result of searching for an order whose outcome is unknown.

    One candidate is the order. None: the venue does not have it. Several: the operator decides.
    """

    candidates: tuple[BrokerOrder, ...]


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
        """Search for an order that may have been placed at about `sent_at`.

        `known` holds broker order ids that belong to other attempts.
        """
        ...

    async def orders(self, since: datetime) -> Sequence[BrokerOrder]:
        """Return every open order, and every order placed since then."""
        ...

    async def fills(self, since: datetime) -> Sequence[Fill]:
        """Return every fill since then, oldest first; a fill always has the same trade_id."""
        ...

    async def account(self) -> Account: ...

    def execution_reports(self) -> AsyncIterator[ExecutionReport]:
        """Yield updates of our orders until closed, beginning with a StreamGap."""
        ...
