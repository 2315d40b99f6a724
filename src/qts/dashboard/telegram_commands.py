"""Commands of the Telegram bot: what a run does, and what stops and starts it.

What acts is an action of the dashboard, with the same log; its actor is `telegram:USER`.

    /kill ↔ /release     every order, also of the stops: the switch of the account, the fail-safe
    /pause ↔ /resume     new positions only: the switches of the strategies
    /close               one position: the manual command of `qts positions close`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

from qts.dashboard.action_service import ActionService
from qts.dashboard.actions import (
    Action,
    ClosePositionsAction,
    KillSwitchAction,
    ReleaseAction,
)
from qts.dashboard.daily_report import load_report
from qts.dashboard.live_status import LiveStatus, PositionStatus, StrategyStatus
from qts.dashboard.manual_orders import ManualOrderService, preview_close
from qts.dashboard.session import Operator, Role
from qts.dashboard.verdict import ACCOUNT, Observed, judge, read_stored
from qts.database import Database
from qts.domain import AccountKey, Clock, OperationError, RefusedError, check_name
from qts.notify import BotCommand, Caller, Confirmation
from qts.orders import OrderRow, list_orders
from qts.outbox import StreamConfig, uuid7
from qts.pipeline import SEOUL
from qts.risk import FailSafe, KillSwitch, SafetyState

MAX_ROWS = 20
MAX_REASON = 500
SHOWN_ALERTS = 3
_STOPPED = (SafetyState.FAIL, SafetyState.LOCKDOWN)


class TelegramCommands:
    """Commands on the accounts of one run; `live` collects its status from memory."""

    def __init__(
        self,
        database: Database,
        accounts: Sequence[AccountKey],
        streams: Mapping[str, StreamConfig],
        live: Callable[[], LiveStatus],
        clock: Clock,
    ) -> None:
        async def running() -> LiveStatus:
            return live()

        self._database = database
        self._accounts = accounts
        self._live = live
        self._clock = clock
        self._actions = ActionService(database, accounts, streams, running)
        self._manual = ManualOrderService(database, accounts, streams)

    def all(self) -> list[BotCommand]:
        rows = (
            ("status", "상태", "", "whether QTS trades, equity, alerts", self.status),
            ("positions", "포지션", "", "open positions", self.positions),
            ("orders", "주문", "", "orders in flight", self.orders),
            ("profit", "손익", "", "profit of the day, by strategy", self.profit),
            ("pause", "일시정지", "[REASON]", "open no position; exits go on", self.pause),
            ("resume", "재개", "[REASON]", "end /pause", self.resume),
            ("close", "청산", "SYMBOL [REASON]", "sell a position at the market", self.close),
            ("kill", "정지", "REASON", "send no order, not even a stop's", self.kill),
            ("release", "해제", "[REASON]", "end /kill, FAIL and LOCKDOWN", self.release),
        )
        return [
            BotCommand(name=name, alias=alias, usage=usage, help=text, run=run)
            for name, alias, usage, text, run in rows
        ]

    # --- what reads -----------------------------------------------------------------------------

    async def status(self, _caller: Caller, _argument: str) -> str:
        live = self._live()
        try:
            stored = await read_stored(self._database, *self._accounts)
        except OperationError:
            stored = None  # the run's own view of the database is in the sentence
        verdict = judge(Observed(live=live, age_s=0.0, stored=stored))
        money, age_s = live.money, live.tick_age_s
        last = "no tick yet" if age_s is None else f"last tick {age_s:.0f} s ago"
        lines = [
            f"{live.label} {', '.join(key.short for key in self._accounts)}: {verdict.en}",
            f"Since {live.started_at:%F %T} UTC, {live.ticks:,} ticks, {last}",
            f"Equity {_won(money.equity)}, cash {_won(money.cash)}",
            f"Today {money.realised_today:+,.0f} realised, {money.unrealised:+,.0f} unrealised",
            f"{len(live.positions)} positions, {money.orders_today} orders today",
        ]
        lines += [f"{each.severity}: {each.text}" for each in live.notices[:SHOWN_ALERTS]]
        return "\n".join(lines)

    async def positions(self, _caller: Caller, _argument: str) -> str:
        found = self._live().positions
        return _rows([_position(each) for each in found], "No position is open.")

    async def orders(self, _caller: Caller, _argument: str) -> str:
        found = [
            row
            for key in self._accounts
            for row in await list_orders(self._database, key, only_open=True, limit=MAX_ROWS + 1)
        ]
        return _rows([_order(each) for each in found], "No order is in flight.")

    async def profit(self, _caller: Caller, _argument: str) -> str:
        now = self._clock.now()
        day = now.astimezone(SEOUL).date()
        live = self._live()
        lines = [f"{day:%F} (Seoul)"]
        for venue, key in zip(live.venues, self._accounts, strict=True):
            report = await load_report(self._database, key, day, now)
            lines += [
                f"{key.short}: {report.realised:+,.0f} won realised after {report.fees:,.0f} fees,"
                f" {venue.money.unrealised:+,.0f} unrealised, {len(report.trades)} trades",
                *(
                    f"  {each.name}: {each.realised:+,.0f}, {each.trades} trades"
                    for each in report.strategies[:MAX_ROWS]
                ),
            ]
        lines.append(f"Equity {_won(live.money.equity)}")
        return "\n".join(lines)

    # --- what acts ------------------------------------------------------------------------------

    async def kill(self, caller: Caller, reason: str) -> Confirmation:
        if not reason:
            raise RefusedError("/kill needs a reason, as in: /kill leaving for the day")
        names = ", ".join(key.short for key in self._accounts)
        question = f"Stop every order of {names}, also those of the stops? Reason: {reason}"
        action = KillSwitchAction(enabled=False, reason=_checked(reason))
        return self._confirmation(caller, question, [action])

    async def release(self, caller: Caller, reason: str) -> str | Confirmation:
        reason = _checked(reason or "released by Telegram")
        actions: list[Action] = []
        found: list[str] = []
        for key in self._accounts:
            now = await FailSafe(self._database, key).now()
            if now.state in _STOPPED:
                found.append(f"{key.short}: {now.state} {now.code or ''} {now.message}")
        if found:
            actions.append(ReleaseAction(reason=reason))
        off = [each for key in self._accounts if (each := await self._switched_off(key))]
        if off:
            actions.append(KillSwitchAction(enabled=True, reason=reason))
        if not actions:
            return "Nothing to release: the kill switch is off and the fail-safe allows trading."
        lines = ["Orders are sent again after this. Have you checked the positions? It ends:"]
        return self._confirmation(caller, "\n- ".join([*lines, *found, *off]), actions)

    async def pause(self, caller: Caller, reason: str) -> str | Confirmation:
        running = [each for each in self._strategies() if each.enabled]
        if not running:
            return "Every strategy is off already."
        question = "Open no position; exits and stops go on. Strategies to switch off:"
        return self._switch(caller, question, running, False, reason or "paused by Telegram")

    async def resume(self, caller: Caller, reason: str) -> str | Confirmation:
        paused = [each for each in self._strategies() if each.stopped_at]
        if not paused:
            return "Every strategy is on already; /release ends /kill."
        question = "Allow new positions. Strategies to switch on:"
        return self._switch(caller, question, paused, True, reason or "resumed by Telegram")

    async def close(self, caller: Caller, argument: str) -> Confirmation:
        symbol, _, reason = argument.partition(" ")
        symbol, reason = symbol.upper(), _checked(reason or "closed by Telegram")
        held = await self._manual.open_symbols(self._accounts)
        names = sorted({name for found in held.values() for name in found})
        if not symbol:
            raise RefusedError(f"/close needs a symbol; open: {', '.join(names) or 'none'}")
        check_name("position", symbol, names)
        prices = {each.symbol: each.price for each in self._live().positions}
        found = await preview_close(self._database, self._accounts, symbol, prices)
        if found.is_stopped:
            raise RefusedError("the kill switch is on and refuses every order; /release ends it")
        lines = ["Close it? Strategies go on and may buy again; /pause stops that.", *found.lines]
        action = ClosePositionsAction(id=uuid7(), symbol=symbol, reason=reason)
        return self._confirmation(caller, "\n".join(lines), [action], is_long=True)

    def _switch(
        self,
        caller: Caller,
        question: str,
        strategies: Sequence[StrategyStatus],
        enabled: bool,
        reason: str,
    ) -> Confirmation:
        reason = _checked(reason)
        keys = [each.key for each in strategies]
        actions = [KillSwitchAction(enabled=enabled, reason=reason, strategy=key) for key in keys]
        return self._confirmation(caller, f"{question} {', '.join(keys)}", actions)

    def _strategies(self) -> list[StrategyStatus]:
        live = self._live()
        if not live.safety.database_read:
            raise OperationError("the run cannot read the switches in the database")
        return live.strategies

    async def _switched_off(self, key: AccountKey) -> str:
        """Return who stopped the account and why; an account must have been allowed before."""
        switch = (await KillSwitch(self._database, key).all()).get(ACCOUNT)
        if switch is None:
            raise RefusedError(
                f"{key.short} was never allowed to trade; run qts kill off on the machine first"
            )
        if switch.enabled:
            return ""
        why = f": {switch.reason}" if switch.reason else ""
        return (
            f"{key.short}: kill switch, {switch.changed_at:%F %T} UTC by {switch.changed_by}{why}"
        )

    def _confirmation(
        self, caller: Caller, question: str, actions: Sequence[Action], *, is_long: bool = False
    ) -> Confirmation:
        by = Operator(caller.actor, Role.ADMIN, f"telegram chat {caller.chat}")

        async def act() -> str:
            done = [(await self._actions.perform(each, by)).message for each in actions]
            return f"Done: {'; '.join(done)}."

        return Confirmation(question, act, is_long)


def _checked(reason: str) -> str:
    if len(reason) > MAX_REASON:
        raise RefusedError(
            f"the reason has {len(reason)} characters; expected {MAX_REASON} at most"
        )
    return reason


def _rows(lines: Sequence[str], empty: str) -> str:
    more = [f"and {len(lines) - MAX_ROWS} more"] if len(lines) > MAX_ROWS else []
    return "\n".join([*lines[:MAX_ROWS], *more]) or empty


def _position(each: PositionStatus) -> str:
    stop = "no stop" if each.stop_price is None else f"stop {each.stop_price:,g}"
    note = f", {each.note}" if each.note else ""
    return (
        f"{_named(each.symbol, each.name)}: {_number(each.quantity)} at"
        f" {_number(each.average_price)}, now {_number(each.price)}:"
        f" {each.unrealised:+,.0f} won, {stop}, {each.strategy or 'no strategy'}{note}"
    )


def _order(row: OrderRow) -> str:
    price = "at the market" if row.price is None else f"at {_number(row.price)}"
    if row.trigger is not None:
        price += f" once a trade is at {_number(row.trigger)}"
    return (
        f"{row.created_at:%T} {row.intent_type} {row.side} {_number(row.quantity)}"
        f" {_named(row.symbol, row.name)} {price}, {_number(row.filled)} filled,"
        f" {row.attempt_state or row.status}, {row.strategy_key}"
    )


def _named(symbol: str, name: str) -> str:
    return f"{symbol} {name}" if name else symbol


def _won(value: Decimal) -> str:
    return f"{value:,.0f} won"


def _number(value: Decimal) -> str:
    text = f"{value:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
