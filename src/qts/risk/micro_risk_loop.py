"""The micro risk loop: stops that do not wait for strategies, and the volatility they take.

    tick published ─▶ Stops (C++, inside publish) ─▶ P0 exit in its lane before publish returns,
                      without Python in between
    every 100 ms   ─▶ checks without a tick: hold time, stale prices, old positions, account loss

`set_positions` takes positions from the ledger; best and worst price since entry are kept here, and
restored after a restart. An exit is published once; the next `set_positions` shows that it filled,
`rearm` that it did not, `park` that the venue does not take it.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from qts import telemetry
from qts._native import Stops
from qts.domain import Clock, ExitLevels, IntentType, Side
from qts.events import EventType, Payload, Priority
from qts.events import payloads as p
from qts.risk.config import PositionStops, StopsConfig
from qts.risk.position_notices import PositionNotices
from qts.risk.stop_state import StopState

log = telemetry.logger("risk")
T = TypeVar("T")
_EXITS = telemetry.counter("qts_stops_total", "exits that the stops published", ("reason",))

# symbol, PARTIAL or FULL, reason, quantity, price, stop, whether it is short
StopHit = tuple[str, str, str, float, float, float, bool]
Kind = Literal["SCALP", "SWING", "PORTFOLIO"]

REASONS = {
    "STOPLOSS": IntentType.EXIT_STOPLOSS,
    "MAE": IntentType.EXIT_MAE,
    "TIME": IntentType.EXIT_TIME,
    "TRAIL": IntentType.EXIT_TRAIL,
    "VOLATILITY": IntentType.EXIT_VOLATILITY,
    "TARGET": IntentType.EXIT_TP,
}
BUCKETS = 180  # of a window, so that a proxy with many ticks costs no more than an index


class EmergencyOrder(Payload, frozen=True, kw_only=True):
    """Exit at the market; `reason` is an IntentType."""

    symbol: str
    side: str
    qty: float
    reason: str
    price: float
    stop_price: float = 0.0


EMERGENCY_ORDER = EventType(
    "EMERGENCY_ORDER", Priority.P0, EmergencyOrder, "symbol", max_process_time_ms=10
)


class PositionShadow(msgspec.Struct, frozen=True, kw_only=True):
    """Copy of a position that the stops work on."""

    symbol: str
    quantity: float  # signed
    average: float  # gains and losses count from it
    lot: float = 1.0
    exits: ExitLevels | None = None  # of this position, beside the stops that hold for all
    kind: Kind = "SCALP"
    stops: PositionStops | None = None  # of its strategy; None: those of all
    entered_at: datetime | None = None  # None: now
    restored: StopState | None = None  # what a position that is new here begins with
    identity: object = None  # another one: another position, whose stops start afresh


def ageless(_symbol: str) -> None:
    """Stand for the price age where every price is of now: in a backtest."""


class MicroRiskLoop:
    """Publishes exits with `publish(type, payload)` and raises codes with `trip(code, text)`.

    Methods return at once; `run` blocks its thread. `price_age_s` returns the age of a symbol's
    price, None where it cannot be old, as outside the session. With `is_past`, in a
    backtest, exits are neither logged nor counted. `source` is that of the exits' events.
    """

    def __init__(
        self,
        config: StopsConfig,
        publish: Callable[[str, Payload], object],
        trip: Callable[[str, str], object],
        clock: Clock,
        price_age_s: Callable[[str], float | None],
        *,
        is_past: bool = False,
        source: str = "risk",
    ) -> None:
        self._config = config
        self._is_past = is_past
        self._price_age_s = price_age_s
        self._publish = publish
        self._trip = trip
        self._clock = clock
        self._equity = 0.0
        self._symbols: dict[str, object] = {}  # identity of each position
        self._limits_s: dict[str, float] = {}  # how long each may be held
        self._notices = PositionNotices(config, trip, clock)
        self.parked: set[str] = set()  # positions whose exit the venue does not take
        self._silent: set[str] = set()
        self._synced_ns = clock.monotonic_ns()
        self._late = self._killed = self._escaping = False
        self._volatility: tuple[float, float] = (0.0, 0.0)
        self.stops = Stops(
            self._fire,
            trail_arm=config.trail_arm,
            trail=config.trail,
            trail_min_distance=config.trail_min_distance,
            mae_half=config.mae_half,
            mae_full=config.mae_full,
            profit_extension_s=config.profit_extension_s,
            jump=config.jump,
            confirm_s=config.confirm_s,
        )
        self.stops.set_exits(
            (EMERGENCY_ORDER.name, EmergencyOrder),
            ("TRAILING_STOP_HIT", p.TrailingStopHit),
            dict(REASONS),
            (Side.SELL, Side.BUY),
            source,
        )

    def set_positions(self, positions: Iterable[PositionShadow], equity: float) -> None:
        """Replace the positions; a symbol that is missing is flat."""
        before, current, limits_s = self._symbols, dict[str, object](), dict[str, float]()
        for each in positions:
            if before.get(each.symbol, each.identity) != each.identity:
                self._drop(each.symbol)
            limits_s[each.symbol] = self._watch(each)
            current[each.symbol] = each.identity
        for gone in before.keys() - current.keys():
            self._drop(gone)
        self._symbols, self._limits_s = current, limits_s  # `check` may run on another thread
        self._silent &= current.keys()
        self.set_equity(equity)

    def set_position(self, position: PositionShadow) -> None:
        """Set one position, and leave the others as they are."""
        limit_s = self._watch(position)
        self._symbols = self._symbols | {position.symbol: position.identity}
        self._limits_s = self._limits_s | {position.symbol: limit_s}

    def remove_position(self, symbol: str) -> None:
        """Note that a symbol is flat, if it was not."""
        if symbol in self._symbols:
            self._drop(symbol)
            self._symbols = _without(self._symbols, symbol)
            self._limits_s = _without(self._limits_s, symbol)
            self._silent.discard(symbol)

    def _watch(self, position: PositionShadow) -> float:
        """Let the stops watch a position; return how long it may be held."""
        limits, entered_at = self._config.holding, position.entered_at
        by_kind = {
            "SCALP": limits.scalp_s,
            "SWING": limits.swing_s,
            "PORTFOLIO": limits.portfolio_s,
        }
        hold_s = _hold_s(position, by_kind[position.kind])
        age_s = (self._clock.now() - entered_at).total_seconds() if entered_at else 0.0
        stop, target, trail = _floats(position.exits)
        self.stops.set_position(
            position.symbol,
            position.quantity,
            position.average,
            position.lot,
            stop,
            hold_s,
            self._clock.monotonic_ns() - round(max(age_s, 0.0) * 1e9),
            position.restored,
            target,
            trail,
            position.stops.rules if position.stops is not None else None,
        )
        return hold_s

    def set_equity(self, equity: float) -> None:
        """Take the equity; the positions are those of now."""
        self._equity = equity
        self._synced_ns, self._late = self._clock.monotonic_ns(), False

    def park(self, symbol: str, text: str) -> None:
        """Stop watching a position that is too small to be sold; raises GR075 once."""
        if symbol not in self.parked:
            self.parked.add(symbol)
            self._trip("GR075", text)

    def exited(self, symbol: str, text: str) -> None:
        """Report an exit of the stops that was filled."""
        self._trip("FS102", f"{symbol}: {text}")

    def rearm(self, symbol: str, reason: str) -> None:
        """Let the stops publish the exit again, after one that did not fill."""
        self._trip("GR074", f"{symbol}: {reason}")
        self.stops.rearm(symbol)

    def stop_price(self, symbol: str) -> float | None:
        """Return the price at which all of a position is sold; None where no stop watches it."""
        row = self.stops.position(symbol)
        if row is None or symbol in self.parked:
            return None
        sign = 1 if row["quantity"] > 0 else -1
        full = row["average"] * (1 - sign * row["mae_full"])
        prices = [price for price in (full, row["stop"], row["trailing"]) if price]
        return float(max(prices) if sign > 0 else min(prices))

    def volatility(self, vix: float, realised: float) -> None:
        """Act when volatility rises above a threshold: warn, sell half, sell all."""
        config, before = self._config, self._volatility
        self._volatility = (vix, realised)
        text = f"index {vix:g}, realised {realised:g}"

        def above(index: float, part: float) -> bool:
            return vix >= index or realised >= part

        def rose(index: float, part: float) -> bool:
            return above(index, part) and not (before[0] >= index or before[1] >= part)

        if rose(config.vix_kill, config.volatility_kill):
            self._kill(text)
        elif rose(config.vix_half, config.volatility_half):
            self._fire_all(self.stops.exit_all(0.5))
        elif rose(config.vix_warning, config.volatility_warning):
            self._trip("GR073", text)

    def check(self) -> None:
        """Run the checks that no tick triggers."""
        now_ns = self._clock.monotonic_ns()
        for hit in self.stops.take_published():
            self._report(hit)
        self._fire_all(self.stops.on_time(now_ns))
        rows = {name: row for name in list(self._symbols) if (row := self.stops.position(name))}
        self._check_account(rows)
        if not self._is_past:
            self._notices.check(rows, self._limits_s, self._equity)
            self._check_escape(rows)
        if not self._late and now_ns - self._synced_ns > self._config.sync_late_s * 1e9:
            self._late = True
            self._trip("FS101", f"{(now_ns - self._synced_ns) / 1e9:.1f} s old")
        self._check_price_ages()

    def run(self, stopped: threading.Event) -> None:
        """Check at the interval until stopped; an error raises FS100 and the loop continues."""
        while not stopped.wait(self._config.interval_ms / 1000):
            try:
                self.check()
            except Exception as error:  # noqa: BLE001 - the loop must survive
                log.error("micro risk check failed; continuing", error=repr(error))
                self._trip("FS100", repr(error))

    def _drop(self, symbol: str) -> None:
        self.stops.set_position(symbol, 0, 0, 1, 0, 0, 0)

    def _check_price_ages(self) -> None:
        for symbol in self._symbols:
            age_s = self._price_age_s(symbol)
            if age_s is None or age_s <= self._config.stale_after_s:
                self._silent.discard(symbol)
            elif symbol not in self._silent:
                self._silent.add(symbol)
                self._trip("FS105", f"{symbol}: the price is {age_s:.1f} s old")

    def _check_account(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Sell everything when the open losses reach their share of the equity."""
        if self._equity <= 0 or self._killed:
            return
        loss = sum(
            min(0.0, (held["last"] - held["average"]) * held["quantity"]) for held in rows.values()
        )
        if -loss >= self._config.mae_account * self._equity:
            self._kill(f"open losses are {-loss:.0f} of {self._equity:.0f} won")

    def _check_escape(self, rows: Mapping[str, object]) -> None:
        """Raise FS092 once everything is sold after a kill."""
        if self._escaping and rows.keys() <= self.parked:
            self._escaping = False
            self._trip("FS092", "every position that can be sold is sold")

    def _kill(self, reason: str) -> None:
        self._killed, self._escaping = True, bool(self._symbols)
        self._publish("EMERGENCY_STOP", p.Emergency(reason=reason, code="FS104"))
        self._publish("ETEDA_SUSPEND", p.Emergency(reason=reason, code="FS104"))
        self._fire_all(self.stops.exit_all(1.0))
        self._trip("FS104", reason)

    def reset(self) -> None:
        """Watch the account again, after the operator released the lockdown."""
        self._killed = self._escaping = False

    def _fire_all(self, hits: Iterable[StopHit]) -> None:
        for hit in hits:
            self._fire(hit)

    def _fire(self, hit: StopHit) -> None:
        symbol, _, reason, quantity, price, stop, is_short = hit
        if reason == "TRAIL":
            self._publish(
                "TRAILING_STOP_HIT",
                p.TrailingStopHit(symbol=symbol, stop_price=stop, price=price, qty=quantity),
            )
        else:
            self._publish(
                "EMERGENCY_ORDER",
                EmergencyOrder(
                    symbol=symbol,
                    side=Side.BUY if is_short else Side.SELL,
                    qty=quantity,
                    reason=REASONS[reason],
                    price=price,
                    stop_price=stop,
                ),
            )
        self._report(hit)

    def _report(self, hit: StopHit) -> None:
        """Log and count an exit, after it is in its lane."""
        symbol, action, reason, _, price, _, _ = hit
        if self._is_past:
            return
        _EXITS.labels(reason).inc()
        log.warning("stop hit", symbol=symbol, action=action, reason=reason, price=price)


def _without(values: dict[str, T], symbol: str) -> dict[str, T]:
    return {name: value for name, value in values.items() if name != symbol}


def _hold_s(position: PositionShadow, by_kind_s: float) -> float:
    """Return how long a position may be held; 0: without end."""
    own = position.stops.max_hold_s if position.stops is not None else None
    return by_kind_s if own is None else own


def _floats(exits: ExitLevels | None) -> tuple[float, float, float]:
    """Return stop, target and trail; 0: none."""
    if exits is None:
        return 0.0, 0.0, 0.0
    return float(exits.stop or 0), float(exits.target or 0), float(exits.trail or 0)


class _Bucket(NamedTuple):
    number: int
    high: float
    low: float


class IndexVolatility:
    """Realised volatility of several indices: the largest of them.

    That of one index is the larger of two figures: its range within the window, as the logarithm
    of highest by lowest value, and its fall since the previous close.
    """

    def __init__(self, window_s: float) -> None:
        self._bucket_s = window_s / BUCKETS
        self._buckets: dict[str, deque[_Bucket]] = {}
        self._realised: dict[str, float] = {}

    def update(self, name: str, value: float, change: float, at: float) -> float:
        """Take a value at a time in seconds; return the volatility over all indices."""
        buckets = self._buckets.setdefault(name, deque(maxlen=BUCKETS + 1))
        number = int(at / self._bucket_s)
        if buckets and buckets[-1].number >= number:
            last = buckets[-1]
            buckets[-1] = _Bucket(last.number, max(last.high, value), min(last.low, value))
        else:
            buckets.append(_Bucket(number, value, value))
        while buckets[0].number <= number - BUCKETS:
            buckets.popleft()
        high, low = max(each.high for each in buckets), min(each.low for each in buckets)
        fall = -math.log1p(change) if -1 < change < 0 else 0.0
        self._realised[name] = max(math.log(high / low), fall)
        return max(self._realised.values())
