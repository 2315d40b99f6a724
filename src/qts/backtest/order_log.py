"""Order manager that also applies the log of compiled orders, in decimals and in time order.

The arithmetic is that of `_record` and of the paper account; what differs is when the state is
written: once, after the last row. A fill, trade or proposal is a row until somebody reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from qts.backtest.compiled_orders import (
    BOUGHT,
    FILLED,
    NEW_DAY,
    PRICE,
    SAMPLED,
    FillPart,
    LogAccount,
    OrderPart,
    TradePart,
)
from qts.backtest.config import BacktestConfig
from qts.backtest.late_values import LateRows
from qts.backtest.order_manager import BacktestOrderManager
from qts.backtest.order_rows import (
    BacktestOrder,
    FillRow,
    intent_of,
    make_fill,
    make_proposal,
    nanoseconds,
    side_of,
)
from qts.backtest.performance import EquityCurve, OpenTrade
from qts.brokers import PaperOrder
from qts.domain import (
    STOPS,
    FeeSchedule,
    Fill,
    Instruments,
    IntentType,
    OrderRequest,
    Position,
    Side,
    exact_decimal,
)
from qts.orders import PositionState, StrategyFigures
from qts.risk import OrderProposal

if TYPE_CHECKING:
    from qts._native import AppliedLog

_FLAT, _ZERO, _ONE = PositionState(), Decimal(0), Decimal(1)


class PlainTerms:
    """Quantities and fees of plain market orders, as evaluate and the paper venue compute them."""

    def __init__(self, config: BacktestConfig, instruments: Instruments) -> None:
        self.latency_ns = round(config.paper.latency_ms * 1e6)
        self._limits = config.limits.exact
        self._instruments = instruments
        self._costs = config.costs
        self._free: dict[tuple[str, bool], Decimal | None] = {}  # the fee where it is always zero
        self._most: dict[str, Decimal] = {}
        self._schedules: dict[str, FeeSchedule] = {}

    def entry(self, symbol: str, ask: Decimal) -> tuple[Decimal, bool]:
        """Return the quantity of an entry, and whether the largest quantity made it smaller."""
        limits = self._limits
        by_value = limits.max_order_value / ask
        if by_value <= limits.max_quantity:
            return self._instruments[symbol].floor_to_lot(by_value), False
        if symbol not in self._most:
            self._most[symbol] = self._instruments[symbol].floor_to_lot(limits.max_quantity)
        return self._most[symbol], True

    def fee(self, symbol: str, is_entry: bool, amount: Decimal) -> Decimal:
        """Return the fee of a fill."""
        key = symbol, is_entry
        try:
            fee = self._free[key]
        except KeyError:
            instrument, side = self._instruments[symbol], side_of(is_entry)
            is_free = not self._costs.of(instrument).of(side, _ONE)
            fee = self._costs.charge(instrument, side, _ONE) if is_free else None
            self._free[key] = fee
        if fee is None:
            return self._costs.charge(self._instruments[symbol], side_of(is_entry), amount)
        return fee

    def fees_of(self, symbol: str) -> FeeSchedule:
        found = self._schedules.get(symbol)
        if found is None:
            found = self._schedules[symbol] = self._costs.of(self._instruments[symbol])
        return found


class LogSource(NamedTuple):
    """Whose orders are in a log, and where its samples and proposals belong."""

    key: str  # of the strategy
    terms: PlainTerms
    curve: EquityCurve
    proposals: LateRows[OrderProposal]
    ttl_s: float  # of a signal


# An order that waits for a price: its number, whether it is an entry, quantity, time, quote, source
# and reason.
SentRow = tuple[int, bool, Decimal, float, float, LogSource, str]


class LogBatch:
    """State of the account while rows are applied."""

    def __init__(self, cash: Decimal, positions: Mapping[str, Position]) -> None:
        self.cash = self.equity = cash  # the latter of the last sample
        self.held = {symbol: each.quantity for symbol, each in positions.items()}
        self.sent: dict[str, SentRow] = {}
        # Positions that a row opened, and the strategies that they are of.
        self.entered: dict[str, tuple[FillRow, str]] = {}
        self.changed: dict[str, None] = {}  # symbols, in order
        self.cuts = 0  # entries that the largest quantity made smaller
        self.value = _ZERO  # of positions whose prices were read for the next sample
        self._floats: tuple[Decimal, Decimal, tuple[float, float]] | None = None

    def price(self, symbol: str, price: float) -> None:
        """Take the price of a position, for the sample after it."""
        self.value += exact_decimal(price) * self.held[symbol]

    def sample(self, at: float, curve: EquityCurve) -> None:
        """Add a point to the curve."""
        self.equity = self.cash + self.value if self.held else self.cash
        curve.add(at, self)
        self.value = _ZERO

    def floats(self) -> tuple[float, float]:
        """Return the equity of the last sample and the value of the positions in it."""
        equity, cash, last = self.equity, self.cash, self._floats
        if last is None or last[0] is not equity or last[1] is not cash:
            self._floats = last = equity, cash, (float(equity), float(equity - cash))
        return last[2]


class LoggingOrderManager(BacktestOrderManager):
    """Order manager that applies orders which a compiled scan has taken."""

    @property
    def money(self) -> tuple[float, float, float]:
        """Cash, what open orders hold of it, and the profit of the day after fees."""
        account = self._matching.account
        return float(account.cash), float(account.cash - account.free_cash), float(self._realised)

    @property
    def order_times(self) -> Sequence[float]:
        """Times of the orders of the day."""
        return self._order_times

    def apply_log(
        self, rows: Iterable[tuple[int, str, float, float]], source: LogSource
    ) -> tuple[int, int]:
        """Apply orders, fills and samples: kind, symbol, time and value of each row.

        Return how many entries the largest quantity made smaller, and how many orders still wait
        for a price: they are open orders now.
        """
        portfolio = self._portfolio
        batch = LogBatch(portfolio.cash, portfolio.positions)
        orders, fills = self.orders, len(self.fills)
        for kind, symbol, at, value in rows:
            if kind == FILLED:
                self._apply_fill(batch, symbol, at, value)
            elif kind == PRICE:
                batch.price(symbol, value)
            elif kind == SAMPLED:
                batch.sample(value, source.curve)
            elif kind == NEW_DAY:
                orders = self.orders
                self._begin_day()
            else:
                self._apply_order(batch, source, symbol, kind == BOUGHT, at, value)
        self._orders_of[source.key] += self.orders - orders
        self.filled[source.key] += len(self.fills) - fills
        return self._finish_log(batch, source.key)

    def log_account(self, key: str) -> LogAccount | None:
        """Return the account that a log of a strategy is applied to in the core.

        None: the core does not know such an account.
        """
        portfolio, before = self._portfolio, dict[str, Fill]()
        if key in ("", STOPS):  # its fills have another owner
            return None
        for symbol in portfolio.positions:
            fill = self._open_trades[symbol].only_fill
            if fill is None:
                return None
            before[symbol] = fill
        figures = self.figures.get(key, StrategyFigures())
        free = self._matching.account.free_cash
        amounts = portfolio.cash, self._realised, figures.realised, figures.fees
        return LogAccount(before, amounts, -int(free.as_tuple().exponent))

    def apply_core(
        self, found: AppliedLog, account: LogAccount, source: LogSource
    ) -> tuple[int, int]:
        """Take what the core has made of a log; return what `apply_log` does."""
        key, first = source.key, self.orders + 1
        batch = LogBatch(found.cash, {})
        batch.cuts = found.cuts
        batch.held = dict.fromkeys(found.held(), _ZERO)
        batch.changed = dict.fromkeys(found.changed())
        batch.entered = {row[1]: (row, key) for row in found.entered(first)}
        for place, (symbol, is_entry, quantity, at), quote in found.waiting():
            batch.sent[symbol] = first + place, is_entry, quantity, at, quote, source, key
        self.orders += found.orders
        if found.is_new_day:
            self._begin_day()
        times = found.times()  # of the day
        self._order_times += times
        self._orders_of[key] += len(times)
        self.filled[key] += found.fills
        self._realised = found.day
        if found.fills:
            figures = self.figures[key]
            figures.fills += found.fills
            figures.realised, figures.fees = found.realised, found.fees
        source.proposals.add_part(OrderPart(found, key, source.ttl_s))
        self.fills.add_part(FillPart(found, first))
        self.trades.add_part(TradePart(found, first, key, tuple(account.positions.values())))
        source.curve.add_played(found.points())
        if found.hold_decimals > account.hold_decimals:
            self._matching.account.pass_hold(Decimal((0, (0,), -found.hold_decimals)))
        for symbol in batch.changed:
            is_held = symbol in batch.held
            if not is_held or symbol in batch.entered:
                self._open_trades.pop(symbol, None)
                self._positions.pop(symbol, None)
                self._fill_owners.owner(symbol, key, intent_of(is_held), is_flat=not is_held)
        return self._finish_log(batch, key)

    def _finish_log(self, batch: LogBatch, key: str) -> tuple[int, int]:
        self._write_account(batch, key)
        for symbol, order in batch.sent.items():
            self._open_order(symbol, order)
        for symbol in batch.changed:
            self._on_change(symbol)
        return batch.cuts, len(batch.sent)

    def _apply_order(
        self,
        batch: LogBatch,
        source: LogSource,
        symbol: str,
        is_entry: bool,
        at: float,
        quote: float,
    ) -> None:
        if is_entry:
            terms, price = source.terms, exact_decimal(quote)
            quantity, is_cut = terms.entry(symbol, price)
            batch.cuts += is_cut
            amount = quantity * price
            self._matching.account.pass_hold(amount + terms.fees_of(symbol).of(Side.BUY, amount))
        else:
            quantity = abs(batch.held[symbol])
        self._add_order(batch, symbol, (is_entry, quantity, at, quote, source, source.key))

    def _add_order(
        self,
        batch: LogBatch,
        symbol: str,
        order: tuple[bool, Decimal, float, float, LogSource, str],
    ) -> None:
        """Count an order and let it wait for a price; its row is `SentRow` without the number."""
        is_entry, quantity, at, _, source, reason = order
        self.orders += 1
        self._order_times.append(at)
        source.proposals.add_row((source.key, source.ttl_s, symbol, is_entry, quantity, at, reason))
        batch.sent[symbol] = self.orders, *order
        batch.changed[symbol] = None

    def _apply_fill(self, batch: LogBatch, symbol: str, at: float, quote: float) -> Decimal:
        """Fill the order of a symbol; return what this adds to the cash."""
        number, is_entry, asked, _, _, source, _ = batch.sent.pop(symbol)
        price, quantity, key = exact_decimal(quote), asked - _ZERO, source.key
        amount, realised = price * quantity, _ZERO
        fee = source.terms.fee(symbol, is_entry, amount)
        row = number, symbol, is_entry, quantity, price, fee, at
        self.fills.add_row(row)
        owner = self._fill_owners.owner(symbol, key, intent_of(is_entry), is_flat=not is_entry)
        if is_entry:
            change = -(amount + fee)
            batch.entered[symbol] = row, key
            batch.held[symbol] = _ZERO + quantity
        else:
            change = amount - fee
            realised = self._close_trade(batch.entered.pop(symbol, None), row, key)
            del batch.held[symbol]
        batch.cash += change
        self._realised += realised - fee
        self.figures[owner].add(realised, fee)
        return change

    def _close_trade(self, opened: tuple[FillRow, str] | None, end: FillRow, key: str) -> Decimal:
        """Add the trade that a fill ends; return what the fill realises, before fees."""
        if opened is not None:
            entry = opened[0]
            self.trades.add_row((entry, end, key))
            return _ZERO + PositionState.gain(entry[4], end[4], end[3])
        fill = make_fill(*end)
        trade, before = self._open_trades.pop(fill.symbol), self._positions.pop(fill.symbol)
        trade.add(fill, IntentType.EXIT_SIGNAL)
        self.trades.append(trade.to_trade())
        return before.apply(fill).realised_pnl - before.realised_pnl

    def _write_account(self, batch: LogBatch, key: str) -> None:
        """Let the portfolio and the paper account have what the rows of a strategy left."""
        portfolio = self._portfolio
        for symbol in batch.changed:
            portfolio.set_owner(symbol, key if symbol in batch.held else "")
        opened = self._write_positions(batch)
        self._matching.account.cash = batch.cash
        if batch.changed:
            before = portfolio.positions
            portfolio.load(batch.cash, [opened.get(each) or before[each] for each in batch.held])

    def _write_positions(self, batch: LogBatch) -> dict[str, Position]:
        """Write positions to the paper account, without their cash; return those that rows opened.

        The order manager gets their trades.
        """
        account, opened = self._matching.account, dict[str, Position]()
        cash = account.cash
        for symbol in batch.changed:
            if symbol not in batch.held or symbol in batch.entered:
                account.lots.pop(symbol, None)
        for symbol, (row, key) in batch.entered.items():
            fill = make_fill(*row)
            account.settle(fill)
            after = self._positions[symbol] = _FLAT.apply(fill)
            opened[symbol] = Position(symbol, after.quantity, after.average_price)
            trade = self._open_trades[symbol] = OpenTrade(key)
            trade.add(fill, IntentType.ENTRY)
        account.cash = cash
        return opened

    def _open_order(self, symbol: str, sent: SentRow) -> None:
        """Let an order that waits for a price be as if it had been sent at its time."""
        number, is_entry, quantity, at, quote, source, reason = sent
        order_id, portfolio = f"B{number}", self._portfolio
        proposal = make_proposal(source.key, source.ttl_s, symbol, is_entry, quantity, at, reason)
        request = OrderRequest(
            client_order_id=order_id,
            symbol=symbol,
            side=proposal.side,
            type=proposal.type,
            quantity=proposal.quantity,
            price=None,
            time_in_force=proposal.time_in_force,
        )
        self._clock.at, at_ns = at, nanoseconds(at)
        order = PaperOrder(order_id, request, at_ns + source.terms.latency_ns)
        order.worst = exact_decimal(quote)
        fees = source.terms.fees_of(symbol)
        self._matching.account.hold_remaining(
            order_id, request, order.worst, request.quantity, fees
        )
        opened = BacktestOrder(order_id, proposal, at, proposal.quantity)
        self.open.setdefault(symbol, {})[order_id] = opened
        portfolio.set_order(opened.snapshot("ACKED"), is_open=True)
        if is_entry:
            portfolio.set_owner(symbol, source.key)
        self._submitted.add((proposal.signal_id, proposal.intent_type))
        if self._waits_for_open(proposal):
            self._arriving.setdefault(symbol, []).append((order, opened))
            return
        self._set_deadline(opened, -math.inf)
        self._matching.start(order, at_ns)
