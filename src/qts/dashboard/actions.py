"""Actions of operators on the dashboard: what they take, the role that each needs, their log."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from qts.dashboard.session import Operator, Role
from qts.database import Database
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


Outcome = Literal["DONE", "REFUSED", "FAILED"]


class ActionRow(msgspec.Struct, frozen=True):
    """One action of an operator: who, when, what, why and how it ended."""

    id: int
    at: datetime
    actor: str
    role: str
    address: str
    action: str
    target: str
    detail: dict[str, Any]
    outcome: str
    message: str


class ActionLog:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(
        self, operator: Operator, action: str, target: str, detail: Mapping[str, Any]
    ) -> int:
        """Insert the row of an action and return its id; an error here prevents the action."""
        row_id: int = await self._database.fetchval(
            "INSERT INTO dashboard_action (actor, role, address, action, target, detail)"
            " VALUES ($1, $2, $3, $4, $5, $6) RETURNING id",
            operator.actor,
            operator.role.label,
            operator.address,
            action,
            target,
            dict(detail),
        )
        return row_id

    async def end(self, row_id: int, outcome: Outcome, message: str = "") -> None:
        """Store the outcome; the run may have stored that of a manual command before."""
        await self._database.execute(
            "UPDATE dashboard_action SET outcome = $2, message = $3"
            " WHERE id = $1 AND outcome = 'BEGUN'",
            row_id,
            outcome,
            message,
        )

    async def login(self, actor: str, role: str, address: str, outcome: Outcome) -> None:
        await self._database.execute(
            "INSERT INTO dashboard_action (actor, role, address, action, outcome)"
            " VALUES ($1, $2, $3, 'login', $4)",
            actor,
            role,
            address,
            outcome,
        )

    async def rows(self, limit: int, before: int | None = None) -> list[ActionRow]:
        """Return the newest rows first, those before an id if it is given."""
        rows = await self._database.fetch(
            "SELECT id, at, actor, role, address, action, target, detail, outcome, message"
            " FROM dashboard_action WHERE $2::bigint IS NULL OR id < $2 ORDER BY id DESC LIMIT $1",
            limit,
            before,
        )
        return [ActionRow(*row) for row in rows]
