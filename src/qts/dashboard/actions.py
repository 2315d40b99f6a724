"""Actions of operators on the dashboard: what they take, and the role that each needs."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, ClassVar
from uuid import UUID

import msgspec
from msgspec import Meta

from qts.dashboard.decoding import decode_body
from qts.dashboard.session import Role
from qts.domain import Side
from qts.notify import address_hash

Reason = Annotated[str, Meta(min_length=1, max_length=500)]
Note = Annotated[str, Meta(max_length=500)]  # the reason where the page asks for none
Name = Annotated[str, Meta(min_length=1, max_length=100)]
RowId = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class Action(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="action"
):
    role: ClassVar[Role] = Role.TRADE

    @property
    def target(self) -> str:
        return ""

    @property
    def log_fields(self) -> dict[str, Any]:
        """Return the fields that the action log stores."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields


class KillSwitchAction(Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="kill"):
    """Stop or allow trading of the account or of one strategy."""

    enabled: bool
    reason: Reason
    strategy: Name | None = None

    @property
    def target(self) -> str:
        return self.strategy or "account"


class ReleaseAction(Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="release"):
    """Release the fail-safe from FAIL or LOCKDOWN."""

    role: ClassVar[Role] = Role.ADMIN
    reason: Reason


class CancelOrderAction(
    Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="cancel"
):
    """Cancel what is left of an order."""

    intent_id: UUID
    reason: Reason

    @property
    def target(self) -> str:
        return str(self.intent_id)


class PlaceOrderAction(Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="place"):
    """Place an order; one with a known `id` returns the outcome of the first."""

    id: UUID
    symbol: Name
    side: Side
    quantity: Decimal
    price: Decimal | None = None  # None: at the market
    reason: Note = ""
    account: str | None = None  # None: the only one

    @property
    def target(self) -> str:
        return self.symbol


class ClosePositionsAction(
    Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="close"
):
    """Cancel the open orders of a symbol and sell what is held; without a symbol, of all."""

    id: UUID
    reason: Reason
    symbol: Name | None = None
    account: str | None = None  # None: all

    @property
    def target(self) -> str:
        return self.symbol or "all"


class AcknowledgeAlertsAction(
    Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="acknowledge"
):
    """Acknowledge alerts, all that are open without `ids`."""

    ids: Annotated[list[RowId], Meta(min_length=1, max_length=1000)] | None = None
    reason: Note = ""

    @property
    def target(self) -> str:
        return " ".join(map(str, self.ids)) if self.ids else "all"


class ReconcileAction(
    Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="reconcile"
):
    """Reconcile the ledger with the venue now."""

    reason: Note = ""


class RequeueAction(Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="requeue"):
    """Requeue a dead outbox event with new attempts."""

    event_id: UUID
    outcome_checked: bool = False
    reason: Note = ""

    @property
    def target(self) -> str:
        return str(self.event_id)


class ReplayAction(Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="replay"):
    """Publish a dead letter of a lane again."""

    number: RowId
    reason: Note = ""

    @property
    def target(self) -> str:
        return str(self.number)


class SetParamsAction(Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="params"):
    """Set parameters of a running strategy."""

    strategy: Name
    params: Annotated[dict[str, Any], Meta(min_length=1, max_length=100)]
    reason: Note = ""

    @property
    def target(self) -> str:
        return self.strategy


class SubscribePushAction(
    Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="subscribe"
):
    """Subscribe a browser to web push, with its PushSubscription.toJSON()."""

    subscription: Annotated[dict[str, Any], Meta(max_length=10)]

    @property
    def target(self) -> str:
        return address_hash(str(self.subscription.get("endpoint", "")))

    @property
    def log_fields(self) -> dict[str, Any]:
        return {"action": "subscribe"}  # the subscription is a credential


class UnsubscribePushAction(
    Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="unsubscribe"
):
    """End web push to a browser."""

    endpoint: Annotated[str, Meta(min_length=1, max_length=2000)]

    @property
    def target(self) -> str:
        return address_hash(self.endpoint)

    @property
    def log_fields(self) -> dict[str, Any]:
        return {"action": "unsubscribe"}


AnyAction = (
    KillSwitchAction
    | ReleaseAction
    | CancelOrderAction
    | PlaceOrderAction
    | ClosePositionsAction
    | AcknowledgeAlertsAction
    | ReconcileAction
    | RequeueAction
    | ReplayAction
    | SetParamsAction
    | SubscribePushAction
    | UnsubscribePushAction
)


def decode(body: bytes) -> Action:
    action: Action = decode_body(body, AnyAction)
    return action
