"""Spans of an order that a worker sends: they follow by the order, not by the task."""

from __future__ import annotations

from decimal import Decimal

from qts import telemetry
from qts.venues import RateLimitedError
from tests.orders.kit import OrderKit
from tests.telemetry.collector import recording

# Of the first command and of what the ledger reports; the kit's worker has no log context.
TRACE_IDS = """
SELECT payload_json ->> 'traceId' AS trace_id FROM outbox_event_all
 WHERE event_type IN ('FillReceived', 'OrderClosed')
    OR event_type = 'CreateOrderAttempt' AND aggregate_type = 'Market'
"""


async def test_request_of_a_worker_follows_the_commit_also_in_a_second_attempt(
    kit: OrderKit,
) -> None:
    with recording() as spans:
        with telemetry.span("gate"):
            trace_id = telemetry.current_context()["traceId"]
            submitted = await kit.submit()
        kit.venue.before = lambda _request: RateLimitedError("429")
        await kit.work()
        kit.venue.before = lambda _request: None
        await kit.work_later()
        (order_id,) = kit.venue.book
        await kit.context.ledger.record_fill(kit.venue.trade(order_id, Decimal(1), Decimal(100)))
    assert await kit.attempts(submitted.intent_id) == ["THROTTLED", "ACKED"]
    first, second = (each for each in spans.get_finished_spans() if each.name == "request")
    assert spans.chain(first) == ["gate", "commit", "request"]
    assert spans.chain(second) == ["gate", "commit", "request", "request"]
    assert not first.status.is_ok
    rows = await kit.database.fetch(TRACE_IDS)
    assert {row["trace_id"] for row in rows} == {trace_id}, "of the command and of the fill"


async def test_an_order_without_traces_leaves_nothing_to_follow(kit: OrderKit) -> None:
    submitted = await kit.submit()
    await kit.work()
    assert telemetry.trace_id_of(submitted.intent_id) == ""
