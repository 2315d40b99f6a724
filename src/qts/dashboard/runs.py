"""All runs on one database: the status that each stores, and sums of what is known now.

A run stores a row an account once a second (`run_status`). One that lost its account to another
run writes nothing: the row has the epoch of the account, or of an earlier holder. A row is current
while the run that wrote it holds the lease and the row is young, by the clock of the server.

Orders, alerts and switches are the database's own, and always current. A sum adds current figures
of one mode and one currency, and names the accounts that it does not contain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

import msgspec

from qts.brokers import LeaseStatus, read_leases
from qts.dashboard.live_status import AccountStatus, LiveStatus, RunLabel, Verdict
from qts.database import Database, Row
from qts.domain import AccountKey, check_name

MAX_AGE_S = 5.0  # above this age a row is old: the views grey it and say its age
CURRENCY = "KRW"  # every venue trades in it

# Lost with the server it costs nothing, so that the commit need not wait for its disk or a replica.
_WRITE = """
WITH lazily AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
INSERT INTO run_status (broker, account, epoch, status)
SELECT a.broker, a.account, a.epoch, $4
  FROM account a, lazily
 WHERE a.broker = $1 AND a.account = $2 AND a.epoch = $3
ON CONFLICT (broker, account) DO UPDATE
   SET epoch = excluded.epoch, status = excluded.status, written_at = clock_timestamp()
"""
_READ = """
SELECT s.status, s.epoch = a.epoch AS is_holders,
       extract(epoch FROM clock_timestamp() - s.written_at)::float8 AS age_s
  FROM run_status s JOIN account a USING (broker, account)
 WHERE s.broker = $1 AND s.account = $2
"""


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a run stores of one of its accounts."""

    name: str  # of the run
    accounts: list[str]  # of the run, as BROKER:DIGEST
    venue: str
    label: RunLabel
    version: str
    started_at: datetime
    trades: str  # description of what is traded
    verdict: Verdict  # of the whole run
    positions: int
    currency: str = CURRENCY
    money: AccountStatus | None = None  # None: not loaded yet


class StoredRunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Row of an account, and how old it was when it was read."""

    account: str
    status: RunStatus
    age_s: float
    is_holders: bool  # no other run has held the account since

    @property
    def is_current(self) -> bool:
        return self.is_holders and self.age_s <= MAX_AGE_S


class RunStatusWriter:
    """Writer of the rows of one run; each account has the epoch of its lease."""

    def __init__(
        self,
        database: Database,
        name: str,
        accounts: Sequence[tuple[AccountKey, Callable[[], int]]],
    ) -> None:
        self._database = database
        self._name = name
        self._accounts = accounts

    async def write(self, live: LiveStatus, verdict: Verdict) -> None:
        """Write a row for each account; an account that another run holds keeps its own."""
        for (key, epoch), venue in zip(self._accounts, live.venues, strict=True):
            status = RunStatus(
                name=self._name,
                accounts=[str(each) for each, _ in self._accounts],
                venue=venue.venue,
                label=live.label,
                version=live.version,
                started_at=live.started_at,
                trades=live.trades,
                verdict=verdict,
                positions=sum(each.venue == venue.venue for each in live.positions),
                money=venue.money if venue.money.equity else None,
            )
            await self._database.execute(_WRITE, *key, epoch(), status)


async def load_run_status(database: Database, key: AccountKey) -> StoredRunStatus | None:
    """Return the row of an account; None: there is none that this version can read."""
    row = await database.fetchrow(_READ, *key)
    status = None if row is None else decode_status(row["status"])
    if row is None or status is None:
        return None
    return StoredRunStatus(
        account=str(key), status=status, age_s=age_of(row) or 0.0, is_holders=row["is_holders"]
    )


def decode_status(value: Any) -> RunStatus | None:
    """Return a stored status; None: there is none, or one of another version."""
    try:
        return None if value is None else msgspec.convert(value, RunStatus)
    except msgspec.ValidationError:
        return None


def age_of(row: Row) -> float | None:
    """Return the age of a row, at least 0 where the clock of the server was set back."""
    return None if row["age_s"] is None else max(0.0, row["age_s"])


LISTED_S = 7 * 86_400.0  # an account whose run ended longer ago is not listed

_ACCOUNTS = """
SELECT a.broker, a.account, a.epoch, s.epoch AS status_epoch, s.status,
       extract(epoch FROM clock_timestamp() - s.written_at)::float8 AS age_s,
       (SELECT count(*) FROM order_intent i
         WHERE i.broker = a.broker AND i.account = a.account AND i.status = 'CREATED')
     + (SELECT count(*) FROM stop_order w
         WHERE w.broker = a.broker AND w.account = a.account AND w.triggered_at IS NULL
           AND NOT EXISTS (SELECT FROM order_intent t WHERE t.signal_id = w.id
                              AND t.broker = w.broker AND t.account = w.account)) AS open_orders,
       (SELECT count(*) FROM order_attempt t
         WHERE t.broker = a.broker AND t.account = a.account AND t.status = 'UNKNOWN') AS unknown,
       (SELECT count(*) FROM alert l
         WHERE l.account = a.broker || ':' || a.account AND l.acknowledged_at IS NULL) AS alerts,
       (SELECT k.trading_enabled FROM kill_switch k
         WHERE k.broker = a.broker AND k.account = a.account AND k.scope = 'account') AS trading,
       (SELECT f.state FROM safety_state f
         WHERE f.broker = a.broker AND f.account = a.account) AS safety
  FROM account a LEFT JOIN run_status s USING (broker, account)
 ORDER BY a.broker, a.opened_at
"""

# active: holds the account and reports; silent: holds it and does not report; waiting: no run holds
# it, and a standby is about to take it; ended: no run has it.
RunRowState = Literal["active", "silent", "waiting", "ended"]


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """An account and the run that trades it, or traded it last.

    Figures of the run are those of its last status: of another time unless `is_current`.
    """

    account: str  # BROKER:DIGEST, the parameter `account` of other queries
    state: RunRowState
    is_current: bool
    age_s: float | None  # of the last status; None: there is none
    epoch: int
    host: str  # of the run that holds the account, or held it last
    pid: int
    home: str
    standbys: list[str]  # host and process
    name: str = ""
    label: RunLabel | None = None  # None: not known
    venue: str = ""
    version: str = ""
    started_at: datetime | None = None
    trades: str = ""
    verdict: Verdict | None = None  # None: whether it trades is not known, or it does not run
    currency: str = ""
    equity: Decimal | None = None
    cash: Decimal | None = None
    day_profit: Decimal | None = None  # realised and unrealised
    positions: int | None = None
    open_orders: int
    unknown: int  # orders with an unknown outcome
    alerts: int  # not acknowledged; of a run on several accounts at its first
    trading: bool | None  # the kill switch allows it; None: never set
    safety: str | None  # the fail-safe in the database; None: never set


class RunTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Sum over the accounts of one mode and one currency, of what is known now."""

    label: RunLabel
    currency: str
    accounts: int
    counted: int
    equity: Decimal | None  # None: of no account
    day_profit: Decimal | None
    missing: list[str]  # accounts whose figures are old or not known


class RunsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Runs on this database, and sums of what is known now."""

    runs: list[RunRow]
    totals: list[RunTotal]
    own: list[str]  # accounts that this dashboard shows without a parameter


async def load_runs(database: Database, own: Sequence[AccountKey]) -> RunsPage:
    """Return the accounts with a run, and those whose run ended in the last days."""
    leases = {each.account: each for each in await read_leases(database)}
    rows = [_row(row, leases) for row in await database.fetch(_ACCOUNTS)]
    runs = [row for row in rows if row is not None]
    return RunsPage(runs=runs, totals=sum_runs(runs), own=[str(key) for key in own])


async def accounts_of_run(database: Database, account: str) -> list[AccountKey]:
    """Return the accounts that one run trades with this one, or traded last.

    Raise RefusedError for an account that this database does not know.
    """
    rows = {f"{row['broker']}:{row['account']}": row for row in await database.fetch(_ACCOUNTS)}
    check_name("account", account, rows)
    status = decode_status(rows[account]["status"])
    found = [name for name in (status.accounts if status else ()) if name in rows]
    keys = found if account in found else [account]
    return [AccountKey(*name.split(":", 1)) for name in keys]


def status_prefix(prefix: str, own: AccountKey, other: AccountKey) -> str:
    """Return the prefix of another account's keys in a cache that both runs share."""
    return f"{prefix.removesuffix(f'{own.account}:')}{other.account}:"


def _row(row: Row, leases: dict[str, LeaseStatus]) -> RunRow | None:
    account = f"{row['broker']}:{row['account']}"
    lease, age_s = leases.get(account, LeaseStatus(account=account)), age_of(row)
    is_young = age_s is not None and age_s <= MAX_AGE_S
    status = decode_status(row["status"])
    is_current = (
        status is not None and is_young and lease.is_held and row["status_epoch"] == lease.epoch
    )
    if not lease.is_held and not lease.standbys and (age_s is None or age_s > LISTED_S):
        return None
    return RunRow(
        account=account,
        state=_state(lease, is_current),
        is_current=is_current,
        age_s=age_s,
        epoch=lease.epoch,
        host=lease.host,
        pid=lease.pid,
        home=lease.home,
        standbys=lease.standbys,
        **{name: row[name] for name in ("open_orders", "unknown", "alerts", "trading", "safety")},
        verdict=status.verdict if status is not None and is_current else None,
        **(_figures(status) if status is not None else {}),
    )


def _state(lease: LeaseStatus, is_current: bool) -> RunRowState:
    if lease.is_held:
        return "active" if is_current else "silent"
    return "waiting" if lease.standbys else "ended"


def _figures(status: RunStatus) -> dict[str, Any]:
    names = ("name", "label", "venue", "version", "started_at", "trades", "currency")
    found: dict[str, Any] = {name: getattr(status, name) for name in names}
    if (money := status.money) is not None:
        profit = money.realised_today + money.unrealised
        found |= {"equity": money.equity, "cash": money.cash, "day_profit": profit}
        found["positions"] = status.positions
    return found


def sum_runs(runs: Iterable[RunRow]) -> list[RunTotal]:
    """Return the sums by mode and currency; an account without either is in none of them."""
    groups: dict[tuple[RunLabel, str], list[RunRow]] = {}
    for run in runs:
        if run.label is not None:
            groups.setdefault((run.label, run.currency), []).append(run)
    return [_total(*group, rows) for group, rows in sorted(groups.items())]


def _total(label: RunLabel, currency: str, rows: list[RunRow]) -> RunTotal:
    known = [row for row in rows if row.is_current and row.equity is not None]
    profits = [row.day_profit for row in known if row.day_profit is not None]
    return RunTotal(
        label=label,
        currency=currency,
        accounts=len(rows),
        counted=len(known),
        equity=sum((row.equity for row in known if row.equity is not None), Decimal(0))
        if known
        else None,
        day_profit=sum(profits, Decimal(0)) if profits else None,
        missing=[row.account for row in rows if row not in known],
    )
