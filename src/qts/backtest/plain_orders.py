"""Orders of plain signals, taken without the objects of the steps where the result is certain.

    a signal ──▶ plain, nothing of its symbol in flight, every rule holds ──▶ sent as a row
             └─▶ in doubt ──▶ the five steps, the gate and the matching

The invariant: the result of a backtest is the same with and without this, whatever the strategy,
the tape and the limits. A signal is plain if it is a market order without a size and for the day,
that enters where nothing is held or leaves a position as a whole. Sizes, fees and cash are computed
in the decimals of the ordinary path. What depends on the prices of all positions is compared in
doubles, and has to hold by more than their largest error.

`compiled_orders.py` does the same inside of the compiled scan, which knows nothing of Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from qts.backtest.compiled_orders import LATEST_S, MIN_LATENCY_MS, has_plain_fills
from qts.backtest.order_log import LogSource, PlainTerms
from qts.backtest.plain_order_manager import SAME_TIME_S
from qts.backtest.portfolio import Place
from qts.backtest.strategy_run import StrategyRun
from qts.domain import (
    IntentType,
    OrderType,
    Position,
    Side,
    Tick,
    TimeInForce,
    exact_decimal,
)
from qts.risk import SafetyState
from qts.strategies import Instruction, Signal

if TYPE_CHECKING:
    from qts.backtest.engine import BacktestEngine

_INFINITE = float("inf")
_BUY, _SELL = Side.BUY, Side.SELL
_MARKET, _DAY = OrderType.MARKET, TimeInForce.DAY
_ENTRY, _EXIT = IntentType.ENTRY, IntentType.EXIT_SIGNAL
_IN_TICK, _AT_CLOSE = Place.TICK, Place.BAR_CLOSE
# A market order without a size, for the day.
_FORM = attrgetter(
    *("type", "time_in_force", "quantity", "value", "share", "risk"),
    *("stop", "target", "trail", "price", "trigger"),
)
_PLAIN = (_MARKET, _DAY, *[None] * 9)
_MOST_LOTS = 10**15
_MINUTE_S = 60.0
_CUT = "risk.limits.max_quantity"


class _SymbolTerms(NamedTuple):
    may_enter: bool
    smallest: Decimal  # value of an order at the venue
    enough: float  # value, computed in doubles, that is certainly not below the smallest
    most: Decimal  # so large a quantity is a multiple of the lot without rounding
    buying: Decimal  # fee of a purchase, as a share of its amount


class PlainOrders:
    """Takes the signals of an engine that it is certain of."""

    def __init__(self, engine: BacktestEngine) -> None:
        config = engine.config
        self._engine = engine
        self._portfolio, self._manager, self._clock = (
            engine.portfolio,
            engine.manager,
            engine.clock,
        )
        self._signals, self._takers = engine.signals, engine.updates.takers
        self._limits = limits = config.limits.exact
        self._kept_after_fall = 1 - limits.exit_margin
        self._max_exposure, self._max_symbol = (
            float(limits.max_exposure),
            float(limits.max_symbol_exposure),
        )
        self._daily_loss = float(limits.daily_loss)
        self._terms = PlainTerms(config, engine.portfolio.instruments)
        self._symbols: dict[str, _SymbolTerms] = {}
        self._sources: dict[str, LogSource] = {}
        self._cash_before = engine.portfolio.cash
        self._is_late = config.paper.latency_ms >= MIN_LATENCY_MS
        self.is_on = (
            has_plain_fills(config)
            and not config.instances
            and not limits.short_selling
            and not engine.portfolio.positions
        )

    def take(self, run: StrategyRun, returned: Sequence[Instruction]) -> bool:
        """Send the order of a single signal, if it is certain; return whether it is."""
        signal = returned[0]
        if (
            not self.is_on
            or len(returned) > 1
            or type(signal) is not Signal
            or not self._try_send(run, signal)
        ):
            return False
        run.signals += 1
        if self._signals.is_read:
            self._signals.report(run.key, signal, "")
        return True

    def _try_send(self, run: StrategyRun, signal: Signal) -> bool:
        manager, clock, at, symbol = self._manager, self._clock, signal.at, signal.symbol
        if (
            at != clock.at
            or not 0 < at < LATEST_S
            or manager.next_deadline <= at
            or symbol in manager.sent
            or symbol in manager.open
            or at - manager.signalled.get(symbol, -1.0) <= SAME_TIME_S
            or run.key in self._takers
            or _FORM(signal) != _PLAIN
        ):
            return False
        place = clock.place
        if place is not _AT_CLOSE and not (place is _IN_TICK and self._is_late):
            return False
        tick, position = self._portfolio.last_tick(symbol), self._portfolio.position(symbol)
        if tick is None:
            return False
        if position is None:
            return self._enter(run, signal, tick)
        return self._exit(run, signal, tick, position)

    def _exit(self, run: StrategyRun, signal: Signal, tick: Tick, position: Position) -> bool:
        """Sell a position."""
        portfolio, symbol, bid = self._portfolio, signal.symbol, tick.bid
        quantity, terms = position.quantity, self._symbols.get(symbol) or self._terms_of(symbol)
        if (
            signal.intent_type is not _EXIT
            or signal.side is not _SELL
            or not 0 < bid < _INFINITE
            or quantity <= 0
            or portfolio.cash <= 0
            or portfolio.owners.get(symbol, run.key) != run.key
            or bid * float(quantity) < terms.enough
        ):
            return False
        if self._clock.place is not _IN_TICK and not portfolio.equity.is_finite():
            return False
        self._manager.send(self._source_of(run), symbol, False, quantity, bid, None, signal.reason)
        return True

    def _enter(self, run: StrategyRun, signal: Signal, tick: Tick) -> bool:
        """Buy a symbol of which nothing is held."""
        engine, manager, portfolio, limits = (
            self._engine,
            self._manager,
            self._portfolio,
            self._limits,
        )
        symbol, at, ask, times = signal.symbol, signal.at, tick.ask, manager.order_times
        waiting = len(manager.sent) + len(manager.open)
        terms = self._symbols.get(symbol) or self._terms_of(symbol)
        if (
            signal.intent_type is not _ENTRY
            or signal.side is not _BUY
            or not (0 < ask < _INFINITE and terms.may_enter)
            or not 0 <= (at - tick.at) * 1000 <= limits.max_price_age_ms
            or engine.safety is not SafetyState.NORMAL
            or symbol in portfolio.owners
            or len(portfolio.positions) + waiting >= limits.max_open_symbols
            or (orders := len(times)) >= limits.orders_per_day
            or (
                orders >= limits.orders_per_minute
                and times[-limits.orders_per_minute] + _MINUTE_S > at
            )
        ):
            return False
        price = exact_decimal(ask)
        quantity, is_cut = self._terms.entry(symbol, price)
        if not 0 < quantity <= terms.most:
            return False
        amount = quantity * price
        cash = amount + amount * terms.buying
        if (
            amount < limits.min_order_value
            or amount * self._kept_after_fall < terms.smallest
            or amount > limits.max_order_value
            or amount > portfolio.cash
            or cash > manager.free_cash
            or not self._fits(float(amount))
        ):
            return False
        if is_cut:
            engine.cuts[_CUT] += 1
        self._manager.send(self._source_of(run), symbol, True, quantity, ask, cash, signal.reason)
        return True

    def _fits(self, value: float) -> bool:
        """Return whether the exposure and the loss of the day certainly allow an entry."""
        manager, portfolio = self._manager, self._portfolio
        (equity, held), cash, realised = portfolio.floats(), portfolio.cash, manager.realised
        cost = self._cost(cash) if portfolio.positions else 0.0
        waiting = self._waiting() if manager.sent or manager.open else 0.0
        slack = 1e-9 * (1 + equity + abs(realised) + held + abs(cost) + waiting + value)
        equity -= slack
        return (
            held + waiting + value + slack < equity * self._max_exposure
            and value + slack < equity * self._max_symbol
            and realised + held - cost - slack > -equity * self._daily_loss
        )

    def _cost(self, cash: Decimal) -> float:
        """Return what the positions were bought for, without fees: what the cash has lost to them.

        It is the cash of the beginning and what was realised after fees, without the cash of now.
        """
        earned = self._cash_before
        for each in self._manager.figures.values():
            earned += each.net
        return float(earned - cash)

    def _waiting(self) -> float:
        """Return the value of purchases that wait for a price."""
        manager, last, value = self._manager, self._portfolio.last_tick, 0.0
        for symbol, (_, is_entry, quantity, *_) in manager.sent.items():
            tick = last(symbol)
            if is_entry and tick is not None:
                value += float(quantity) * tick.price
        for symbol, orders in manager.open.items():
            tick = last(symbol)
            for each in orders.values():
                if each.proposal.side is Side.BUY:
                    price = each.proposal.price or (tick.price if tick is not None else 0.0)
                    value += float(each.remaining) * float(price)
        return value

    def _terms_of(self, symbol: str) -> _SymbolTerms:
        found = self._symbols.get(symbol)
        if found is None:
            instrument = self._portfolio.instruments[symbol]
            most = instrument.lot * _MOST_LOTS
            buying = self._terms.fees_of(symbol).of(_BUY, Decimal(1))
            may_enter = not instrument.entry_block
            smallest = instrument.min_order_value
            enough = float(smallest) * (1 + 1e-9)
            found = _SymbolTerms(may_enter, smallest, enough, most, buying)
            self._symbols[symbol] = found
        return found

    def _source_of(self, run: StrategyRun) -> LogSource:
        found = self._sources.get(run.key)
        if found is None:
            engine = self._engine
            found = self._sources[run.key] = LogSource(
                run.key, self._terms, engine.curve, engine.proposals, engine.config.signal_ttl_s
            )
        return found
