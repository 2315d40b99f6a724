"""Gauges read from the database every few seconds."""

from __future__ import annotations

from collections.abc import Sequence

from qts import telemetry
from qts.database import Database
from qts.domain import AccountKey, AttemptState, Clock, OperationError
from qts.risk import SafetyState

log = telemetry.logger("app")

EVERY_S = 5.0
_SAFETY = telemetry.gauge("everbit_safety_state", "0 NORMAL, 1 WARNING, 2 FAIL, 3 LOCKDOWN")
_SWITCH = telemetry.gauge(
    "everbit_kill_switch_enabled", "1 where trading is allowed.", ("scope", "strategyKey")
)
_MARKET = telemetry.gauge(
    "everbit_market_state", "1 for a market whose orders are held.", ("market", "state")
)
_ATTEMPTS = telemetry.counter(
    "everbit_order_attempt_total", "Attempts by their state.", ("status",)
)
# Only symbols that do not trade have a series.
_STATES = (
    "SELECT state FROM safety_state"
    " WHERE (broker, account) IN (SELECT * FROM unnest($1::text[], $2::text[]))"
)
_SWITCHES = (
    "SELECT scope, strategy_key, bool_and(trading_enabled) FROM kill_switch"
    " WHERE (broker, account) IN (SELECT * FROM unnest($1::text[], $2::text[])) GROUP BY 1, 2"
)
_SUSPENDED = (
    "SELECT DISTINCT symbol FROM market_state"
    " WHERE (broker, account) IN (SELECT * FROM unnest($1::text[], $2::text[]))"
    " AND trade_status = 'SUSPENDED' ORDER BY symbol LIMIT 100"
)


class TradingGauges:
    """Updates gauges until cancelled: of several accounts the worst state, and what all allow."""

    def __init__(self, database: Database, keys: Sequence[AccountKey], clock: Clock) -> None:
        self._database = database
        self._keys = [each.broker for each in keys], [each.account for each in keys]
        self._clock = clock
        for state in AttemptState:
            _ATTEMPTS.labels(state)  # start at zero, so that the first one counts as an increase

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except OperationError as error:
                if due := telemetry.log_every(60.0, "figures"):
                    log.warning("gauges not updated", error=str(error), **due)
            await self._clock.sleep(EVERY_S)

    async def look(self) -> None:
        states = list(SafetyState)
        rows = await self._database.fetch(_STATES, *self._keys)
        found = [states.index(SafetyState(row[0])) for row in rows]
        _SAFETY.set(max(found) if len(found) == len(self._keys[0]) else 3)
        rows = await self._database.fetch(_SWITCHES, *self._keys)
        _SWITCH.clear()
        for row in rows:
            _SWITCH.labels(row[0], row[1]).set(row[2])
        _MARKET.clear()
        for row in await self._database.fetch(_SUSPENDED, *self._keys):
            _MARKET.labels(row[0], "SUSPENDED").set(1)
