"""Performing of actions: authorised, logged, then carried out.

They act on a run through the kill switch, the fail-safe, cancels, manual commands, the outbox and
the parameters of strategies. The command line and programs perform them here, too.
"""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from qts.dashboard.actions import (
    AcknowledgeAlertsAction,
    Action,
    ActionLog,
    CancelOrderAction,
    ClosePositionsAction,
    KillSwitchAction,
    PlaceOrderAction,
    ReconcileAction,
    ReleaseAction,
    ReplayAction,
    RequeueAction,
    SetParamsAction,
    SubscribePushAction,
    UnsubscribePushAction,
)
from qts.dashboard.live_status import LiveStatus, StrategyStatus
from qts.dashboard.manual_orders import (
    CommandOrigin,
    ManualOrderError,
    ManualOrderService,
    outcome_text,
)
from qts.dashboard.session import Operator
from qts.database import Database
from qts.domain import AccountKey, OperationError, RefusedError, name_choices
from qts.events import DeadLetterAdmin
from qts.notify import AlertStore, subscribe, unsubscribe
from qts.orders import ManualCommand, OrderManager, OutcomePendingError, PlaceOrder
from qts.orders import Reconcile as ReconcileCommand
from qts.outbox import TRADE_COMMAND, OutboxAdmin, OutboxEvent, PostgresBus, StreamConfig
from qts.risk import FailSafe, KillSwitch, SafetyState

LiveNow = Callable[[], Awaitable[LiveStatus | None]]

_SET_PARAMS = (
    "INSERT INTO strategy_params (strategy_key, params, changed_by) VALUES ($1, $2, $3)"
    " ON CONFLICT (strategy_key) DO UPDATE SET params = strategy_params.params || $2,"
    " version = strategy_params.version + 1, changed_by = $3, changed_at = clock_timestamp()"
)


_ORDER_ACCOUNT = (
    "SELECT broker, account FROM order_intent WHERE id = $1"
    " UNION ALL SELECT broker, account FROM stop_order WHERE id = $1 AND triggered_at IS NULL"
)
_STOPPED = (SafetyState.FAIL, SafetyState.LOCKDOWN)


_BY_ACCOUNT = (
    AcknowledgeAlertsAction,
    CancelOrderAction,
    ClosePositionsAction,
    KillSwitchAction,
    PlaceOrderAction,
    ReconcileAction,
    ReleaseAction,
)


class ForbiddenError(RefusedError):
    """Action that the role does not permit."""


class ActionResult(msgspec.Struct, frozen=True):
    """What was done, as a message, and the manual commands of the action."""

    message: str
    commands: Sequence[ManualCommand] = ()


class ActionService:
    """Actions on the accounts of a run; `live` reads its status, None where nobody does."""

    def __init__(
        self,
        database: Database,
        accounts: Sequence[AccountKey],
        streams: Mapping[str, StreamConfig],
        live: LiveNow | None,
        acts_on: str = "",
    ) -> None:
        self._database = database
        self._streams = streams
        self._accounts = accounts
        self._live = live
        self._acts_on = acts_on  # accounts that the log names; empty: those of the settings
        self._log = ActionLog(database)
        self._manual = ManualOrderService(database, accounts, streams)

    async def perform(self, action: Action, operator: Operator) -> ActionResult:
        """Log an action, perform it and log its outcome.

        A manual command whose outcome is not known yet stays BEGUN: the run ends it.
        """
        fields = action.log_fields | ({"run": self._acts_on} if self._acts_on else {})
        name = fields["action"]
        row_id = await self._log.begin(operator, name, action.target, fields)
        try:
            if operator.role < action.role:
                raise ForbiddenError(
                    f"{name} needs the role {action.role.label}, not {operator.role.label}"
                )
            if self._acts_on and not isinstance(action, _BY_ACCOUNT):
                raise RefusedError(f"{name} does not belong to one account; leave account out")
            result = await self._result(action, operator.actor, row_id)
        except OutcomePendingError:
            raise
        except (RefusedError, ManualOrderError) as error:
            is_refused = not isinstance(error, ManualOrderError) or error.is_refused
            await self._log.end(row_id, "REFUSED" if is_refused else "FAILED", str(error))
            raise
        except OperationError as error:
            await self._log.end(row_id, "FAILED", str(error))
            raise
        await self._log.end(row_id, "DONE", result.message)
        return result

    async def _result(self, action: Action, actor: str, row_id: int) -> ActionResult:
        match action:
            case PlaceOrderAction():
                key = self._manual.only(action.account)
                request = PlaceOrder(
                    symbol=action.symbol,
                    side=action.side,
                    quantity=action.quantity,
                    price=action.price,
                )
                origin = CommandOrigin(action.id, actor, action.reason, row_id)
                commands = await self._manual.place(origin, key, request)
            case ClosePositionsAction():
                origin = CommandOrigin(action.id, actor, action.reason, row_id)
                commands = await self._manual.close(origin, action.symbol, action.account)
            case _:
                return ActionResult(await self._perform(action, actor))
        return ActionResult(outcome_text(commands), [each for _, each in commands])

    async def _perform(self, action: Action, actor: str) -> str:
        database = self._database
        match action:
            case KillSwitchAction(enabled=enabled, reason=reason, strategy=strategy):
                running = await self._running() if strategy is not None else {}
                for key in self._accounts:
                    switch = KillSwitch(database, key)
                    if strategy is not None:
                        await switch.check_strategy(strategy, lambda: running)
                    await switch.set(enabled, actor, reason, strategy)
                return f"{action.target} may trade" if enabled else f"{action.target} is stopped"
            case ReleaseAction(reason=reason):
                return await self._release(actor, reason)
            case CancelOrderAction(intent_id=intent_id):
                return await self._cancel(intent_id)
            case AcknowledgeAlertsAction(ids=ids, reason=reason):
                count = await AlertStore(database, self._accounts).mark_acknowledged(
                    ids, actor, reason
                )
                return f"{count} alert{'' if count == 1 else 's'} acknowledged"
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
                name = action.target
                return f"browser {name} is unsubscribed" if found else f"browser {name} is unknown"
        raise AssertionError(f"{action} is not handled")

    async def _cancel(self, intent_id: UUID) -> str:
        owner = await self._database.fetchrow(_ORDER_ACCOUNT, intent_id)
        key = AccountKey(*owner) if owner is not None else None
        if key is None or key not in self._accounts:
            names = ", ".join(map(str, self._accounts))
            raise RefusedError(f"order {intent_id} is not one of account {names}")
        async with PostgresBus.open(self._database, self._streams) as bus:
            manager = OrderManager(self._database, bus, key, None)
            found = await manager.cancel(intent_id)
        return "cancel requested" if found else "nothing is left to cancel"

    async def _release(self, actor: str, reason: str) -> str:
        """Release the accounts that are in FAIL or LOCKDOWN; with one account, that one."""
        safes = [FailSafe(self._database, key) for key in self._accounts]
        stopped = [each for each in safes if (await each.now()).state in _STOPPED] or safes[:1]
        released = [await each.release(actor, reason) for each in stopped]
        return f"the fail-safe is {released[-1].state}"

    async def _reconcile(self) -> str:
        events = [
            OutboxEvent.of(TRADE_COMMAND, ReconcileCommand(), ("Books", "all"), account=key)
            for key in self._accounts
        ]
        async with (
            PostgresBus.open(self._database, self._streams) as bus,
            self._database.transaction() as tx,
        ):
            for event in events:
                await bus.publish(tx, event)
        return "reconciliation requested"

    async def _running(self) -> dict[str, StrategyStatus]:
        """Return the strategies of the running QTS by key; none if there is no run."""
        live = await self._live() if self._live is not None else None
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
