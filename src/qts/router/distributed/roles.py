"""The two halves of a run on two machines, each with a report of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cached_property

import msgspec

from qts.machine import detect_topology
from qts.router.distributed.delivery_tracker import DeliveryTracker, Positions
from qts.router.distributed.edge import EdgeConfig
from qts.router.distributed.receiver import EdgeReceiver
from qts.router.distributed.sender import EdgeSender
from qts.router.handlers import batch, handler
from qts.router.plan import PlacementPlan
from qts.router.plan import plan_placement as make_plan
from qts.router.progress import RunSnapshot
from qts.router.report import QueueLocation, RouterReport
from qts.router.router import Handlers, Options, Router
from qts.router.scenario import ProcessorSettings, Scenario, Stage1Rule

_MOST_PER_SECOND = 1e9


class Source:
    """Producers, Stage 1 and processors; what strategies would get goes to NATS."""

    def __init__(
        self,
        scenario: Scenario,
        edge: EdgeConfig,
        plan: PlacementPlan | None = None,
        *,
        options: Options | None = None,
        processors: Handlers | None = None,
    ) -> None:
        self.outlet = EdgeSender(edge)
        places = range(scenario.strategies.count)
        self.router = Router(
            scenario,
            plan or _plan(scenario, python_handlers=True),
            options=options,
            processors=processors,
            strategies={place: batch(self.outlet.take) for place in places},
        )
        self._sending = True

    def start(self) -> None:
        self.outlet.open()
        self.router.start()

    def snapshot(self) -> RunSnapshot:
        return self.router.snapshot()

    def stop(self) -> None:
        self.router.stop()

    def abort(self) -> None:
        self.outlet.give_up("ended by hand")
        self.router.abort()

    def wait(self, timeout: float) -> bool:
        """True once the sink has confirmed everything, or when that cannot be."""
        deadline = time.monotonic() + timeout
        if self._sending:
            if not self.router.wait(timeout):
                return False
            self._sending = False
            self.outlet.finish()
        return self.outlet.wait(max(0.0, deadline - time.monotonic()))

    @cached_property
    def report(self) -> RouterReport:
        """Delivered means: confirmed by the sink, after its strategies had it. Ends the run."""
        self.outlet.give_up("ended before the sink had confirmed all")
        report, carried = self.router.report, self.outlet.carried
        self.outlet.close()
        places = [
            QueueLocation(f"stream {self.outlet.edge.stream}, not confirmed", carried.in_stream),
            QueueLocation("the outlet, not stored", carried.unstored),
        ]
        failures = report.failures
        if self.outlet.failure and not any(self.outlet.failure in line for line in failures):
            failures = (*failures, self.outlet.failure)
        return msgspec.structs.replace(
            report,
            delivered=carried.confirmed,
            undelivered=report.produced - carried.confirmed,
            undelivered_at=(*report.undelivered_at, *(place for place in places if place.count)),
            failures=failures,
        )


class Sink:
    """Stage 2 and strategies, fed from NATS until the source ends the run.

    `positions` are the strategies' own record of what they have handled, (producer, type) to
    sequence number, where they keep one: after a crash nothing at or below is handed to them again.
    """

    def __init__(
        self,
        scenario: Scenario,
        edge: EdgeConfig,
        plan: PlacementPlan | None = None,
        *,
        options: Options | None = None,
        strategies: Handlers | None = None,
        positions: Positions | None = None,
    ) -> None:
        ordered = [kind for kind, rule in scenario.stage2.items() if rule.ordering_required]
        self.ledger = DeliveryTracker(ordered, positions)
        half = strategies_only(scenario)
        python = any(handler(work).uses_python for work in (strategies or {}).values())
        self.router = Router(
            half,
            plan or _plan(half, python_handlers=python),
            options=msgspec.structs.replace(options or Options(), keep_numbers=True),
            strategies=strategies,
            live=True,
        )
        self.inlet = EdgeReceiver(edge, self.router, self.ledger)

    def start(self) -> None:
        self.inlet.open()
        self.router.start()
        self.inlet.start()

    def snapshot(self) -> RunSnapshot:
        return self.router.snapshot()

    def stop(self) -> None:
        self.inlet.stop()

    def abort(self) -> None:
        self.inlet.abort()
        self.router.abort()

    def wait(self, timeout: float) -> bool:
        return self.inlet.ended.wait(timeout)

    @cached_property
    def report(self) -> RouterReport:
        """Of the whole run, what an earlier sink confirmed included. Ends the run."""
        self.inlet.close()
        report, ledger, inlet = self.router.report, self.ledger, self.inlet
        totals, from_start = inlet.totals or {}, inlet.first == 1
        before = ledger.earlier(totals, from_start) + ledger.known
        produced = sum(totals.values()) if inlet.totals is not None else before + ledger.taken
        delivered = before + report.delivered
        missing = [
            QueueLocation(f"nowhere: {name}", count)
            for name, count in ledger.missing(totals, from_start)
        ]
        return msgspec.structs.replace(
            report,
            offered=produced,
            produced=produced,
            delivered=delivered,
            undelivered=produced - delivered,
            undelivered_at=(*report.undelivered_at, *missing),
            failures=(*report.failures, *self._failures()),
            notes=(*report.notes, *self._notes(before)),
        )

    def _failures(self) -> Iterator[str]:
        if self.inlet.failure:
            yield self.inlet.failure
        elif self.inlet.totals is None:
            yield "stopped before the source had ended the run"

    def _notes(self, before: int) -> Iterator[str]:
        if before:
            yield f"{before:,} messages were delivered by an earlier sink"
        again = self.inlet.handed_before - self.ledger.known
        if again > 0:
            yield (
                f"{again:,} messages had been handed to an earlier sink that did not confirm them;"
                " its strategies may have seen them"
            )


def strategies_only(scenario: Scenario) -> Scenario:
    """The half after the processors, as a scenario: one source, one processor that does nothing."""
    producers = scenario.producers
    rate = min(_MOST_PER_SECOND, producers.messages_per_sec * producers.count)
    types = sorted(scenario.stage1)
    return msgspec.structs.replace(
        scenario,
        producers=msgspec.structs.replace(producers, count=1, messages_per_sec=rate, burst=None),
        processors=ProcessorSettings(
            count=1, processing_times_ns={f"msg_type_{kind}": 0 for kind in range(8)}
        ),
        stage1_rules=tuple(Stage1Rule(msg_type=kind, processors=(0,)) for kind in types),
        stage1_routers=1,
    )


def _plan(scenario: Scenario, *, python_handlers: bool) -> PlacementPlan:
    """Threads that sleep: where a batch takes a millisecond, nothing is gained by spinning."""
    return make_plan(scenario, detect_topology(), python_handlers=python_handlers, wait="park")
