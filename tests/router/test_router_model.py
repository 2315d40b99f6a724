"""Any valid scenario, in any layout: every message exactly once, where it belongs, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qts.router import MessageHandler, Options, Router, Scenario, batch
from qts.router.handlers import Messages
from tests.router.support import (  # noqa: F401 - a fixture for every test here
    LayoutName,
    plan_for,
    short_stall_floor,
)

PRICES = (50_000, 101_150)  # what producers make up


@st.composite
def stage1_rule(draw: st.DrawFn, kind: int, processors: int, ordered: bool) -> dict[str, Any]:
    ids = st.lists(st.integers(0, processors - 1), min_size=1, max_size=3, unique=True)
    if ordered:
        return {"msg_type": kind, "processors": [draw(st.integers(0, processors - 1))]}
    match draw(st.sampled_from(["round_robin", "symbol", "price_above", "price_below"])):
        case "round_robin" | "symbol" as by:
            return {"msg_type": kind, "processors": draw(ids), "by": by}
        case test:
            when = {test: draw(st.integers(*PRICES))}
            rule = {"msg_type": kind, "processors": draw(ids), "when": when}
            return rule | {"otherwise": draw(ids)}


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    count = draw(st.integers(1, 4))
    kinds = draw(st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True))
    weights = draw(st.lists(st.integers(1, 5), min_size=len(kinds), max_size=len(kinds)))
    processors, strategies = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    ordered = [draw(st.booleans()) for _ in kinds]
    values = {
        "scenario": "any",
        "duration_secs": 0.01,
        "producers": {
            "count": count,
            "messages_per_sec": draw(st.sampled_from([5_000.0, 20_000.0, 50_000.0])),
            "distribution": {
                f"msg_type_{kind}": weight / sum(weights)
                for kind, weight in zip(kinds, weights, strict=True)
            },
        },
        "processors": {
            "count": processors,
            "processing_times_ns": {f"msg_type_{kind}": 0 for kind in kinds},
        },
        "strategies": {"count": strategies},
        "stage1_rules": [
            draw(stage1_rule(kind, processors, order))
            for kind, order in zip(kinds, ordered, strict=True)
        ],
        "stage2_rules": [
            {
                "msg_type": kind,
                "strategy": draw(st.integers(0, strategies - 1)),
                "ordering_required": order,
                "priority": draw(st.booleans()),
            }
            for kind, order in zip(kinds, ordered, strict=True)
        ],
        "seed": draw(st.integers(0, 2**20)),
        "stage1_routers": draw(st.integers(1, min(2, count))),
        "ring_capacity": 2 ** draw(st.integers(1, 6)),
    }
    return msgspec.convert(values, Scenario)


def recorder(into: list[Messages]) -> Callable[[Messages], None]:
    return lambda messages: into.append(messages.copy())


LAYOUTS = st.sampled_from(["one worker", "two workers", "threads"])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scenarios(), LAYOUTS)
def test_every_message_arrives_once_where_it_belongs_and_in_order(
    what: Scenario, layout: LayoutName
) -> None:
    boxes: list[list[Messages]] = [[] for _ in range(what.strategies.count)]
    handlers: dict[int, MessageHandler] = {n: batch(recorder(box)) for n, box in enumerate(boxes)}
    router = Router(what, plan_for(what, layout), options=Options(digest=True), strategies=handlers)
    report = router.run()
    assert report.verdict == "PASSED", report.render()
    assert report.produced == report.delivered == sum(len(m) for box in boxes for m in box)
    numbers: dict[int, list[int]] = {n: [] for n in range(what.producers.count)}
    for strategy, box in enumerate(boxes):
        for (producer, kind), got in streams(box).items():
            assert what.stage2[kind].strategy == strategy
            check_stream(what, kind, got)
            numbers[producer] += got["sequence_number"].tolist()
    for sent in numbers.values():
        assert len(set(sent)) == len(sent)
        if report.produced == report.offered:
            assert sorted(sent) == list(range(what.messages_per_producer))


def streams(box: list[Messages]) -> dict[tuple[int, int], Messages]:
    if not box:
        return {}
    got = np.concatenate(box)
    ways = {(int(m["producer_id"]), int(m["msg_type"])) for m in got}
    return {
        (producer, kind): got[(got["producer_id"] == producer) & (got["msg_type"] == kind)]
        for producer, kind in ways
    }


def check_stream(what: Scenario, kind: int, got: Messages) -> None:
    """Order where it is promised, and each message through a processor its content leads to."""
    rule = what.stage1[kind]
    if what.stage2[kind].ordering_required:
        assert (np.diff(got["sequence_number"].astype(np.int64)) > 0).all()
        assert got["stream_number"].tolist() == list(range(len(got)))
    processors = got["processor_id"].astype(int)
    if rule.when is not None:
        price = got["price"] / 1e8
        if rule.when.price_above is not None:
            matches = price > rule.when.price_above
        else:
            matches = price < (rule.when.price_below or 0)
        assert set(processors[matches]) <= set(rule.processors)
        assert set(processors[~matches]) <= set(rule.otherwise)
    elif rule.by == "symbol":
        by_symbol = np.array(rule.processors)[got["symbol_id"] % len(rule.processors)]
        assert (processors == by_symbol).all()
    else:
        assert set(processors) <= set(rule.processors)
