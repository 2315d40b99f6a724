"""P2 handlers of cycles and of the cached account: a paused lane starts none of this work.

ETEDA_CYCLE_START      the cycle runs on the event loop
EXTRACT_COMPLETE ...   duration of the step (qts_cycle_step_seconds)
SIGNAL_GENERATED ...   how far signals come (qts_signals_total)
PORTFOLIO_EVALUATE     an order, a fill or a freeze: positions and risk are written to the cache
RISK_EVALUATE          the same for new prices, before the cached values expire
"""

from __future__ import annotations

import asyncio
import contextlib

from qts import telemetry
from qts.domain import EventRefusedError, OperationError
from qts.events import Event, EventEngine, EventPort
from qts.events import payloads as p
from qts.pipeline.cache_loader import AccountCacheWriter
from qts.pipeline.risk_snapshot import AccountVersion
from qts.pipeline.scheduler import CycleScheduler

log = telemetry.logger("pipeline")
_STEPS = telemetry.histogram(
    "qts_cycle_step_seconds", "duration of Extract and of Transform", ("step",)
)
_SIGNALS = telemetry.counter(
    "qts_signals_total", "signals by how far they came", ("strategy", "stage")
)

RETRY_INTERVAL_S = 0.5


class CycleEventHandler:
    """Registers its handlers when constructed."""

    def __init__(self, engine: EventEngine, scheduler: CycleScheduler) -> None:
        self._loop = asyncio.get_running_loop()
        self._scheduler = scheduler
        engine.on("ETEDA_CYCLE_START", self._on_start)
        engine.on("EXTRACT_COMPLETE", self._on_extracted)
        engine.on("TRANSFORM_COMPLETE", self._on_transformed)
        engine.on("SIGNAL_GENERATED", self._on_generated)
        engine.on("STRATEGY_SIGNAL", self._on_sized)
        engine.on("ORDER_DECISION", self._on_decided)

    def _on_start(self, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._scheduler.start_cycle, event.payload.strategy_type)

    def _on_extracted(self, event: Event) -> None:
        _STEPS.labels("extract").observe(event.payload.duration_ms / 1000)

    def _on_transformed(self, event: Event) -> None:
        _STEPS.labels("transform").observe(event.payload.duration_ms / 1000)

    def _on_generated(self, event: Event) -> None:
        _SIGNALS.labels(event.payload.strategy_type, "generated").inc()

    def _on_sized(self, event: Event) -> None:
        _SIGNALS.labels(event.payload.strategy_type, "sized").inc()

    def _on_decided(self, event: Event) -> None:
        _SIGNALS.labels(event.payload.strategy_type, "decided").inc()


class AccountEvaluator:
    """Writes the account to the cache after each change, and at half the TTL of a position."""

    def __init__(
        self, engine: EventPort, writer: AccountCacheWriter, version: AccountVersion
    ) -> None:
        self._engine = engine
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._due = asyncio.Event()
        engine.on("PORTFOLIO_EVALUATE", self._on_evaluate)
        engine.on("RISK_EVALUATE", self._on_evaluate)
        version.add_listener(self._changed)

    async def run(self) -> None:
        """Write until cancelled."""
        self._due.set()  # nothing is in the cache yet
        while True:
            try:
                async with asyncio.timeout(self._writer.refresh_s):
                    await self._due.wait()
            except TimeoutError:
                self._publish("RISK_EVALUATE", "new prices")
                await self._due.wait()
            self._due.clear()
            try:
                await self._writer.write()
            except OperationError as error:
                log.warning("account not written to the cache", error=str(error))
                await asyncio.sleep(RETRY_INTERVAL_S)
                self._due.set()

    def _changed(self) -> None:
        self._publish("PORTFOLIO_EVALUATE", "order, fill or freeze")

    def _publish(self, name: str, reason: str) -> None:
        """Publish; a full lane drops it, and the cached account is not used until the next one.

        Changes that the final reconciliation finds come after the stop of the lanes.
        """
        # The lane merges events of one subject: accounts must differ.
        payload = p.EvaluatePayload(subject=self._writer.account, reason=reason)
        with contextlib.suppress(EventRefusedError):
            self._engine.try_publish(self._engine.new_event(name, payload, "pipeline"))

    def _on_evaluate(self, _event: Event) -> None:
        self._loop.call_soon_threadsafe(self._due.set)
