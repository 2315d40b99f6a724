"""Actions of operators on the dashboard: decoded, authorised, logged, then performed.

No action sends an order. They act on a run through the kill switch, the fail-safe, the outbox and
the parameters of strategies.
"""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, ClassVar
from uuid import UUID

import msgspec
from msgspec import Meta

from qts.dashboard.action_log import ActionLog
from qts.dashboard.live_status import LiveStatus, StrategyStatus
from qts.dashboard.session import LoginSession
from qts.dashboard.tokens import Role
from qts.database import Database
from qts.domain import AccountKey, OperationError, RefusedError, name_choices
from qts.events import DeadLetterAdmin
from qts.notify import address_hash, subscribe, unsubscribe
from qts.orders import Reconcile as ReconcileCommand
from qts.outbox import TRADE_COMMAND, OutboxAdmin, OutboxConfig, OutboxEvent, PostgresBus
from qts.risk import FailSafe, KillSwitch

_BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (operator.ge, "at least"),
    "maximum": (operator.le, "at most"),
    "exclusiveMinimum": (operator.gt, "above"),
    "exclusiveMaximum": (operator.lt, "below"),
}
_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "boolean": (bool,),
}


def validate_params(
    params: Mapping[str, Any], fields: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the parameters; raise RefusedError if one does not match its JSON schema."""
    for name, value in params.items():
        if name not in fields:
            raise RefusedError(f"unknown parameter {name!r}; expected one of {', '.join(fields)}")
        _check(name, value, fields[name])
    return dict(params)


def _check(name: str, value: Any, field: Mapping[str, Any]) -> None:
    kind = field.get("type")
    allowed = _TYPES.get(kind) if isinstance(kind, str) else None
    if allowed is not None:
        is_wrong_bool = isinstance(value, bool) and kind != "boolean"
        if is_wrong_bool or not isinstance(value, allowed):
            raise RefusedError(f"{name} is {value!r}; expected {kind}")
    for bound, (holds, text) in _BOUNDS.items():
        if bound in field and not holds(value, field[bound]):
            raise RefusedError(f"{name} is {value!r}; expected {text} {field[bound]}")
    if "enum" in field and value not in field["enum"]:
        raise RefusedError(f"{name} is {value!r}; expected one of {field['enum']}")


Reason = Annotated[str, Meta(min_length=1, max_length=500)]
LiveNow = Callable[[], Awaitable[LiveStatus | None]]

_SET_PARAMS = (
    "INSERT INTO strategy_params (strategy_key, params, changed_by) VALUES ($1, $2, $3)"
    " ON CONFLICT (strategy_key) DO UPDATE SET params = strategy_params.params || $2,"
    " version = strategy_params.version + 1, changed_by = $3, changed_at = clock_timestamp()"
)


class ForbiddenError(RefusedError):
    """Action that the role does not permit."""


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
    strategy: Annotated[str, Meta(min_length=1, max_length=100)] | None = None

    @property
    def target(self) -> str:
        return self.strategy or "account"


class ReleaseAction(Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="release"):
    """Release the fail-safe from FAIL or LOCKDOWN."""

    role: ClassVar[Role] = Role.ADMIN
    reason: Reason


class ReconcileAction(
    Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="reconcile"
):
    """Reconcile the ledger with the venue now."""


class RequeueAction(Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="requeue"):
    """Requeue a dead outbox event with new attempts."""

    event_id: UUID
    outcome_checked: bool = False

    @property
    def target(self) -> str:
        return str(self.event_id)


class ReplayAction(Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="replay"):
    """Publish a dead letter of a lane again."""

    number: Annotated[int, Meta(ge=1)]

    @property
    def target(self) -> str:
        return str(self.number)


class SetParamsAction(Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="params"):
    """Set parameters of a running strategy."""

    strategy: Annotated[str, Meta(min_length=1, max_length=100)]
    params: Annotated[dict[str, Any], Meta(min_length=1, max_length=100)]

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


_DECODER = msgspec.json.Decoder(
    KillSwitchAction
    | ReleaseAction
    | ReconcileAction
    | RequeueAction
    | ReplayAction
    | SetParamsAction
    | SubscribePushAction
    | UnsubscribePushAction
)


def decode(body: bytes) -> Action:
    try:
        action: Action = _DECODER.decode(body)
    except msgspec.DecodeError as error:
        raise RefusedError(f"invalid action: {error}") from None
    return action


class ActionService:
    """Actions on one account."""

    def __init__(self, database: Database, account: AccountKey, live: LiveNow) -> None:
        self._database = database
        self._account = account
        self._live = live
        self._log = ActionLog(database)

    async def perform(self, action: Action, session: LoginSession, address: str) -> str:
        """Perform an action and return a message for the page."""
        fields = action.log_fields
        name = fields["action"]
        row_id = await self._log.begin(session, address, name, action.target, fields)
        try:
            if session.role < action.role:
                raise ForbiddenError(
                    f"{name} needs the role {action.role.label}, not {session.role.label}"
                )
            message = await self._perform(action, session.actor)
        except RefusedError as error:
            await self._log.end(row_id, "REFUSED", str(error))
            raise
        except OperationError as error:
            await self._log.end(row_id, "FAILED", str(error))
            raise
        await self._log.end(row_id, "DONE", message)
        return message

    async def _perform(self, action: Action, actor: str) -> str:
        database = self._database
        match action:
            case KillSwitchAction(enabled=enabled, reason=reason, strategy=strategy):
                switch = KillSwitch(database, self._account)
                if strategy is not None:
                    running = await self._running()
                    await switch.check_strategy(strategy, lambda: running)
                await switch.set(enabled, actor, reason, strategy)
                return f"{action.target} {'may trade' if enabled else 'is stopped'}"
            case ReleaseAction(reason=reason):
                released = await FailSafe(database, self._account).release(actor, reason)
                return f"the fail-safe is {released.state}"
            case ReconcileAction():
                return await self._reconcile()
            case RequeueAction(event_id=event_id, outcome_checked=was_checked):
                row = await OutboxAdmin(database).requeue(event_id, outcome_checked=was_checked)
                return f"event {event_id} is {row.status}"
            case ReplayAction(number=number):
                letter = await DeadLetterAdmin(database).request_replay(number)
                return f"dead letter {number} is {letter.state}"
            case SetParamsAction():
                return await self._set_params(action, actor)
            case SubscribePushAction(subscription=subscription):
                name = await subscribe(database, msgspec.json.encode(subscription))
                return f"browser {name} receives orders and critical alerts"
            case UnsubscribePushAction(endpoint=endpoint):
                found = await unsubscribe(database, endpoint)
                return f"browser {action.target} is {'unsubscribed' if found else 'unknown'}"
        raise AssertionError(f"{action} is not handled")

    async def _reconcile(self) -> str:
        event = OutboxEvent.of(
            TRADE_COMMAND, ReconcileCommand(), ("Books", "all"), account=self._account
        )
        async with (
            PostgresBus.open(self._database, OutboxConfig().streams) as bus,
            self._database.transaction() as tx,
        ):
            await bus.publish(tx, event)
        return "reconciliation requested"

    async def _running(self) -> dict[str, StrategyStatus]:
        """Return the strategies of the running QTS by key; none if there is no run."""
        live = await self._live()
        return {each.key: each for each in live.strategies} if live else {}

    async def _set_params(self, action: SetParamsAction, actor: str) -> str:
        running = await self._running()
        if action.strategy not in running:
            raise RefusedError(
                f"strategy {action.strategy} is not running; running:"
                f" {name_choices(action.strategy, running)}"
            )
        params = validate_params(action.params, running[action.strategy].fields)
        await self._database.execute(_SET_PARAMS, action.strategy, params, actor)
        text = ", ".join(f"{name} = {value}" for name, value in params.items())
        return f"{action.strategy}: {text}"
