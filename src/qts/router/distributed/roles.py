"""The two halves of a run on two machines, each with its report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cached_property

import msgspec

from qts.machine import detect_topology
from qts.router.distributed.edge import EdgeConfig
from qts.router.distributed.receiver import DeliveryTracker, EdgeReceiver, Positions
from qts.router.distributed.sender import EdgeSender
from qts.router.handlers import as_handler, batch
from qts.router.plan import PlacementPlan
from qts.router.plan import plan_placement as make_plan
from qts.router.progress import RunSnapshot
from qts.router.report import QueueLocation, RouterReport
from qts.router.router import Handlers, Options, Router
from qts.router.scenario import ProcessorSettings, Scenario, Stage1Rule

_MAX_PER_SECOND = 1e9


class Source:
    """Producers, Stage 1 and processors; messages for strategies go to NATS."""

    def __init__(
        self,
        scenario: Scenario,
        edge: EdgeConfig,
        plan: PlacementPlan | None = None,
        *,
        options: Options | None = None,
        processors: Handlers | None = None,
    ) -> None:
        self.sender = EdgeSender(edge)
        self.router = Router(
            scenario,
            plan or _plan(scenario, python_handlers=True),
            options=options,
            processors=processors,
            strategies={
                number: batch(self.sender.send) for number in range(scenario.strategies.count)
            },
        )
        self._sending = True

    def start(self) -> None:
        self.sender.open()
        self.router.start()

    def snapshot(self) -> RunSnapshot:
        return self.router.snapshot()

    def stop(self) -> None:
        self.router.stop()

    def abort(self) -> None:
        self.sender.fail("aborted")
        self.router.abort()

    def wait(self, timeout: float) -> bool:
        """Return True once the sink has confirmed everything, or when that has failed."""
        deadline = time.monotonic() + timeout
        if self._sending:
            if not self.router.wait(timeout):
                return False
            self._sending = False
            self.sender.finish()
        return self.sender.wait(max(0.0, deadline - time.monotonic()))

    @cached_property
    def report(self) -> RouterReport:
        """Report that counts as delivered what the sink has confirmed; ends the run."""
        self.sender.fail("ended before the sink had confirmed all")
        report, counts = self.router.report, self.sender.counts
        self.sender.close()
        locations = [
            QueueLocation(f"stream {self.sender.edge.stream}, not confirmed", counts.in_stream),
            QueueLocation("the sender, not stored", counts.unstored),
        ]
        failures = report.failures
        if self.sender.failure and not any(self.sender.failure in line for line in failures):
            failures = (*failures, self.sender.failure)
        return msgspec.structs.replace(
            report,
            delivered=counts.confirmed,
            undelivered=report.produced - counts.confirmed,
            undelivered_at=(*report.undelivered_at, *(each for each in locations if each.count)),
            failures=failures,
        )


class Sink:
    """Stage 2 and strategies, fed from NATS until the source ends the run.

    `positions` maps (producer, type) to the last sequence number that the strategies have handled,
    if they keep such a record: after a crash nothing at or below it is delivered again.
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
        self.tracker = DeliveryTracker(ordered, positions)
        half = strategies_only(scenario)
        python = any(as_handler(each).uses_python for each in (strategies or {}).values())
        self.router = Router(
            half,
            plan or _plan(half, python_handlers=python),
            options=msgspec.structs.replace(options or Options(), keep_numbers=True),
            strategies=strategies,
            live=True,
        )
        self.receiver = EdgeReceiver(edge, self.router, self.tracker)

    def start(self) -> None:
        self.receiver.open()
        self.router.start()
        self.receiver.start()

    def snapshot(self) -> RunSnapshot:
        return self.router.snapshot()

    def stop(self) -> None:
        self.receiver.stop()

    def abort(self) -> None:
        self.receiver.abort()
        self.router.abort()

    def wait(self, timeout: float) -> bool:
        return self.receiver.ended.wait(timeout)

    @cached_property
    def report(self) -> RouterReport:
        """Report of the whole run, including what an earlier sink confirmed; ends the run."""
        self.receiver.close()
        report, tracker, receiver = self.router.report, self.tracker, self.receiver
        totals, from_start = receiver.totals or {}, receiver.first == 1
        before = tracker.earlier(totals, from_start) + tracker.skipped
        ended = receiver.totals is not None
        produced = sum(totals.values()) if ended else before + tracker.admitted
        delivered = before + report.delivered
        missing = [
            QueueLocation(f"nowhere: {name}", count)
            for name, count in tracker.missing(totals, from_start)
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
        if self.receiver.failure:
            yield self.receiver.failure
        elif self.receiver.totals is None:
            yield "stopped before the source had ended the run"

    def _notes(self, before: int) -> Iterator[str]:
        if before:
            yield f"{before:,} messages were delivered by an earlier sink"
        again = self.receiver.redelivered - self.tracker.skipped
        if again > 0:
            yield (
                f"{again:,} messages had been delivered to an earlier sink that did not confirm"
                " them; its strategies may have handled them"
            )


def strategies_only(scenario: Scenario) -> Scenario:
    """Return the half after the processors as a scenario: one source, one idle processor."""
    producers = scenario.producers
    rate = min(_MAX_PER_SECOND, producers.messages_per_sec * producers.count)
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
    """Plan threads that sleep: with a batch per millisecond, spinning gains nothing."""
    return make_plan(scenario, detect_topology(), python_handlers=python_handlers, wait="park")
