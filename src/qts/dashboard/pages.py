"""What the dashboard's queries take and return: parameters, documents, cursors between pages.

A list is newest first and is continued with the `next_cursor` of the page before: the position of
its last row, as text that a client sends back as it is.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta

from qts.backtest import JobRow
from qts.dashboard.actions import ActionRow
from qts.dashboard.live_status import (
    LimitStatus,
    LiveStatus,
    PositionStatus,
    StrategyStatus,
    Verdict,
)
from qts.dashboard.results import AccountCurve, DayProfit
from qts.dashboard.run_records import Candle
from qts.dashboard.runs import StoredRunStatus
from qts.dashboard.verdict import RunState
from qts.domain import RefusedError
from qts.notify import StoredAlert
from qts.orders import OrderRow, PositionRow, StrategyProfit
from qts.outbox import Depth
from qts.risk import FailSafeStatus, SafetyLogEntry, Switch

Limit = Annotated[int, Meta(ge=1, le=1000, description="maximum number of rows")]
Cursor = Annotated[str, Meta(max_length=500, description="`next_cursor` of the page before")]
Symbol = Annotated[str, Meta(max_length=100, description="only this symbol")]

# States of attempts, and of stop orders.
OrdersState = Literal[
    "PREPARED", "SENT", "ACKED", "REJECTED", "THROTTLED", "UNKNOWN", "ABSENT", "SUSPENDED",
    "WAITING",
]  # fmt: skip


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a query; this one has none."""


class AccountParams(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    account: Annotated[
        str,
        Meta(max_length=100, description="of this account's run, as /runs lists it; empty: own"),
    ] = ""


class IdParams(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: UUID


class EquityParams(AccountParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    span: Literal["1d", "1w", "1m", "all"] = "1d"


class TradesParams(AccountParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    span: Annotated[Literal["7d", "30d", "90d", "365d"], Meta(description="the last days")] = "30d"


class LogsParams(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    file: Annotated[str, Meta(max_length=100, description="a log; empty: the first")] = ""
    level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"],
        Meta(description="lowest level of a line"),
    ] = "debug"
    find: Annotated[str, Meta(max_length=200, description="only lines with this text")] = ""


class NamesParams(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # Encoded it must fit into a line of HTTP, 8190 bytes.
    symbols: Annotated[
        str, Meta(max_length=2700, pattern="^[!-~]*$", description="symbols, separated by commas")
    ] = ""


class MarketParams(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    symbol: Symbol = ""
    bar: Annotated[
        Literal[1, 5, 15, 60, 300, 900, 3600], Meta(description="seconds of a candle")
    ] = 60


class ListParams(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Limit = 100
    cursor: Cursor = ""


class AccountListParams(AccountParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Limit = 100
    cursor: Cursor = ""


class OrdersParams(AccountListParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: Annotated[
        OrdersState | None,
        Meta(description="state of the latest attempt; WAITING: stop orders"),
    ] = None
    symbol: Symbol = ""
    open: Annotated[bool, Meta(description="only open orders")] = False


class FillsParams(AccountListParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    symbol: Symbol = ""


class AlertsParams(AccountParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Limit = 100
    acknowledged: Annotated[bool, Meta(description="acknowledged alerts, too")] = True


class StatusPage(msgspec.Struct, frozen=True, kw_only=True):
    """State of the run as the header of the pages shows it."""

    live: LiveStatus | None  # the last status of the run, None: none was read
    live_age_s: float | None
    run: RunState
    verdict: Verdict
    safety: FailSafeStatus | None
    switches: dict[str, Switch] | None  # `account`, and each strategy with a switch
    troubles: dict[str, str]  # what could not be read, by source
    stored: StoredRunStatus | None = None  # what the run stored in the database


class PositionsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Positions of the ledger and, while a run reports, with prices."""

    positions: list[PositionRow]  # of the ledger
    live: list[PositionStatus] | None  # with prices; None: no run reports


class OrdersPage(msgspec.Struct, frozen=True, kw_only=True):
    """Orders, and when the ledger was last reconciled."""

    orders: list[OrderRow]
    reconciled_at: datetime | None
    next_cursor: str | None = None


class OrderPage(msgspec.Struct, frozen=True, kw_only=True):
    """One order from its signal to its last fill."""

    order: OrderRow
    attempts: list[dict[str, Any]]
    fills: list[dict[str, Any]]
    signal: dict[str, Any] | None


class FillRow(msgspec.Struct, frozen=True, kw_only=True):
    """One execution as the ledger stores it."""

    broker: str
    account: str
    trade_id: str
    broker_order_id: str
    symbol: str
    side: str
    quantity: Decimal
    price: Decimal
    fee: Decimal
    realised_pnl: Decimal  # before fees
    traded_at: datetime


class FillsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Fills of the ledger."""

    fills: list[FillRow]
    next_cursor: str | None = None


class StrategyRow(msgspec.Struct, frozen=True, kw_only=True):
    status: StrategyStatus
    profit: StrategyProfit | None  # of the day


class StrategiesPage(msgspec.Struct, frozen=True, kw_only=True):
    """Strategies of the run with their profit."""

    run: RunState
    strategies: list[StrategyRow]  # none unless the run reports


class EquityPage(msgspec.Struct, frozen=True, kw_only=True):
    """Equity curve of a span, and the profit of today."""

    curve: AccountCurve
    today: DayProfit


class AlertsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Alerts of the accounts."""

    alerts: list[StoredAlert]  # open ones first


class SuspendedSymbol(msgspec.Struct, frozen=True, kw_only=True):
    broker: str
    account: str
    symbol: str
    reason_code: str
    detail: str
    suspended_at: datetime


class RiskPage(msgspec.Struct, frozen=True, kw_only=True):
    """Fail-safe, switches, limits and refusals."""

    safety: FailSafeStatus | None
    switches: dict[str, Switch] | None
    safety_log: list[SafetyLogEntry]
    suspended: list[SuspendedSymbol]
    limits: list[LimitStatus] | None  # None: no run reports
    refusals: dict[str, int] | None  # by the gate


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True):
    event_id: UUID
    stream: str
    event_type: str
    aggregate_type: str
    aggregate_id: str
    status: str
    attempt_count: int
    max_attempts: int
    last_error_code: str | None
    last_error_message: str | None
    created_at: datetime
    updated_at: datetime | None


class OutboxPage(msgspec.Struct, frozen=True, kw_only=True):
    """Streams of the outbox, dead events and the latest ones."""

    depths: list[Depth]
    paused: list[str]
    dead: list[OutboxRow]
    latest: list[OutboxRow]


class DeadLetterRow(msgspec.Struct, frozen=True, kw_only=True):
    """Event that used up its retries in a lane."""

    state: str  # dead, asked or replayed
    number: int
    event_id: str
    event_type: str
    priority: int
    handler: str
    error: str
    died_at: datetime
    replay_asked_at: datetime | None
    replayed_at: datetime | None
    event: dict[str, Any]


class DeadLettersPage(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of the lanes."""

    dead_letters: list[DeadLetterRow]
    next_cursor: str | None = None


class ActionsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Log of what operators did."""

    actions: list[ActionRow]
    next_cursor: str | None = None


class NamesPage(msgspec.Struct, frozen=True, kw_only=True):
    names: dict[str, list[str]]  # by symbol: the Korean and the English name


class MarketPage(msgspec.Struct, frozen=True, kw_only=True):
    symbols: list[str]  # with an order in the last seven days
    candles: list[Candle] = []
    fills: list[FillRow] = []
    orders: list[OrderRow] = []
    price: Any = None  # as the cache has it


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    job_id: UUID
    arguments: Any
    status: str
    error: str | None
    created_at: datetime
    finished_at: datetime | None
    performance: Any


class BacktestsPage(msgspec.Struct, frozen=True, kw_only=True):
    jobs: list[JobSummary]


class BacktestPage(msgspec.Struct, frozen=True, kw_only=True):
    job: JobRow


class RouterPage(msgspec.Struct, frozen=True, kw_only=True):
    route: dict[str, Any] | None  # of the last `qts dev router run`


class SettingsPage(msgspec.Struct, frozen=True, kw_only=True):
    settings: list[dict[str, Any]]  # secrets are three stars


R = TypeVar("R")
At = Annotated[datetime, Meta(tz=True)]
OrderPosition = tuple[At, UUID]
FillPosition = tuple[At, str, str, str]  # with broker, account and trade
RowPosition = tuple[Annotated[int, Meta(ge=0, le=2**63 - 1)]]


def decode_cursor(cursor: str, kind: Any) -> Any:
    """Return the position of a cursor, a tuple of type `kind`; None without a cursor."""
    if not cursor:
        return None
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        found: Any = msgspec.json.decode(text, type=kind)
        return tuple(map(_checked, found))
    except (msgspec.DecodeError, binascii.Error, UnicodeError, ValueError, OverflowError):
        raise RefusedError(
            f"cursor is {cursor[:40]!r}; expected the next_cursor of an earlier answer"
        ) from None


def cut_page(
    rows: Sequence[R], limit: int, position: Callable[[R], Sequence[Any]]
) -> tuple[list[R], str | None]:
    """Return the first rows, and the cursor of the next page if there are more than `limit`."""
    page = list(rows[:limit])
    return page, encode_cursor(position(page[-1])) if len(rows) > limit else None


def encode_cursor(position: Sequence[Any]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(tuple(position))).rstrip(b"=").decode()


def _checked(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC)  # fails beyond the first and the last year
    if isinstance(value, str) and "\0" in value:
        raise ValueError("PostgreSQL has no text with a zero byte")
    return value
