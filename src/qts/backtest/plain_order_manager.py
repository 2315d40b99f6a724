"""Order manager that also takes plain market orders whose result is certain (`plain_orders.py`).

    send ──▶ a row waits for a price ──▶ FILLED: rows of the fill and of the trade
                                     └─▶ something else happens: `write`, an open order from now on

The portfolio, the cash, the counts and the deadlines are always those of the ordinary path; what
only the order manager and the paper account read is written late, by `write`: positions, their
trades, open orders and the ids of signals. Whatever reads them calls `write` first.

It repeats `submit` and `_apply` of the order manager because an order costs a fifth of theirs
without the request, the proposal and the fill as objects, and most orders of a backtest are plain.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from heapq import heappush
from typing import Any

from qts.backtest.order_log import LogBatch, LoggingOrderManager, LogSource
from qts.backtest.order_rows import intent_of, nanoseconds, side_of
from qts.backtest.performance import Trade
from qts.backtest.portfolio import Place, day_end
from qts.domain import Fill, OrderSnapshot, OrderTerms, Position, Side, Tick
from qts.orders import AccountState, PositionState, signal_id_for
from qts.risk import ApprovedOrder, OrderProposal
from qts.strategies import Signal

SAME_TIME_S = 2e-6  # signals that are less apart may have the same id
_ZERO = Decimal(0)
_INFINITE = math.inf
_BUY, _SELL, _IN_TICK = Side.BUY, Side.SELL, Place.TICK


class PlainOrderManager(LoggingOrderManager):
    """Order manager with the methods `send` and `write` for plain orders."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._batch = LogBatch(_ZERO, {})
        self.sent = self._batch.sent  # plain orders that wait for a price, by symbol
        self._cash_held: dict[str, Decimal] = {}  # of `sent`
        self._signals: list[tuple[str, str, bool, float]] = []  # whose ids are not known yet
        self.signalled: dict[str, float] = {}  # the latest time of a signal that was sent
        self._deadline = -math.inf  # the latest that a plain order was given
        self._day = math.inf, -math.inf  # when the day of a deadline begins and ends

    @property
    def free_cash(self) -> Decimal:
        """Cash that no open order holds."""
        return self._matching.account.free_cash

    @property
    def realised(self) -> float:
        """PnL of the current day, after fees."""
        return float(self._realised)

    # ---- plain orders ----

    def send(
        self,
        source: LogSource,
        symbol: str,
        is_entry: bool,
        quantity: Decimal,
        quote: float,
        cash: Decimal | None,
        reason: str,
    ) -> None:
        """Send an order that is certain to be approved, and to be filled at the next price.

        It holds `cash` until then.
        """
        clock, key, portfolio, batch = self._clock, source.key, self._portfolio, self._batch
        at = clock.at
        self._add_order(batch, symbol, (is_entry, quantity, at, quote, source, reason))
        self._orders_of[key] += 1
        self._signals.append((key, symbol, is_entry, at))
        self.signalled[symbol] = at
        portfolio.set_order(
            OrderSnapshot(
                intent_id=f"B{self.orders}",
                symbol=symbol,
                side=_BUY if is_entry else _SELL,
                state="ACKED",
                filled=quantity - quantity,
                remaining=quantity,
                strategy_key=key,
            ),
            is_open=True,
        )
        if cash is not None:
            self._cash_held[symbol] = cash
            self._matching.account.hold_cash(cash)
        if is_entry:
            portfolio.set_owner(symbol, key)
            portfolio.exits.pop(symbol, None)
        else:
            batch.held[symbol] = quantity
        if clock.place is _IN_TICK:
            self._end_with_day(symbol)
        self._on_change(symbol)

    def _end_with_day(self, symbol: str) -> None:
        """Set the deadline of an order of today, if no other has it.

        Over bars it has none: it is filled at the open at which its time in force begins.
        """
        at, (begin, end) = self._clock.at, self._day
        if not begin <= at < end:
            begin, end = self._day = at, day_end(at)
        if end != self._deadline:
            self._deadline = end
            heappush(self._deadlines, (end, f"B{self.sent[symbol][0]}", symbol))
            self.next_deadline = self._deadlines[0][0]

    def _fill_plain(self, symbol: str, quote: float) -> None:
        """Fill the order of a symbol, as `_apply` does."""
        account, portfolio, batch = self._matching.account, self._portfolio, self._batch
        number, is_entry, _, _, _, source, _ = batch.sent[symbol]
        batch.cash = account.cash
        change = self._apply_fill(batch, symbol, self._clock.at, quote)
        account.cash = batch.cash
        cash = self._cash_held.pop(symbol, None)
        if cash is not None:
            account.release_cash(cash)
        self.filled[source.key] += 1
        portfolio.end_order(f"B{number}")
        if is_entry:
            entry, _ = batch.entered[symbol]
            average = PositionState.average(entry[4])
            portfolio.apply_position(Position(symbol, batch.held[symbol], average), change)
        else:
            portfolio.apply_position(Position(symbol, _ZERO, _ZERO), change)
        self._on_change(symbol)

    def write(self) -> None:
        """Write what plain orders have left to the order manager and to the paper account."""
        batch, account, at = self._batch, self._matching.account, self._clock.at
        if not batch.changed:
            return
        self._batch, self.sent = LogBatch(_ZERO, {}), {}
        self._batch.sent = self.sent
        self._write_positions(batch)
        for symbol, order in batch.sent.items():
            cash = self._cash_held.pop(symbol, None)
            if cash is not None:
                account.release_cash(cash)
            self._open_order(symbol, order)
        self._clock.at = at

    def _write_signals(self) -> None:
        for key, symbol, is_entry, at in self._signals:
            decided_at = datetime.fromtimestamp(at, UTC)
            signal_id = signal_id_for(key, symbol, side_of(is_entry), decided_at)
            self._submitted.add((signal_id, intent_of(is_entry)))
        self._signals.clear()

    # ---- prices ----

    def on_tick(self, tick: Tick) -> None:
        if self.sent:
            self._expire()
            order = self.sent.get(tick.symbol)
            if order is not None:
                self._match_plain(tick, order[3], order[5])
                return
        super().on_tick(tick)

    def _match_plain(self, tick: Tick, sent_at: float, source: LogSource) -> None:
        starts_ns = nanoseconds(sent_at) + source.terms.latency_ns
        is_due = self._clock.place is Place.TICK and self._clock.monotonic_ns() >= starts_ns
        if is_due and 0 < tick.price < _INFINITE:
            quote = tick.ask if self.sent[tick.symbol][1] else tick.bid
            self._fill_plain(tick.symbol, quote if 0 < quote < _INFINITE else tick.price)

    def on_open(self, tick: Tick, low: float, high: float, closes_at: float) -> None:
        if self.next_deadline <= self._clock.at:
            self._expire()
        if tick.symbol in self.sent:
            if 0 < tick.price < _INFINITE:  # the quotes of an open are its price
                self._fill_plain(tick.symbol, tick.price)
                return
            self.write()
        super().on_open(tick, low, high, closes_at)

    # ---- what reads the state of the order manager ----

    def is_open(self, symbol: str) -> bool:
        """Return whether an order of a symbol is open."""
        return symbol in self.sent or symbol in self.open

    def start_day(self) -> None:
        self.write()
        super().start_day()

    def submit(self, approved: ApprovedOrder) -> str:
        self.write()
        proposal = approved.proposal
        symbol, at = proposal.symbol, proposal.decided_at.timestamp()
        latest = self.signalled.get(symbol, -math.inf)
        if at <= latest + SAME_TIME_S:
            self._write_signals()
        self.signalled[symbol] = max(at, latest)
        return super().submit(approved)

    def make_room(self, proposal: OrderProposal) -> None:
        self.write()
        super().make_room(proposal)

    def cancel(self, order: OrderSnapshot, strategy_key: str) -> tuple[Decimal, OrderTerms] | None:
        self.write()
        return super().cancel(order, strategy_key)

    def finish(self) -> None:
        self.write()
        super().finish()

    def has_recent_order(self, signal: Signal, max_age_s: float) -> bool:
        if signal.symbol in self.sent:
            self.write()
        return super().has_recent_order(signal, max_age_s)

    def account_state(self) -> AccountState:
        self.write()
        return super().account_state()

    def entry_block(self) -> tuple[float, str]:
        self.write()
        return super().entry_block()

    @property
    def open_trades(self) -> list[Trade]:
        self.write()
        return super().open_trades

    def _expire(self) -> None:
        if self.next_deadline <= self._clock.at:
            self.write()
            super()._expire()

    def _record(self, fill: Fill, proposal: OrderProposal) -> None:
        self.write()
        super()._record(fill, proposal)
