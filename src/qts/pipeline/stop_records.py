"""Stop states of the positions that are held: followed, exported, parked when they are dust."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from decimal import Decimal

from msgspec.structs import replace

from qts.domain import ExitLevels, Position
from qts.orders import PositionRow
from qts.pipeline.portfolio import Portfolio
from qts.risk import MicroRiskLoop, PositionShadow, PositionStops, StopRecord
from qts.strategies import StrategyKind

NO_STOPS, DUST = "no stops", "dust, too small to sell"
UNPARK_RISE = 1.02  # a parked position is watched again when its value is this much higher


class StopRecords:
    """Memory of the stops, one record for each position; changes are serialised by its owner.

    `kinds` maps a strategy's key to its kind, which decides how long its positions are held;
    `stops` has those of strategies with stops of their own.
    """

    def __init__(
        self,
        portfolio: Portfolio,
        micro_risk: MicroRiskLoop,
        kinds: Mapping[str, StrategyKind],
        stops: Mapping[str, PositionStops],
    ) -> None:
        self._portfolio = portfolio
        self._micro_risk = micro_risk
        self._kinds = kinds
        self._stops = stops
        self._records: dict[str, StopRecord] = {}
        self._saved: dict[str, StopRecord] = {}
        self._parked_value: dict[str, float] = {}
        self._exits: dict[str, tuple[str, ExitLevels]] = {}  # by symbol, with the strategy

    def take(self, rows: Iterable[PositionRow], stored: Mapping[str, StopRecord]) -> None:
        """Take positions from the ledger, with the stored states that belong to them."""
        held = [row for row in rows if row.quantity]
        for row in held:
            record, known = stored.get(row.symbol), self._records.get(row.symbol)
            belongs = record is not None and record.opened_at == row.opened_at
            if record and belongs and (known is None or known.adopted_at != record.adopted_at):
                self._records[row.symbol] = record
                if record.dust:
                    self._micro_risk.parked.add(row.symbol)
            self.follow(row.symbol, row.quantity, row.average_price, row.opened_at)
        for symbol in self._records.keys() - {row.symbol for row in held}:
            self._forget(symbol)

    def follow(
        self, symbol: str, quantity: Decimal, average: Decimal, opened_at: datetime | None
    ) -> None:
        """Follow a position after a fill; one that was opened later is another position."""
        if not quantity or opened_at is None:
            self._forget(symbol)
            return
        record = self._records.get(symbol)
        if record is None or record.opened_at < opened_at:
            self._forget(symbol)
            record = StopRecord(
                symbol=symbol,
                opened_at=opened_at,
                quantity=float(quantity),
                average=float(average),
            )
        self._records[symbol] = record.grown(float(quantity), float(average))

    def set_exits(self, symbol: str, strategy_key: str, exits: ExitLevels | None) -> None:
        """Take the exits of the latest entry of a symbol; they hold while its strategy owns it."""
        if exits is None:
            self._exits.pop(symbol, None)
        else:
            self._exits[symbol] = strategy_key, exits

    def mark_half_sold(self, symbols: Collection[str]) -> None:
        """Record halves that the ledger shows: their orders are durable before the state is."""
        for symbol in symbols & self._records.keys():
            record = self._records[symbol]
            start = record.reference or record.average
            best, worst, trailing, armed, _ = record.state or (start, start, 0.0, False, False)
            state = (best, worst, trailing, armed, True)
            self._records[symbol] = replace(record, state=state)

    def shadows(self) -> list[PositionShadow]:
        """Return the positions that the stops watch."""
        found = (self._shadow(each) for each in self._portfolio.positions.values())
        return [shadow for shadow in found if shadow is not None]

    def unwatched(self) -> frozenset[str]:
        """Return the symbols that were adopted without stops."""
        return frozenset(each.symbol for each in list(self._records.values()) if not each.watched)

    def notes(self) -> dict[str, str]:
        """Return which positions no stop watches, and why."""
        return dict.fromkeys(self.unwatched(), NO_STOPS) | dict.fromkeys(
            self._micro_risk.parked, DUST
        )

    def unsaved(self) -> list[StopRecord]:
        """Return the records that changed since they were saved."""
        for symbol in self._records:
            self._export(symbol)
        return [each for each in self._records.values() if self._saved.get(each.symbol) != each]

    def saved(self, records: Iterable[StopRecord]) -> None:
        self._saved.update((each.symbol, each) for each in records)

    def _shadow(self, position: Position) -> PositionShadow | None:
        symbol, owner = position.symbol, self._owner(position.symbol)
        kind, stops = self._kinds.get(owner, "PORTFOLIO"), self._stops.get(owner)
        lot = float(self._portfolio.instruments[symbol].lot)
        quantity, average = float(position.quantity), float(position.average_price)
        record = self._records.get(symbol)
        strategy_key, exits = self._exits.get(symbol, ("", None))
        if strategy_key != owner:
            exits = None
        if record is None:
            return PositionShadow(
                symbol=symbol,
                quantity=quantity,
                average=average,
                lot=lot,
                kind=kind,
                stops=stops,
                exits=exits,
            )
        if not record.watched or self._is_parked(position, record):
            return None
        if record.from_market:
            tick = self._portfolio.last_tick(symbol)
            if tick is None:
                return None
            record = replace(record, from_market=False, reference=tick.price)
            self._records[symbol] = record
        return PositionShadow(
            symbol=symbol,
            quantity=quantity,
            average=record.reference or average,
            lot=lot,
            kind=kind,
            stops=stops,
            exits=exits,
            entered_at=record.opened_at,
            restored=record.state,
            identity=(record.opened_at, record.adopted_at),
        )

    def _is_parked(self, position: Position, record: StopRecord) -> bool:
        """Park a position that is too small to be sold, until its value has risen."""
        symbol, parked = position.symbol, self._micro_risk.parked
        minimum = float(self._portfolio.instruments[symbol].min_order_value)
        tick = self._portfolio.last_tick(symbol)
        if not minimum or tick is None:
            return symbol in parked
        value = abs(float(position.quantity)) * min(tick.price, tick.bid or tick.price)
        if symbol not in parked and value < minimum:
            self._micro_risk.park(symbol, f"{symbol}: {value:.0f} of {minimum:.0f} won")
        if symbol in parked:
            least = self._parked_value.setdefault(symbol, max(value, minimum))
            if value >= max(least, minimum) * UNPARK_RISE:
                self._unpark(symbol)
        is_parked = symbol in parked
        if is_parked != record.dust:
            self._export(symbol)  # its stops continue from here when they watch it again
            self._records[symbol] = replace(self._records[symbol], dust=is_parked)
        return is_parked

    def _export(self, symbol: str) -> None:
        state = self._micro_risk.stops.state(symbol)
        if state is not None:
            self._records[symbol] = replace(self._records[symbol], state=state)

    def _unpark(self, symbol: str) -> None:
        self._micro_risk.parked.discard(symbol)
        self._parked_value.pop(symbol, None)

    def _forget(self, symbol: str) -> None:
        self._records.pop(symbol, None)
        self._unpark(symbol)

    def _owner(self, symbol: str) -> str:
        return self._portfolio.owners.get(symbol, "")
