"""What can be done here, by whom: each action is a value, checked, written down, then done.

Nothing here sends an order. What trades is told through the switches, the fail-safe and the bus.

Parameters of a strategy held against what the strategy says of them, before they are set.
"""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, ClassVar
from uuid import UUID

import msgspec
from msgspec import Meta

from qts.dashboard.action_log import ActionLog
from qts.dashboard.live_status import LiveStatus
from qts.dashboard.session import LoginSession
from qts.dashboard.tokens import Role
from qts.database import Database
from qts.domain import OperationError, RefusedError
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
    """The same, or refused with the name, the value and what is allowed."""
    for name, value in params.items():
        if name not in fields:
            raise RefusedError(f"there is no parameter {name!r}; there are {', '.join(fields)}")
        _check(name, value, fields[name])
    return dict(params)


def _check(name: str, value: Any, field: Mapping[str, Any]) -> None:
    kind = field.get("type")
    allowed = _TYPES.get(kind) if isinstance(kind, str) else None
    if allowed is not None:
        is_wrong_bool = isinstance(value, bool) and kind != "boolean"
        if is_wrong_bool or not isinstance(value, allowed):
            raise RefusedError(f"{name} must be a {kind}, not {value!r}")
    for bound, (holds, words) in _BOUNDS.items():
        if bound in field and not holds(value, field[bound]):
            raise RefusedError(f"{name} must be {words} {field[bound]}, not {value!r}")
    if "enum" in field and value not in field["enum"]:
        raise RefusedError(f"{name} must be one of {field['enum']}, not {value!r}")


Reason = Annotated[str, Meta(min_length=1, max_length=500)]
LiveNow = Callable[[], Awaitable[LiveStatus | None]]

_SET_PARAMS = (
    "INSERT INTO strategy_params (strategy_key, params, changed_by) VALUES ($1, $2, $3)"
    " ON CONFLICT (strategy_key) DO UPDATE SET params = strategy_params.params || $2,"
    " version = strategy_params.version + 1, changed_by = $3, changed_at = clock_timestamp()"
)


class ForbiddenError(RefusedError):
    """The role does not reach that far."""


class Action(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="action"
):
    role: ClassVar[Role] = Role.TRADE

    @property
    def target(self) -> str:
        return ""

    @property
    def written(self) -> dict[str, Any]:
        """What the book says of it."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields


class KillSwitchAction(Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="kill"):
    """Stop, or allow again: the account, or one strategy."""

    enabled: bool
    reason: Reason
    strategy: Annotated[str, Meta(min_length=1, max_length=100)] | None = None

    @property
    def target(self) -> str:
        return self.strategy or "account"


class ReleaseAction(Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="release"):
    """A person has looked: FAIL or LOCKDOWN ends."""

    role: ClassVar[Role] = Role.ADMIN
    reason: Reason


class ReconcileAction(
    Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="reconcile"
):
    """Compare the books with the broker's now."""


class RequeueAction(Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="requeue"):
    """New attempts for a dead letter of the bus."""

    event_id: UUID
    outcome_checked: bool = False

    @property
    def target(self) -> str:
        return str(self.event_id)


class ReplayAction(Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="replay"):
    """Publish a dead letter of the lanes again."""

    number: Annotated[int, Meta(ge=1)]

    @property
    def target(self) -> str:
        return str(self.number)


class SetParamsAction(Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="params"):
    """Other parameters for a strategy that runs."""

    strategy: Annotated[str, Meta(min_length=1, max_length=100)]
    params: Annotated[dict[str, Any], Meta(min_length=1, max_length=100)]

    @property
    def target(self) -> str:
        return self.strategy


class SubscribePushAction(
    Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="subscribe"
):
    """Web push to this browser; what its PushSubscription.toJSON() says."""

    subscription: Annotated[dict[str, Any], Meta(max_length=10)]

    @property
    def target(self) -> str:
        return address_hash(str(self.subscription.get("endpoint", "")))

    @property
    def written(self) -> dict[str, Any]:
        return {"action": "subscribe"}  # the rest is as good as a password


class UnsubscribePushAction(
    Action, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="unsubscribe"
):
    """No more web push to a browser."""

    endpoint: Annotated[str, Meta(min_length=1, max_length=2000)]

    @property
    def target(self) -> str:
        return address_hash(self.endpoint)

    @property
    def written(self) -> dict[str, Any]:
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
        raise RefusedError(f"the action is not understood: {error}") from None
    return action


class ActionService:
    def __init__(self, database: Database, live: LiveNow) -> None:
        self._database = database
        self._live = live
        self._audit = ActionLog(database)

    async def do(self, action: Action, session: LoginSession, address: str) -> str:
        """Answers what was done, in a sentence."""
        fields = action.written
        name = fields["action"]
        number = await self._audit.begin(session, address, name, action.target, fields)
        try:
            if session.role < action.role:
                raise ForbiddenError(
                    f"{name} needs the role {action.role.word}, not {session.role.word}"
                )
            said = await self._done(action, session.actor)
        except RefusedError as error:
            await self._audit.end(number, "REFUSED", str(error))
            raise
        except OperationError as error:
            await self._audit.end(number, "FAILED", str(error))
            raise
        await self._audit.end(number, "DONE", said)
        return said

    async def _done(self, action: Action, actor: str) -> str:
        database = self._database
        match action:
            case KillSwitchAction(enabled=enabled, reason=reason, strategy=strategy):
                await KillSwitch(database).set(enabled, actor, reason, strategy)
                return f"{action.target} {'may trade' if enabled else 'is stopped'}"
            case ReleaseAction(reason=reason):
                return f"the fail-safe is {(await FailSafe(database).release(actor, reason)).state}"
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
                return f"browser {name} is told of orders and critical alerts"
            case UnsubscribePushAction(endpoint=endpoint):
                known = await unsubscribe(database, endpoint)
                return f"browser {action.target} is {'told no more' if known else 'not known'}"
        raise AssertionError(f"{action} has no deed")

    async def _reconcile(self) -> str:
        event = OutboxEvent.of(TRADE_COMMAND, ReconcileCommand(), ("Books", "all"))
        async with (
            PostgresBus.open(self._database, OutboxConfig().streams) as bus,
            self._database.transaction() as tx,
        ):
            await bus.publish(tx, event)
        return "the books will be compared with the broker's"

    async def _set_params(self, action: SetParamsAction, actor: str) -> str:
        live = await self._live()
        running = {each.key: each for each in live.strategies} if live else {}
        if action.strategy not in running:
            known = ", ".join(running) or "none"
            raise RefusedError(f"strategy {action.strategy} does not run; running: {known}")
        wanted = validate_params(action.params, running[action.strategy].fields)
        await self._database.execute(_SET_PARAMS, action.strategy, wanted, actor)
        words = ", ".join(f"{name} = {value}" for name, value in wanted.items())
        return f"{action.strategy}: {words}"
