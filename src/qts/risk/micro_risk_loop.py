"""The micro risk loop: stops beside the strategies, which cannot hold it up.

    tick published ─▶ Stops (C++, inside publish) ─▶ P0 exit in its lane before publish returns,
                      and no line of Python in between once an engine watches with them
    every 100 ms   ─▶ what no tick tells: held too long, silent prices, old positions, the account

What is held comes from the database's positions (`hold`); what has been seen since entry is ours.
An exit is asked for once; whoever carries it out says so by the next `hold`, or `refused`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from qts import telemetry
from qts._native import Stops
from qts.domain import Clock, IntentType, Side
from qts.events import EventType, Payload, Priority
from qts.events import payloads as p
from qts.risk.config import StopsConfig

log = telemetry.logger("risk")
_EXITS = telemetry.counter("qts_stops_total", "exits that the stops asked for", ("reason",))

# symbol, PARTIAL or FULL, reason, quantity, price, stop, whether it is short
StopHit = tuple[str, str, str, float, float, float, bool]
Kind = Literal["SCALP", "SWING", "PORTFOLIO"]

REASONS = {
    "STOPLOSS": IntentType.EXIT_STOPLOSS,
    "MAE": IntentType.EXIT_MAE,
    "TIME": IntentType.EXIT_TIME,
    "TRAIL": IntentType.EXIT_TRAIL,
    "VOLATILITY": IntentType.EXIT_VOLATILITY,
}


class EmergencyOrder(Payload, frozen=True, kw_only=True):
    """Leave, at the market. `reason` is an IntentType."""

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
    """A position as the database has it."""

    symbol: str
    quantity: float  # signed
    average: float
    lot: float = 1.0
    stop: float = 0.0
    kind: Kind = "SCALP"


class MicroRiskLoop:
    """`publish` takes a type's name and its payload; `trip` a code and what happened.

    Everything here is called under the GIL and returns at once; `run` has a thread of its own.
    With `is_past` what happens is of a day gone by: it is neither logged nor counted as today's.
    """

    def __init__(
        self,
        config: StopsConfig,
        publish: Callable[[str, Payload], object],
        trip: Callable[[str, str], object],
        clock: Clock,
        *,
        is_past: bool = False,
    ) -> None:
        self._config = config
        self._is_past = is_past
        self._publish = publish
        self._trip = trip
        self._clock = clock
        self._equity = 0.0
        self._symbols: set[str] = set()
        self._silent: set[str] = set()
        self._synced_ns = clock.monotonic_ns()
        self._late = self._killed = False
        self._volatility: tuple[float, float] = (0.0, 0.0)
        self.stops = Stops(
            self._fire,
            trail_arm=config.trail_arm,
            trail=config.trail,
            trail_least=config.trail_min_distance,
            excursion_half=config.mae_half,
            excursion_all=config.mae_full,
            earning_extra_s=config.profit_extension_s,
            jump=config.jump,
            confirm_s=config.confirm_s,
        )
        self.stops.set_exits(
            (EMERGENCY_ORDER.name, EmergencyOrder),
            ("TRAILING_STOP_HIT", p.TrailingStopHit),
            dict(REASONS),
            (Side.SELL, Side.BUY),
        )

    def set_positions(self, holdings: Iterable[PositionShadow], equity: float) -> None:
        """All that is held now; what is not among it is held no more."""
        now_ns = self._clock.monotonic_ns()
        limits = self._config.holding
        by_kind = {
            "SCALP": limits.scalp_s,
            "SWING": limits.swing_s,
            "PORTFOLIO": limits.portfolio_s,
        }
        seen = set()
        for each in holdings:
            seen.add(each.symbol)
            self.stops.hold(
                each.symbol,
                each.quantity,
                each.average,
                each.lot,
                each.stop,
                by_kind[each.kind],
                now_ns,
            )
        for gone in self._symbols - seen:
            self.stops.hold(gone, 0, 0, 1, 0, 0, now_ns)
        self._symbols = seen
        self._silent &= seen
        self._equity = equity
        self._synced_ns, self._late = now_ns, False

    def rearm(self, symbol: str, why: str) -> None:
        """The exit was not carried out: the stops ask again."""
        self._trip("GR074", f"{symbol}: {why}")
        self.stops.rearm(symbol)

    def volatility(self, vix: float, realised: float) -> None:
        """Acted on when it rises above a mark: warned of, half out, all out."""
        config, before = self._config, self._volatility
        self._volatility = (vix, realised)
        said = f"index {vix:g}, realised {realised:g}"

        def above(index: float, part: float) -> bool:
            return vix >= index or realised >= part

        def rose(index: float, part: float) -> bool:
            return above(index, part) and not (before[0] >= index or before[1] >= part)

        if rose(config.vix_kill, config.volatility_kill):
            self._kill(said)
        elif rose(config.vix_half, config.volatility_half):
            self._fire_all(self.stops.leave(0.5))
        elif rose(config.vix_warning, config.volatility_warning):
            self._trip("GR073", said)

    def check(self) -> None:
        """What no tick tells; every 100 ms, or when a test says so."""
        now_ns = self._clock.monotonic_ns()
        for hit in self.stops.take_published():
            self._tell(hit)
        self._fire_all(self.stops.on_time(now_ns))
        self._check_account()
        if not self._late and now_ns - self._synced_ns > self._config.sync_late_s * 1e9:
            self._late = True
            self._trip("FS101", f"{(now_ns - self._synced_ns) / 1e9:.1f} s old")
        self._check_silence(now_ns)

    def run(self, stopped: threading.Event) -> None:
        """Until stopped. An error in one round is told (FS100), and the next one runs."""
        while not stopped.wait(self._config.interval_ms / 1000):
            try:
                self.check()
            except Exception as error:  # noqa: BLE001 - the loop has to live
                log.error("a round of the micro risk loop failed", error=repr(error))
                self._trip("FS100", repr(error))

    def _check_silence(self, now_ns: int) -> None:
        for symbol in self._symbols:
            held = self.stops.held(symbol)
            if held is None:
                continue
            heard_ns = held["last_ns"] or held["entered_ns"]
            if now_ns - heard_ns <= self._config.stale_after_s * 1e9:
                self._silent.discard(symbol)
            elif symbol not in self._silent:
                self._silent.add(symbol)
                self._trip("FS105", f"{symbol}: no price for {self._config.stale_after_s:g} s")

    def _check_account(self) -> None:
        """The losses of all positions together, against the equity."""
        if self._equity <= 0 or self._killed:
            return
        loss = 0.0
        for symbol in self._symbols:
            if held := self.stops.held(symbol):
                loss += min(0.0, (held["last"] - held["average"]) * held["quantity"])
        if -loss >= self._config.mae_account * self._equity:
            self._kill(f"open losses are {-loss:.0f} of {self._equity:.0f} won")

    def _kill(self, why: str) -> None:
        self._killed = True
        self._publish("EMERGENCY_STOP", p.Emergency(reason=why, code="FS104"))
        self._publish("ETEDA_SUSPEND", p.Emergency(reason=why, code="FS104"))
        self._fire_all(self.stops.leave(1.0))
        self._trip("FS104", why)

    def reset(self) -> None:
        """A person has ended the lockdown: the account is watched again."""
        self._killed = False

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
        self._tell(hit)

    def _tell(self, hit: StopHit) -> None:
        """For people: it may wait until the exit is in its lane."""
        symbol, verdict, reason, _, price, _, _ = hit
        if self._is_past:
            return
        _EXITS.labels(reason).inc()
        log.warning("a stop was hit", symbol=symbol, verdict=verdict, reason=reason, price=price)
