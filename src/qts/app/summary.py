"""Summary of a run: the JSON that scripts rely on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from qts.app.servers import ServerInfo
from qts.database import Database
from qts.domain import AccountKey, OperationError
from qts.orders import (
    OrderLatency,
    StrategyProfit,
    add_up,
    load_baseline,
    load_owned_fills,
    merged_profits,
    order_latency,
    strategy_profits,
)
from qts.pipeline import held_by
from qts.pipeline.warm_up import describe_warm_up
from qts.risk import SafetyState
from qts.roles import Role, RoleStatus

if TYPE_CHECKING:
    from qts.app.account import TradingAccount
    from qts.app.trading import TradingSystem
    from qts.events import LaneStatus
    from qts.pipeline import StrategyRunner

_COUNTS = {
    "signals": "SELECT count(DISTINCT signal_id) FROM order_intent WHERE created_at >= $1",
    "intents": "SELECT count(*) FROM order_intent WHERE created_at >= $1",
    "fills": "SELECT count(*) FROM fill WHERE received_at >= $1",
}
_OWN = " AND broker = $2 AND account = $3"
_ATTEMPTS = (
    "SELECT status, count(*) FROM order_attempt WHERE created_at >= $1"
    " AND broker = $2 AND account = $3 GROUP BY status ORDER BY 1"
)
_REALISED = (
    "SELECT COALESCE(sum(realised_pnl - fee), 0) FROM fill WHERE received_at >= $1"
    " AND broker = $2 AND account = $3"
)
_ORDERS = (
    "SELECT strategy_key, count(*) FROM order_intent WHERE created_at >= $1"
    " AND broker = $2 AND account = $3 GROUP BY strategy_key"
)
_OUTBOX = (
    "SELECT stream, status, count(*) FROM outbox_event_all WHERE created_at >= $1"
    " AND (account = '' OR account = ANY($2::text[])) GROUP BY stream, status"
)


class LaneSummary(msgspec.Struct, frozen=True):
    published: int
    handled: int
    dropped: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class RouterSummary(msgspec.Struct, frozen=True):
    """Rows of bars for strategies, one for each bar and strategy that subscribed to it."""

    produced: int
    delivered: int


class StrategySummary(msgspec.Struct, frozen=True):
    """How a strategy ended; `reason` says why it was disabled, or how far its warm-up is.

    A name that no strategy of the run has (manual, risk, one of an earlier run) is not running.
    """

    state: Literal["running", "warming up", "disabled", "not running"]
    reason: str = ""
    signals: int = 0
    errors: int = 0
    orders: int = 0
    fills: int = 0
    refused: int = 0  # proposals' reasons, by PreCheck and gate
    refusals: dict[str, int] = {}
    fees: Decimal = Decimal(0)
    pnl: dict[str, Decimal] = {}  # over all names, realised and unrealised of the account
    exposure: Decimal = Decimal(0)


class VenueSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one account traded at its venue, and whether ledger and broker agree."""

    broker: str
    account: str
    ticks: int
    signals: int
    intents: int
    attempts: dict[str, int]
    fills: int
    positions: int
    pnl: dict[str, Decimal]
    refusals: dict[str, int]
    precheck_refusals: dict[str, int]
    safety: str
    books_agree: bool
    differences: tuple[str, ...] = ()
    baseline: dict[str, Decimal] = {}
    dust: tuple[str, ...] = ()
    strategies: dict[str, StrategyProfit] = {}


class TradingSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What was traded, and whether ledger and broker agree."""

    mode: Literal["paper", "live"]
    broker: str
    ticks: int
    bars: int = 0  # closed, of symbols and timeframes that strategies subscribed to
    router: RouterSummary = RouterSummary(0, 0)
    lanes: dict[str, LaneSummary]
    signals: int
    intents: int
    attempts: dict[str, int]
    fills: int
    positions: int
    pnl: dict[str, Decimal]
    cache: dict[str, float | None]
    outbox: dict[str, dict[str, int]]
    tick_to_order: OrderLatency | None
    refusals: dict[str, int]  # by the gate
    precheck_refusals: dict[str, int] = {}  # before the gate, by what the cache holds
    safety: str
    books_agree: bool
    differences: tuple[str, ...] = ()
    strategies: dict[str, StrategySummary] = {}
    baseline: dict[str, Decimal] = {}  # held before QTS
    dust: tuple[str, ...] = ()  # positions that are too small to be sold
    venues: dict[str, VenueSummary] = {}

    @property
    def failed(self) -> bool:
        """Return whether the operator has to look into it."""
        return (
            not self.books_agree
            or self.safety == SafetyState.LOCKDOWN
            or any(each.state == "disabled" for each in self.strategies.values())
        )


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Literal["OK", "FAILED"]
    seconds: float
    services: list[ServerInfo]
    schema_version: int
    restarts: list[str]
    trading: TradingSummary | None = None
    role: Role = "all"
    link: RoleStatus | None = None  # with other roles

    def to_json(self) -> dict[str, Any]:
        """Return one flat object, as scripts expect it."""
        flat: dict[str, Any] = msgspec.to_builtins(self)
        flat |= flat.pop("trading") or {}
        return flat


async def _counts(database: Database, key: AccountKey, since: datetime) -> dict[str, Any]:
    """Count signals, intents, attempts and fills of an account since then."""
    found: dict[str, Any] = {
        name: await database.fetchval(query + _OWN, since, *key) for name, query in _COUNTS.items()
    }
    rows = await database.fetch(_ATTEMPTS, since, *key)
    found["attempts"] = {row[0]: row[1] for row in rows}
    return found


async def _outbox(
    database: Database, keys: Sequence[AccountKey], since: datetime
) -> dict[str, dict[str, int]]:
    """Count outbox events since then: of these accounts, and of none."""
    outbox: dict[str, dict[str, int]] = {}
    for row in await database.fetch(_OUTBOX, since, [str(key) for key in keys]):
        stream = outbox.setdefault(row[0], {"done": 0, "pending": 0, "dead": 0})
        name = {"DONE": "done", "DEAD": "dead"}.get(row[1], "pending")
        stream[name] += row[2]
    return outbox


async def summarise_trading(trading: TradingSystem, *, reconcile: bool) -> TradingSummary:
    """Summarise a stopped run, after a final reconciliation with each broker.

    Without, the books count as agreed: another run holds the accounts and reconciles them.
    """
    found = await asyncio.gather(
        *(_summarise(trading, each, reconcile) for each in trading.accounts)
    )
    venues = {each.venue: of for each, of in zip(trading.accounts, found, strict=True)}
    database, began = trading.database, trading.began
    keys, bars = [each.key for each in trading.accounts], trading.bars.counts
    return TradingSummary(
        mode=trading.config.brokers.mode,
        broker=", ".join(dict.fromkeys(each.broker for each in found)),
        bars=bars.bars,
        router=RouterSummary(bars.produced, bars.delivered),
        lanes={name: _lane(lane) for name, lane in trading.engine.status().lanes.items()},
        cache=_hit_rates(trading),
        strategies=_strategies(trading, merged_profits(each.strategies for each in found)),
        outbox=await _outbox(database, keys, began),
        tick_to_order=await order_latency(database, keys, began),
        venues=venues,
        **_totals(venues),
    )


def _totals(venues: Mapping[str, VenueSummary]) -> dict[str, Any]:
    """Add the figures of all accounts up; all of them are in won."""
    found, several = list(venues.values()), len(venues) > 1
    totals: dict[str, Any] = {
        name: sum(getattr(each, name) for each in found)
        for name in ("ticks", "signals", "intents", "fills", "positions")
    }
    for name in ("attempts", "refusals", "precheck_refusals", "pnl", "baseline"):
        total: dict[str, Any] = {}
        for each in found:
            for key, value in getattr(each, name).items():
                total[key] = total.get(key, 0) + value
        totals[name] = total
    states = list(SafetyState)
    totals["safety"] = states[max(states.index(SafetyState(each.safety)) for each in found)]
    totals["books_agree"] = all(each.books_agree for each in found)
    totals["differences"] = tuple(
        f"{venue}: {text}" if several else text
        for venue, each in venues.items()
        for text in each.differences
    )
    totals["dust"] = tuple(sorted(symbol for each in found for symbol in each.dust))
    return totals


def _hit_rates(trading: TradingSystem) -> dict[str, float | None]:
    """Return the hit rate of each kind; of several caches the lowest."""
    rates: dict[str, float | None] = {}
    for account in trading.accounts:
        for name, kind in account.cache.status().kinds.items():
            known = [each for each in (rates.get(name), kind.hit_rate) if each is not None]
            rates[name] = min(known, default=None)
    return rates


async def _summarise(
    trading: TradingSystem, account: TradingAccount, reconcile: bool
) -> VenueSummary:
    """Summarise one account, after a final reconciliation."""
    database, began = trading.database, trading.began
    agree, differences = True, tuple[str, ...]()
    if reconcile:
        agree, differences = await account.execution.final_check(began)
    with contextlib.suppress(OperationError):  # the differences say so
        # The lanes have stopped: what the comparison found comes from the ledger alone.
        await account.positions.reload(database, account.broker, after_stop=True)
    realised = await database.fetchval(_REALISED, began, *account.key)
    portfolio = account.portfolio
    return VenueSummary(
        broker=account.broker.name,
        account=str(account.key),
        ticks=account.ticks.count,
        positions=len(portfolio.positions),
        pnl={
            name: Decimal(value).quantize(Decimal("0.01"))
            for name, value in (
                ("realised", realised),
                ("unrealised", portfolio.unrealised),
                ("equity", portfolio.equity),
            )
        },
        refusals=dict(account.submitter.refusals),
        precheck_refusals=dict(account.precheck.refusals),
        safety=(await account.fail_safe.now()).state,
        books_agree=agree,
        differences=differences,
        baseline=await load_baseline(database, account.broker.key),
        dust=tuple(sorted(account.micro_risk.parked)),
        strategies=await _profits(database, account, began),
        **await _counts(database, account.key, began),
    )


def warm_up_of(trading: TradingSystem, key: str) -> str:
    """Return how far the warm-up of a strategy is: `37 of 120 series`; empty when it is done."""
    return describe_warm_up(trading.runners[key].warm_up, trading.bars.subscriptions.get(key))


async def _profits(
    database: Database, account: TradingAccount, began: datetime
) -> dict[str, StrategyProfit]:
    """Return what each strategy earned, holds and ordered since then."""
    fills = await load_owned_fills(database, account.key, began, datetime.max.replace(tzinfo=UTC))
    received = [each for each in fills if each[0]["received_at"] >= began]
    orders = {row[0]: row[1] for row in await database.fetch(_ORDERS, began, *account.key)}
    refused = account.submitter.refused + account.precheck.refused
    return strategy_profits(add_up(received), held_by(account.portfolio), orders, refused)


def _strategies(
    trading: TradingSystem, profits: Mapping[str, StrategyProfit]
) -> dict[str, StrategySummary]:
    """Return the strategies of the run, then the other names that traded or hold something."""
    found: dict[str, StrategySummary] = {}
    for name in (*trading.runners, *(each for each in profits if each not in trading.runners)):
        runner, profit = trading.runners.get(name), profits.get(name, StrategyProfit())
        ended = (
            StrategySummary("not running")
            if runner is None
            else _strategy(runner, warm_up_of(trading, name))
        )
        found[name] = msgspec.structs.replace(
            ended,
            orders=profit.orders,
            fills=profit.fills,
            refused=sum(profit.refusals.values()),
            refusals=profit.refusals,
            fees=profit.fees,
            pnl={"realised": profit.realised, "unrealised": profit.unrealised},
            exposure=profit.exposure,
        )
    return found


def _strategy(runner: StrategyRunner, warm_up: str) -> StrategySummary:
    state: Literal["running", "warming up", "disabled"] = "running"
    reason = ""
    if runner.stopped:
        state, reason = "disabled", runner.stopped
    elif runner.is_warming_up:
        state, reason = "warming up", warm_up
    return StrategySummary(state, reason, runner.signals, runner.errors)


def _lane(lane: LaneStatus) -> LaneSummary:
    return LaneSummary(
        lane.published,
        lane.handled,
        lane.dropped + lane.collapsed + lane.sampled,
        round(lane.total.p50, 3),
        round(lane.total.p99, 3),
        round(lane.total.max, 3),
    )
