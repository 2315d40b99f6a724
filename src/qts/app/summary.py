"""Summary of a run: the JSON that scripts rely on."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from qts.database import Database
from qts.domain import AccountKey
from qts.orders import load_baseline
from qts.risk import SafetyState

if TYPE_CHECKING:
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
_TICK_TO_ORDER = (
    "SELECT percentile_disc(ARRAY[0.5, 0.99, 1.0]) WITHIN GROUP"
    " (ORDER BY extract(epoch FROM a.sent_at - s.decided_at) * 1000), count(*)"
    " FROM order_attempt a JOIN order_intent i ON i.id = a.order_intent_id"
    " JOIN signal s ON s.id = i.signal_id WHERE a.sent_at >= $1 AND a.attempt_no = 1"
    " AND a.broker = $2 AND a.account = $3"
)
_REALISED = (
    "SELECT COALESCE(sum(realised_pnl - fee), 0) FROM fill WHERE received_at >= $1"
    " AND broker = $2 AND account = $3"
)
_OUTBOX = (
    "SELECT stream, status, count(*) FROM outbox_event_all WHERE created_at >= $1"
    " AND account IN ('', $2) GROUP BY stream, status"
)


class ServerInfo(msgspec.Struct, frozen=True):
    """A server of the run, as shown to the operator."""

    name: str
    version: str
    where: str
    pid: int | None  # None where the settings name the server


class LaneSummary(msgspec.Struct, frozen=True):
    published: int
    handled: int
    dropped: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class TickToOrder(msgspec.Struct, frozen=True):
    """Time from the tick that a strategy decided on to the request of its order."""

    orders: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class StrategySummary(msgspec.Struct, frozen=True):
    """How a strategy ended; `reason` says why it was disabled."""

    state: Literal["running", "disabled"]
    reason: str
    signals: int
    errors: int


class TradingSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What was traded, and whether ledger and broker agree."""

    mode: Literal["paper", "live"]
    broker: str
    ticks: int
    lanes: dict[str, LaneSummary]
    signals: int
    intents: int
    attempts: dict[str, int]
    fills: int
    positions: int
    pnl: dict[str, Decimal]
    cache: dict[str, float | None]
    outbox: dict[str, dict[str, int]]
    tick_to_order: TickToOrder | None
    refusals: dict[str, int]
    safety: str
    books_agree: bool
    differences: tuple[str, ...] = ()
    strategies: dict[str, StrategySummary] = {}
    baseline: dict[str, Decimal] = {}  # held before QTS
    dust: tuple[str, ...] = ()  # positions that are too small to be sold

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

    def to_json(self) -> dict[str, Any]:
        """Return one flat object, as scripts expect it."""
        flat: dict[str, Any] = msgspec.to_builtins(self)
        flat |= flat.pop("trading") or {}
        return flat


async def count_orders(database: Database, key: AccountKey, since: datetime) -> dict[str, Any]:
    """Count signals, intents, attempts, fills and outbox events of an account since then."""
    found: dict[str, Any] = {
        name: await database.fetchval(query + _OWN, since, *key) for name, query in _COUNTS.items()
    }
    rows = await database.fetch(_ATTEMPTS, since, *key)
    found["attempts"] = {row[0]: row[1] for row in rows}
    outbox: dict[str, dict[str, int]] = {}
    for row in await database.fetch(_OUTBOX, since, str(key)):
        stream = outbox.setdefault(row[0], {"done": 0, "pending": 0, "dead": 0})
        name = {"DONE": "done", "DEAD": "dead"}.get(row[1], "pending")
        stream[name] += row[2]
    found["outbox"] = outbox
    sent = await database.fetchrow(_TICK_TO_ORDER, since, *key)
    spans = sent[0] if sent else None
    found["tick_to_order"] = (
        TickToOrder(sent[1], *(round(float(span), 3) for span in spans)) if sent and spans else None
    )
    return found


async def summarise_trading(trading: TradingSystem) -> TradingSummary:
    """Summarise a stopped run, after a final reconciliation."""
    agree, differences = await trading.execution.final_check(trading.began)
    counts = await count_orders(trading.database, trading.account, trading.began)
    realised = await trading.database.fetchval(_REALISED, trading.began, *trading.account)
    portfolio = trading.portfolio
    return TradingSummary(
        mode=trading.config.brokers.mode,
        broker=trading.broker.name,
        ticks=trading.ticks.count,
        lanes={name: _lane(lane) for name, lane in trading.engine.status().lanes.items()},
        positions=len(portfolio.positions),
        pnl={
            name: Decimal(value).quantize(Decimal("0.01"))
            for name, value in (
                ("realised", realised),
                ("unrealised", portfolio.unrealised),
                ("equity", portfolio.equity),
            )
        },
        cache={name: kind.hit_rate for name, kind in trading.cache.status().kinds.items()},
        refusals=dict(trading.submitter.refusals),
        safety=(await trading.fail_safe.now()).state,
        books_agree=agree,
        differences=differences,
        baseline=await load_baseline(trading.database, trading.broker.key),
        dust=tuple(sorted(trading.micro_risk.parked)),
        strategies={key: _strategy(runner) for key, runner in trading.runners.items()},
        **counts,
    )


def _strategy(runner: StrategyRunner) -> StrategySummary:
    state: Literal["running", "disabled"] = "disabled" if runner.stopped else "running"
    return StrategySummary(state, runner.stopped, runner.signals, runner.errors)


def _lane(lane: LaneStatus) -> LaneSummary:
    return LaneSummary(
        lane.published,
        lane.handled,
        lane.dropped + lane.collapsed + lane.sampled,
        round(lane.total.p50, 3),
        round(lane.total.p99, 3),
        round(lane.total.max, 3),
    )
