"""Spans with and without OpenTelemetry."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from qts import telemetry
from qts.domain import Secret
from qts.telemetry import TelemetryConfig, context, current_context, new_trace_id, span, traces
from tests.telemetry.collector import Spans, collecting, recording
from tests.telemetry.log_lines import Lines

CANARY = "c4n4ry-Zx9Q8w7E"


@pytest.fixture
def spans() -> Iterator[Spans]:
    with recording() as recorded:
        yield recorded


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def test_trace_id_of_a_span_is_that_of_the_context(spans: Spans) -> None:
    trace_id = new_trace_id()
    with context(traceId=trace_id), span("decide"):
        pass
    decide = spans.by_name()["decide"]
    assert trace_of(decide) == trace_id
    assert decide.parent is None, "no made-up parent"


def test_inner_span_is_a_child_in_the_same_trace(spans: Spans) -> None:
    with span("outer"), span("inner"):
        pass
    outer, inner = spans.by_name()["outer"], spans.by_name()["inner"]
    assert outer.context is not None
    assert parent_of(inner) == outer.context.span_id
    assert trace_of(inner) == trace_of(outer)


def test_span_outside_a_trace_starts_one_and_sets_the_context(spans: Spans) -> None:
    with span("root"):
        trace_id = current_context()["traceId"]
    assert trace_of(spans.by_name()["root"]) == trace_id
    assert current_context() == {}


def test_another_event_inside_a_span_has_its_own_trace(spans: Spans) -> None:
    other = new_trace_id()
    with span("batch"), context(traceId=other), span("event"):
        pass
    event = spans.by_name()["event"]
    assert trace_of(event) == other
    assert event.parent is None


def test_span_follows_a_remembered_one_from_another_thread(spans: Spans) -> None:
    with span("commit") as commit:
        commit.remember("order 1")

    def work() -> None:
        with context(traceId=new_trace_id()), span("request", follows="order 1"):
            assert current_context()["traceId"] == telemetry.trace_id_of("order 1")
        with span("other", follows="order 2"):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    named = spans.by_name()
    assert spans.chain(named["request"]) == ["commit", "request"]
    assert trace_of(named["request"]) == trace_of(named["commit"])
    assert spans.chain(named["other"]) == ["other"]
    assert telemetry.trace_id_of("order 2") == ""


def test_followed_span_prevails_over_the_current_one(spans: Spans) -> None:
    with span("request") as request:
        request.remember("order 1")
    with span("tick"), span("fill", follows="order 1", began_ns=1_000):
        pass
    fill = spans.by_name()["fill"]
    assert spans.chain(fill) == ["request", "fill"]
    assert fill.start_time == 1_000


def test_oldest_remembered_spans_are_dropped(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_REMEMBERED", 2)
    with span("commit") as commit:
        for key in ("a", "b", "a", "c"):
            commit.remember(key)
    assert [key for key in "abc" if telemetry.trace_id_of(key)] == ["a", "c"]
    traces.stop()
    assert telemetry.trace_id_of("a") == "", "nothing outlives the recording"


def test_spans_of_a_non_hex_trace_id_share_a_trace(spans: Spans) -> None:
    for name in ("first", "second"):
        with context(traceId="order-77"), span(name):
            pass
    first, second = spans.by_name()["first"], spans.by_name()["second"]
    assert trace_of(first) == trace_of(second)
    assert first.attributes is not None
    assert first.attributes["traceId"] == "order-77"


def test_ids_and_attributes_are_on_the_span_without_secrets(spans: Spans) -> None:
    with context(eventId="e1"), span("send", symbol="005930", quantity=3, appkey=CANARY) as sent:
        sent.set(url=f"redis://:{CANARY}@host", key=Secret(CANARY), levels=[1, 2])
    attributes = dict(spans.by_name()["send"].attributes or {})
    assert CANARY not in str(attributes)
    assert attributes.pop("traceId")
    assert attributes == {
        "eventId": "e1",
        "symbol": "005930",
        "quantity": 3,
        "appkey": "***",
        "url": "redis://:***@host",
        "key": "***",
        "levels": "[1, 2]",
    }


def test_error_marks_the_span_without_its_secret(spans: Spans) -> None:
    with pytest.raises(RuntimeError), span("send"):
        raise RuntimeError(f"password={CANARY}")
    failed = spans.by_name()["send"]
    assert not failed.status.is_ok
    assert failed.events[0].name == "exception"
    assert CANARY not in failed.to_json()
    assert "RuntimeError: password=***" in failed.to_json()
    assert current_context() == {}


def test_without_an_endpoint_span_does_nothing() -> None:
    telemetry.configure(TelemetryConfig(), Lines())
    with span("x", a=1) as nothing:
        nothing.set(b=2)
        assert current_context() == {}
    assert span("x") is span("y"), "one shared object"


def test_span_that_does_nothing_costs_less_than_a_microsecond() -> None:
    def batch() -> float:
        start = time.perf_counter_ns()
        for _ in range(1000):
            with span("x", a=1):
                pass
        return (time.perf_counter_ns() - start) / 1000

    assert min(batch() for _ in range(50)) < 1000, (
        "best of 50: a busy machine is not the span's fault"
    )


@pytest.mark.parametrize("path", ["", "/", "/v1/traces"])
def test_spans_reach_a_collector_and_shutdown_flushes_them(path: str) -> None:
    with collecting() as collector:
        telemetry.configure(TelemetryConfig(otlp_endpoint=collector.address + path), Lines())
        trace_id = new_trace_id()
        with context(traceId=trace_id), span("decide"):
            pass
        telemetry.shutdown()
    (sent,) = collector.spans
    assert (sent.name, sent.trace_id.hex()) == ("decide", trace_id)
    assert span("x") is span("y"), "off again"


def test_collector_that_is_not_there_delays_the_end_only_briefly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    lines = Lines()
    telemetry.configure(TelemetryConfig(otlp_endpoint=f"http://127.0.0.1:{port}"), lines)
    with span("lost"):
        pass
    start = time.monotonic()
    telemetry.shutdown()
    assert time.monotonic() - start < traces.EXPORT_TIMEOUT_S + 5


WITHOUT_OTEL = """
import sys
import threading

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from qts import telemetry
telemetry.configure(telemetry.TelemetryConfig(otlp_endpoint="http://127.0.0.1:9"))
with telemetry.span("x", a=1) as span:
    span.set(b=2)
telemetry.shutdown()
assert not any(name.startswith("opentelemetry") for name in sys.modules)
print("done")
"""


def test_without_the_extra_spans_do_nothing_and_the_log_says_why() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_OTEL], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert 'install \\"qts[otel]\\"' in done.stderr
