"""The port: a venue that takes orders.

place ──▶ the venue's name of the order (ACKED)
  ├─ Rejected        declined: nothing was placed
  ├─ Throttled       too many requests: nothing was placed
  ├─ Blocked         the venue has shut us out: stop everything until a person resumes
  ├─ Unreachable     it certainly did not leave: nothing was placed
  └─ OutcomeUnknown  it may have been placed: look for it, never send it again
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from qts.domain import Account, BrokerOrder, Fill, OperationError, OrderRequest


class VenueBlockedError(OperationError):
    """The venue answers nothing any more (HTTP 418); `until` when it said for how long."""

    def __init__(self, text: str, until: datetime | None = None) -> None:
        super().__init__(text)
        self.until = until


class OrderMatches(msgspec.Struct, frozen=True):
    """What looking for an order whose outcome is unknown has shown.

    One candidate: that is it. None: the venue does not have it. Several: a person must choose.
    """

    candidates: tuple[BrokerOrder, ...]


class StreamGap(msgspec.Struct, frozen=True):
    """The stream was interrupted: what happened meanwhile has to be asked for."""

    reason: str


ExecutionReport = Fill | BrokerOrder | StreamGap


class Broker(Protocol):
    name: str

    async def place(self, request: OrderRequest) -> str:
        """The venue's name of the order; errors as drawn above."""
        ...

    async def cancel(self, order_id: str) -> None:
        """Ask for it; Rejected when there is nothing left to cancel."""
        ...

    async def find_order(
        self, request: OrderRequest, sent_at: datetime, known: frozenset[str]
    ) -> OrderMatches:
        """Look for an order that may have been placed at about `sent_at`.

        `known` are names of orders that belong to other attempts and cannot be this one.
        """
        ...

    async def orders(self, since: datetime) -> Sequence[BrokerOrder]:
        """Every open order, and what was placed since then."""
        ...

    async def fills(self, since: datetime) -> Sequence[Fill]:
        """Every fill since then, oldest first; the same fill always has the same trade_id."""
        ...

    async def account(self) -> Account: ...

    def execution_reports(self) -> AsyncIterator[ExecutionReport]:
        """What happens to our orders, as it happens; ends only when closed."""
        ...
