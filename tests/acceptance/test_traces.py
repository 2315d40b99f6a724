"""One trace follows an order from its tick to its fill, as a collector receives it."""

from __future__ import annotations

import functools
import itertools
import signal
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from qts.pipeline import replay_decisions
from tests.acceptance.runs import Run, running
from tests.embedded.clients import until
from tests.telemetry.collector import Collector, collecting

# A soak test: on a busy machine five fills take longer than the other tests may wait.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

ORDER = ("strategy", "gate", "commit", "request", "fill")
FILLS = "SELECT count(*) FROM fill"
# Trace ids of the messages of an order: its command, its acknowledgement and its fill.
MESSAGES = """
SELECT payload_json ->> 'traceId' AS trace_id, array_agg(DISTINCT event_type) AS types
  FROM outbox_event_all
 WHERE event_type IN ('CreateOrderAttempt', 'OrderAccepted', 'FillReceived') GROUP BY 1
"""


def has_filled(run: Run, expected: int) -> bool:
    return int(run.query(FILLS)[0][0]) >= expected


def chains(collector: Collector) -> list[list[Span]]:
    """Return the way to each fill that was received: the fill and all its ancestors, root first."""
    spans = {each.span_id: each for each in collector.spans}
    found = []
    for fill in (each for each in spans.values() if each.name == "fill"):
        chain = [fill]
        while (parent := spans.get(chain[0].parent_span_id)) is not None:
            chain.insert(0, parent)
        found.append(chain)
    return found


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"QTS_TELEMETRY__TRACE_EVERY": "1"}, ("tick", *ORDER)),
        (
            {"QTS_TELEMETRY__TRACE_EVERY": "0", "QTS_PIPELINE__ISOLATED_STRATEGIES": "turner"},
            ORDER,
        ),
    ],
    ids=["sampled tick", "unsampled tick, isolated strategy"],
)
def test_a_collector_receives_each_order_as_one_trace(
    tmp_path: Path, settings: dict[str, str], expected: tuple[str, ...]
) -> None:
    home, journals = tmp_path.resolve() / "home", tmp_path / "journals"
    with (
        collecting() as collector,
        running(
            home,
            **settings,
            QTS_SIMULATOR__SYMBOLS="100",  # with each tick traced, more spans would be dropped
            QTS_TELEMETRY__OTLP_ENDPOINT=collector.address,
            QTS_PIPELINE__STRATEGIES="tests.acceptance.turner:Turner",
            QTS_PIPELINE__JOURNAL=str(journals),
        ) as run,
    ):
        run.until("Ready")
        assert until(functools.partial(has_filled, run, 5), seconds=300)
        messages = {row["trace_id"]: row["types"] for row in run.query(MESSAGES)}
        run.ends_well(signal.SIGTERM)
    found = chains(collector)
    assert len(found) >= 5
    for chain in found:
        names = [name for name, _ in itertools.groupby(each.name for each in chain)]  # retries
        assert names == list(expected), "each span is a child of the one before, the first a root"
        assert not chain[0].parent_span_id
        assert len({each.trace_id for each in chain}) == 1
        starts = [each.start_time_unix_nano for each in chain]
        assert starts == sorted(starts)
    full = {"CreateOrderAttempt", "OrderAccepted", "FillReceived"}
    traced = {chain[0].trace_id.hex() for chain in found}
    assert {trace for trace, types in messages.items() if full <= set(types)} & traced
    assert {span.name for span in collector.spans if span.name == "tick"} == {*expected} & {"tick"}
    (journal,) = journals.iterdir()
    assert replay_decisions(journal).differences == []
