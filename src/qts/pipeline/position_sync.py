"""Positions of a run: loaded from the ledger, followed there, pushed to the stops.

    fills of this run (P0) ─▶ portfolio ─▶ stops ─▶ state, written behind (table position_stop)
    an adoption (NOTIFY, or the poll) ─▶ reload       └──▶ restored at the start

A standby follows what is held; when it takes over, it watches the positions of the ledger at once
and loads them once the ledger is reconciled.

Invariant: each fill of the ledger changes the portfolio once. It is expected from its commit on
(`expect`), and taken by its P0 event (`apply`) or, where that was lost or became a dead letter, by
a reload from the ledger: whichever removes it from the expected ones. A fill that is not expected
changes nothing: it was taken before, or by `load`.

The state of the stops belongs to one position. A position is another one when it was opened later,
or adopted again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import NamedTuple

import msgspec

from qts.brokers import Broker
from qts.database import Database, Row
from qts.domain import (
    AccountKey,
    AttemptState,
    Clock,
    ExitLevels,
    IntentType,
    OrderSnapshot,
    Position,
    Side,
)
from qts.events import payloads as p
from qts.orders import (
    WAITING,
    FillApplied,
    OrderRow,
    PositionRow,
    half_sold_symbols,
    list_orders,
    list_positions,
)
from qts.pipeline.portfolio import Portfolio, cash_change
from qts.pipeline.stop_records import StopRecords
from qts.risk import (
    MicroRiskLoop,
    OrderProposal,
    PositionStops,
    StopRecord,
    load_stop_records,
    save_stop_records,
)
from qts.strategies import StrategyKind

_OWNERS = (
    "SELECT DISTINCT ON (i.symbol) i.symbol, i.strategy_key,"
    " (SELECT a.request_json ->> 'exits' FROM order_intent e"
    " JOIN order_attempt a ON a.order_intent_id = e.id"
    " WHERE e.broker = $1 AND e.account = $2 AND e.symbol = i.symbol"
    " AND e.strategy_key = i.strategy_key AND e.intent_type = 'ENTRY'"
    " AND e.side = CASE WHEN p.quantity > 0 THEN 'BUY' ELSE 'SELL' END"
    " ORDER BY e.created_at DESC, a.attempt_no DESC LIMIT 1) AS exits"
    " FROM order_intent i"
    " JOIN position p ON p.broker = i.broker AND p.account = i.account AND p.symbol = i.symbol"
    " AND p.quantity <> 0"
    " WHERE i.broker = $1 AND i.account = $2 AND i.intent_type = 'ENTRY'"
    " ORDER BY i.symbol, i.created_at DESC"
)

_IN_USE = (
    "SELECT EXISTS (SELECT FROM order_intent"
    " WHERE broker = $1 AND account = $2 AND symbol = $3 AND status = 'CREATED')"
    " OR EXISTS (SELECT FROM position"
    " WHERE broker = $1 AND account = $2 AND symbol = $3 AND quantity <> 0)"
)
LOST_AFTER_S = 5.0  # a P0 event that was not handled by then is not waited for
MAX_OPEN_ORDERS = 10_000
MAX_LOADS = 3  # of a ledger that changes meanwhile


class _LedgerRows(NamedTuple):
    owners: list[Row]
    positions: list[PositionRow]
    stops: dict[str, StopRecord]
    half_sold: frozenset[str]
    orders: list[OrderRow]


class _ExpectedFill(NamedTuple):
    cash_change: Decimal
    since_ns: int | None  # None: its event is a dead letter


class PositionSync:
    """Keeps portfolio and stops on the same positions; `loaded` is set once they are known.

    `kinds` maps a strategy's key to its kind, `stops` to its own stops, if it has any. `apply`,
    `fill_reported` and `give_up` are called on the thread of P0, everything else on the event loop.
    """

    def __init__(
        self,
        portfolio: Portfolio,
        micro_risk: MicroRiskLoop,
        kinds: Mapping[str, StrategyKind],
        clock: Clock,
        stops: Mapping[str, PositionStops] | None = None,
        epoch: Callable[[], int] | None = None,  # of the lease of the run
    ) -> None:
        self.portfolio = portfolio
        self._micro_risk = micro_risk
        self._clock = clock
        self._epoch: Callable[[], int | None] = epoch or (lambda: None)
        self._records = StopRecords(portfolio, micro_risk, kinds, stops or {})
        self._fills = self._submitted = 0
        self._expected: dict[str, _ExpectedFill] = {}  # by trade id
        self._lock = threading.RLock()  # of all that both threads use; never held over an await
        self._ledger: tuple[Database, AccountKey] | None = None
        self._follows = True  # until the stops watch
        self.loaded = asyncio.Event()

    async def load(self, database: Database, broker: Broker) -> None:
        for left in reversed(range(MAX_LOADS)):
            fills = self._fills
            account = await broker.account()
            ledger = await _read_ledger(database, broker.key)
            if fills == self._fills or not left:
                break
        with self._lock:
            self._expected.clear()  # the rows have them
            self._take(ledger, account.cash)
            self._ledger = database, broker.key
            self.loaded.set()
            self._push()

    async def watch(self, database: Database, key: AccountKey) -> None:
        """Let the stops watch what the ledger holds, before it is reconciled.

        Nothing is loaded by that: no cycle starts, and exits wait.
        """
        self._follows = False
        ledger = await _read_ledger(database, key)
        with self._lock:
            self._take(ledger, self.portfolio.cash)
            self._push()

    async def follow(self, database: Database, key: AccountKey) -> None:
        """Take what the ledger holds into the portfolio alone: its prices are wanted."""
        positions = {each.symbol: each for each in _positions(await list_positions(database, key))}
        with self._lock:
            if self._follows and positions != self.portfolio.positions:
                self.portfolio.reload(positions.values(), Decimal(0))

    def _take(self, ledger: _LedgerRows, cash: Decimal) -> None:
        """Take all at once: no tick may meet a position without its stop state."""
        self.portfolio.load(cash, _positions(ledger.positions))
        for symbol, key, exits in ledger.owners:
            self.portfolio.set_owner(symbol, key)
            levels = msgspec.json.decode(exits, type=ExitLevels) if exits else None
            self._records.set_exits(symbol, key, levels)
        for row in reversed(ledger.orders):  # the oldest first; StopOrders has those that wait
            if row.status == WAITING:
                continue
            self.portfolio.set_order(_order(row), is_open=True)
            if row.intent_type == IntentType.ENTRY:  # it buys what nobody holds yet
                known = self.portfolio.owners.get(row.symbol)
                self.portfolio.set_owner(row.symbol, known or row.strategy_key)
        self._records.take(ledger.positions, ledger.stops)
        self._records.mark_half_sold(ledger.half_sold)

    # --- fills ----------------------------------------------------------------------------------

    def expect(self, change: FillApplied) -> None:
        """Expect the P0 event of a fill that the ledger has; called before it is published."""
        with self._lock:
            self._fills += 1
            self._expected[change.fill.trade_id] = _ExpectedFill(
                cash_change(change.fill), self._clock.monotonic_ns()
            )

    def fill_reported(self) -> None:
        """Note that the venue has more fills than the ledger: a reading that runs is outdated."""
        with self._lock:
            self._fills += 1

    def apply(self, update: p.PositionUpdate) -> None:
        """Move portfolio and stops by a fill; a fill that is not expected moves nothing."""
        quantity, average = p.as_decimal(update.qty), p.as_decimal(update.average_price)
        at = update.opened_at
        opened_at = None if at is None else datetime.fromtimestamp(at, UTC)
        with self._lock:
            if update.trade_id in self._expected:
                self._records.follow(update.symbol, quantity, average, opened_at)
                position = Position(update.symbol, quantity, average)
                self.portfolio.apply_position(position, p.as_decimal(update.cash_change))
                del self._expected[update.trade_id]
                self._fills += 1
            self._push()  # also in a retry, after the stops had failed

    def give_up(self, trade_id: str) -> None:
        """Leave a fill whose event became a dead letter to the next reload."""
        with self._lock:
            if expected := self._expected.get(trade_id):
                self._expected[trade_id] = expected._replace(since_ns=None)

    def _lost(self, everything: bool) -> list[str] | None:
        """Return the fills that no event will bring; None while one may still do so."""
        now_ns = self._clock.monotonic_ns()
        oldest_ns = now_ns if everything else now_ns - round(LOST_AFTER_S * 1e9)
        since = (each.since_ns for each in self._expected.values())
        if any(each is not None and each > oldest_ns for each in since):
            return None
        return list(self._expected)

    # --- the venue's cash -----------------------------------------------------------------------

    def reading_began(self) -> int:
        return self._fills

    def account_read(self, began: int, cash: Decimal, positions: Mapping[str, Decimal]) -> None:
        """Take the venue's cash: deposits, withdrawals and manual trades reach the limits.

        Not if a fill was applied since the reading began, nor if one is stored and not yet applied
        here: the venue may have counted it, or not. The next reading is as good.
        """
        stored = {symbol: quantity for symbol, quantity in positions.items() if quantity}
        with self._lock:
            held = {each.symbol: each.quantity for each in self.portfolio.positions.values()}
            is_same = began == self._fills and not self._expected and held == stored
            if self.loaded.is_set() and is_same:
                self.portfolio.set_cash(cash)

    # --- owners ---------------------------------------------------------------------------------

    async def release_owner(self, symbol: str) -> None:
        """Free a symbol that nobody holds and no order may buy: another strategy may trade it.

        The ledger says so: what it holds may not have come through P0 yet.
        """
        portfolio = self.portfolio
        while self._ledger is not None and symbol in portfolio.owners:
            before, (database, key) = self._submitted, self._ledger
            if await database.fetchval(_IN_USE, *key, symbol) or symbol in portfolio.positions:
                return
            if before == self._submitted:  # else an entry was submitted meanwhile
                portfolio.set_owner(symbol, "")

    def entered(self, proposal: OrderProposal) -> None:
        """Note the owner of a symbol, and its exits, from an entry that was submitted."""
        symbol, key = proposal.symbol, proposal.strategy_key
        with self._lock:
            self._submitted += 1
            self.portfolio.set_owner(symbol, key)
            held = self.portfolio.positions.get(symbol)
            if held is None or held.quantity * proposal.side.sign > 0:
                self._records.set_exits(symbol, key, proposal.exits)
                self._push()

    # --- the ledger -----------------------------------------------------------------------------

    async def reload(self, database: Database, broker: Broker, *, after_stop: bool = False) -> None:
        """Take what P0 did not bring: an adoption, a manual correction, the fill of a dead letter.

        `after_stop`: the lanes have stopped, and bring nothing more.
        """
        fills = self._fills
        rows, stored = await _read_positions(database, broker.key)
        with self._lock:
            lost = self._lost(after_stop)
            if fills != self._fills or lost is None:  # newer than what was read, or on its way
                return
            self._records.take(rows, stored)
            positions = {each.symbol: each for each in _positions(rows)}
            changes = [self._expected.pop(trade_id).cash_change for trade_id in lost]
            if changes or positions != self.portfolio.positions:
                self.portfolio.reload(positions.values(), sum(changes, Decimal(0)))
            self._push()

    async def save_stops(self, database: Database, broker: Broker) -> None:
        """Write the stop states that changed since the last time, in one statement."""
        with self._lock:
            records = self._records.unsaved()
        if records:
            await save_stop_records(database, broker.key, records, self._epoch())
            self._records.saved(records)

    def notes(self) -> dict[str, str]:
        """Return what the operator should know of positions that no stop watches."""
        return self._records.notes()

    def unwatched(self) -> frozenset[str]:
        """Return the symbols that were adopted without stops."""
        return self._records.unwatched()

    def push_to_stops(self) -> None:
        """Push the positions to the stops, unless P0 is about to."""
        if self._lock.acquire(blocking=False):
            try:
                self._push()
            finally:
                self._lock.release()

    def _push(self) -> None:
        self._micro_risk.set_positions(self._records.shadows(), float(self.portfolio.equity))


async def _read_ledger(database: Database, key: AccountKey) -> _LedgerRows:
    owners, (rows, stored), half_sold, orders = await asyncio.gather(
        database.fetch(_OWNERS, *key),
        _read_positions(database, key),
        half_sold_symbols(database, key),
        list_orders(database, key, only_open=True, limit=MAX_OPEN_ORDERS),
    )
    return _LedgerRows(owners, rows, stored, half_sold, orders)


async def _read_positions(
    database: Database, key: AccountKey
) -> tuple[list[PositionRow], dict[str, StopRecord]]:
    """Return positions, and stop records that are at least as new.

    Read the other way round, a position that is adopted without stops between the two reads would
    be watched from its cost: one under water would be sold at once.
    """
    rows = await list_positions(database, key)
    return rows, await load_stop_records(database, key)


def _order(row: OrderRow) -> OrderSnapshot:
    return OrderSnapshot(
        intent_id=str(row.intent_id),
        symbol=row.symbol,
        side=Side(row.side),
        state=row.attempt_state or AttemptState.PREPARED,
        filled=row.filled,
        remaining=row.quantity - row.filled,
        price=row.price,
        strategy_key=row.strategy_key,
    )


def _positions(rows: list[PositionRow]) -> list[Position]:
    return [Position(row.symbol, row.quantity, row.average_price) for row in rows if row.quantity]
