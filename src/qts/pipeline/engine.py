"""From a tick to an approved order: strategies, pipeline and gate, and the stops beside them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

from qts.app import RunContext
from qts.domain import RefusedError
from qts.events import Event, EventEngine
from qts.events import payloads as p
from qts.orders import OrderManager, SubmitResult
from qts.pipeline.act import IntentTracker, OrderSubmitter
from qts.pipeline.decide import DecisionPolicy
from qts.pipeline.decision_journal import DecisionJournal
from qts.pipeline.exits import StopExitHandler
from qts.pipeline.freezes import POSITION_FREEZE, PositionFreezer
from qts.pipeline.isolated_runner import IsolatedRunner, ProcessPauser
from qts.pipeline.order_updates import OrderUpdatePublisher
from qts.pipeline.portfolio import Portfolio, tick_from_event
from qts.pipeline.position_sync import PositionSync
from qts.pipeline.risk_snapshot import RiskSnapshotReader
from qts.pipeline.runner import RunnerHooks, StrategyRunner
from qts.pipeline.scheduler import EtedaPipeline
from qts.risk import (
    FailSafe,
    FailSafeReporter,
    MicroRiskLoop,
    OrderProposal,
    PreTradeGate,
    SafetyMonitor,
)
from qts.strategies import load_strategy


class StrategyEngine:
    """Made when orders can be taken; `register` joins it to the lanes."""

    def __init__(
        self,
        ground: RunContext,
        engine: EventEngine,
        world: Portfolio,
        facts: RiskSnapshotReader,
        alarm: FailSafeReporter,
        watch: SafetyMonitor,
    ) -> None:
        self._ground = ground
        self._engine = engine
        self._world = world
        self._facts = facts
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._stop_micro = threading.Event()
        self.runners: dict[str, StrategyRunner] = {}
        self.micro = MicroRiskLoop(ground.config.risk.stops, self._emit, alarm.trip, ground.clock)
        self.holding = PositionSync(world, self.micro, self.runners)

    trader: OrderSubmitter
    pipeline: EtedaPipeline
    exits: StopExitHandler

    def join(
        self,
        desk: OrderManager,
        outcomes: IntentTracker,
        changes: OrderUpdatePublisher,
        freezes: PositionFreezer,
        fail_safe: FailSafe,
    ) -> None:
        """To the desk that takes orders, and to whoever tells what became of them."""
        config, clock = self._ground.config, self._ground.clock
        limits = config.risk.limits.exact
        self.trader = OrderSubmitter(
            PreTradeGate(limits), desk, self._facts, outcomes, self._submitted
        )
        self.pipeline = EtedaPipeline(
            config.pipeline, self._world, self.trader, limits, self._leave, clock
        )
        self.pipeline.emit = changes.emit
        self.pipeline.trip = fail_safe.trip
        changes.changed = freezes.changed = self._facts.changed
        changes.hold = self.holding.push_to_stops
        stillness = ProcessPauser(self.runners)
        self.exits = StopExitHandler(
            self.trader, self.micro, self._world, freezes, stillness, clock
        )
        self._engine.on(POSITION_FREEZE.name, freezes)
        for runner in self._runners():
            self.runners[runner.key] = runner
        self._register()

    def keep(self, journal: DecisionJournal) -> None:
        """Everything that decisions hang on, from now on."""
        self.trader.note = self.pipeline.note = journal.append
        for runner in self.runners.values():
            runner.note = journal.append

    def start_stops(self) -> None:
        """On a thread of their own: no strategy keeps them waiting."""
        threading.Thread(
            target=self.micro.run, args=(self._stop_micro,), name="qts-micro-risk", daemon=True
        ).start()

    async def close(self) -> None:
        """Cycles first, then the exits that the stops still asked for."""
        await self.pipeline.close()
        await self.exits.close()
        self._stop_micro.set()

    def _runners(self) -> Iterator[StrategyRunner]:
        """Each strategy in its lane, or in a process of its own where the settings say so."""
        config = self._ground.config.pipeline
        joints = RunnerHooks(self._world.view, self._wake, self.pipeline.on_signals, self._loop)
        apart = set(config.isolated_strategies)
        for name in config.strategies:
            kind = load_strategy(name)
            strategy = kind.from_params(config.params_of(kind.key))
            if apart & {kind.key, "*"}:
                yield IsolatedRunner(name, strategy, joints)
            else:
                yield StrategyRunner(strategy, joints)
            apart.discard(kind.key)
        if unknown := apart - {"*"}:
            raise RefusedError(
                f"pipeline.isolated_strategies: {min(unknown)!r} is the key of none of pipeline.strategies"
            )

    def _register(self) -> None:
        engine, runners, lanes = self._engine, self.runners, self._ground.config.events
        if "process" in (lanes.p1.isolation, lanes.p2.isolation):
            raise RefusedError(
                'events.p1.isolation and events.p2.isolation must be "thread" where QTS trades;'
                " pipeline.isolated_strategies gives strategies processes of their own"
            )

        def on_tick(event: Event) -> None:
            tick = tick_from_event(event)
            for runner in runners.values():
                runner.tick(tick)

        def on_evaluate(event: Event) -> None:
            runner = runners.get(event.payload.strategy_type)
            if runner is not None:
                runner.run_pending()

        def on_suspend(event: Event) -> None:
            self._loop.call_soon_threadsafe(
                self.pipeline.suspend, event.payload.reason, event.payload.code or "event"
            )

        engine.attach_watcher("PRICE_TICK", self.micro.stops, "price")
        engine.on("PRICE_TICK", on_tick)
        engine.on("STRATEGY_EVALUATE", on_evaluate)
        engine.on("EMERGENCY_ORDER", self.exits)
        engine.on("TRAILING_STOP_HIT", self.exits)
        engine.on("ETEDA_SUSPEND", on_suspend)

    # --- joints ---------------------------------------------------------------------------------

    def _submitted(self, proposal: OrderProposal, _submitted: SubmitResult) -> None:
        self._facts.changed()
        if not proposal.intent_type.is_exit:
            self._world.set_owner(proposal.symbol, proposal.strategy_key)

    def _emit(self, name: str, payload: Any) -> None:
        self._engine.publish(self._engine.new_event(name, payload, "risk"))

    def _wake(self, key: str) -> None:
        self._engine.try_publish(
            self._engine.new_event(
                "STRATEGY_EVALUATE", p.StrategyEvaluate(strategy_type=key), "app"
            )
        )

    def _leave(self) -> DecisionPolicy:
        return DecisionPolicy(
            safety=self._watch.safety.state,
            expires_after_s=self._ground.config.pipeline.signal_ttl_s,
        )
