"""Validation of scenarios: raw JSON against the types of a struct, then rules between values.

Each problem is one line: key, value, and what is allowed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect

from qts.domain import nearest_name

if TYPE_CHECKING:
    from qts.router.scenario import Scenario, Stage1Rule

_MAX_PER_SECOND = 1e9
_MAX_TEXT = 60


def find_contradictions(scenario: Scenario) -> Iterator[str]:
    """Yield rates, shares, ids and rules of a well-formed scenario that contradict each other."""
    yield from _rates(scenario)
    yield from _distribution(scenario)
    yield from _stage1(scenario)
    yield from _stage2(scenario)
    yield from _routes(scenario)


def _rates(scenario: Scenario) -> Iterator[str]:
    burst = scenario.producers.burst
    if burst is not None and burst.on_ms >= burst.period_ms:
        yield (
            f"producers.burst.on_ms is {burst.on_ms};"
            f" expected less than its period_ms, {burst.period_ms}"
        )
    if (peak := scenario.pacing.peak_per_second) > _MAX_PER_SECOND:
        yield (
            f"producers.burst.factor makes {peak:.4g} messages a second of one producer;"
            f" expected at most {_MAX_PER_SECOND:,.0f}"
        )
    if scenario.messages_per_producer == 0:
        yield (
            f"producers.messages_per_sec {scenario.producers.messages_per_sec:g} over duration_secs"
            f" {scenario.duration_secs:g} is not one message; expected at least one"
        )
    if scenario.stage1_routers > scenario.producers.count:
        yield (
            f"stage1_routers is {scenario.stage1_routers}; expected at most one for each of the"
            f" {scenario.producers.count} producers"
        )
    capacity = scenario.ring_capacity
    if capacity is not None and capacity & (capacity - 1):
        yield f"ring_capacity is {capacity}; expected a power of two from 2 to 1048576, as 1024"


def _distribution(scenario: Scenario) -> Iterator[str]:
    shares = scenario.producers.distribution
    total = math.fsum(shares.values())
    if abs(total - 1) > 1e-9 * max(1, len(shares)):
        yield f"the shares of producers.distribution sum to {total:.10g}; expected 1"


def _stage1(scenario: Scenario) -> Iterator[str]:
    count = scenario.processors.count
    first: dict[int, int] = {}
    for index, rule in enumerate(scenario.stage1_rules):
        place = f"stage1_rules[{index}]"
        yield from _twice(first, rule.msg_type, index, "stage1_rules")
        for name, ids in (("processors", rule.processors), ("otherwise", rule.otherwise)):
            for each in ids:
                if each >= count:
                    yield f"{place}.{name} names processor {each}; expected 0 to {count - 1}"
            if len(set(ids)) < len(ids):
                yield f"{place}.{name} is {list(ids)}; expected each processor once"
        yield from _predicate(rule, place)


def _predicate(rule: Stage1Rule, place: str) -> Iterator[str]:
    if rule.when is None:
        if rule.otherwise:
            yield f"{place}.otherwise has no meaning without a when; expected both or neither"
        return
    if (rule.when.price_above is None) == (rule.when.price_below is None):
        yield f"{place}.when is not one test; expected either price_above or price_below"
    if rule.by != "round_robin":
        yield f"{place}.by is {rule.by!r} beside a when; expected one of the two"
    if not rule.otherwise:
        yield f"{place}.otherwise is missing; expected the processors of what does not match when"


def _stage2(scenario: Scenario) -> Iterator[str]:
    count = scenario.strategies.count
    first: dict[int, int] = {}
    for index, rule in enumerate(scenario.stage2_rules):
        yield from _twice(first, rule.msg_type, index, "stage2_rules")
        if rule.strategy >= count:
            yield f"stage2_rules[{index}].strategy is {rule.strategy}; expected 0 to {count - 1}"
    for key in scenario.strategies.processing_times_ns:
        if int(key.removeprefix("strategy_")) >= count:
            yield (
                f"strategies.processing_times_ns.{key} names no strategy;"
                f" expected strategy_0 to strategy_{count - 1}"
            )


def _routes(scenario: Scenario) -> Iterator[str]:
    for msg_type, share in scenario.shares.items():
        for name, rules in (("stage1_rules", scenario.stage1), ("stage2_rules", scenario.stage2)):
            if msg_type not in rules:
                yield (
                    f"{name} has no rule for msg_type {msg_type}, a share of {share:.4g};"
                    " expected a rule for every type that is sent"
                )
    for index, rule in enumerate(scenario.stage1_rules):
        onward = scenario.stage2.get(rule.msg_type)
        processors = sorted({*rule.processors, *rule.otherwise})
        if onward is not None and onward.ordering_required and len(processors) > 1:
            yield (
                f"stage1_rules[{index}] sends msg_type {rule.msg_type} to processors {processors},"
                " but ordering_required is set for it, and processors that run at their own speed"
                ' lose the order; expected one processor, or "ordering_required": false'
            )


def _twice(first: dict[int, int], msg_type: int, index: int, name: str) -> Iterator[str]:
    if msg_type in first:
        yield (
            f"{name}[{index}] is a second rule for msg_type {msg_type},"
            f" after {name}[{first[msg_type]}]; expected one for each type"
        )
    first.setdefault(msg_type, index)


def find_schema_errors(form: type[msgspec.Struct], value: Any) -> Iterator[str]:
    """Yield unknown, missing and ill-typed keys and numbers out of range."""
    yield from _form(inspect.type_info(form), value, "")


def _form(kind: inspect.Type, value: Any, path: str) -> Iterator[str]:
    match kind:
        case inspect.Metadata():
            yield from _form(kind.type, value, path)
        case inspect.UnionType():
            (some,) = (part for part in kind.types if not isinstance(part, inspect.NoneType))
            if value is not None:
                yield from _form(some, value, path)
        case inspect.StructType():
            yield from _struct(kind, value, path)
        case inspect.DictType() if isinstance(value, dict):
            for key, item in value.items():
                yield from _key(kind.key_type, key, path)
                yield from _form(kind.value_type, item, _join(path, key))
        case inspect.VarTupleType() if isinstance(value, list | tuple) and len(value) >= (
            kind.min_length or 0
        ):
            for index, item in enumerate(value):
                yield from _form(kind.item_type, item, f"{path}[{index}]")
        case _ if not _fits(kind, value):
            yield f"{path} is {_shown(value)}; expected {_allowed(kind)}"


def _struct(kind: inspect.StructType, value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path or 'the scenario'} is {_shown(value)}; expected an object"
        return
    fields = {field.encode_name: field for field in kind.fields}
    for key in value:
        if key not in fields:
            near = nearest_name(str(key), fields)
            hint = f"did you mean {near}?" if near else f"known here: {', '.join(fields)}"
            yield f"{_join(path, key)} is not a key of a scenario; {hint}"
    for name, field in fields.items():
        if name in value:
            yield from _form(field.type, value[name], _join(path, name))
        elif field.required:
            yield f"{_join(path, name)} is missing"


def _key(kind: inspect.Type, key: str, path: str) -> Iterator[str]:
    if isinstance(kind, inspect.Metadata) and isinstance(kind.type, inspect.StrType):
        allowed = (kind.extra_json_schema or {}).get("description", "another name")
        if not re.search(kind.type.pattern or "", key):
            yield f"{_join(path, key)} is not a key of {path}; expected {allowed}"


def _fits(kind: inspect.Type, value: Any) -> bool:
    match kind:
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType():
            return isinstance(value, int) and not isinstance(value, bool) and _within(kind, value)
        case inspect.FloatType():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            return number and math.isfinite(value) and _within(kind, value)
        case inspect.LiteralType():
            return value in kind.values
        case inspect.StrType():
            low, high = kind.min_length or 0, kind.max_length or math.inf
            return isinstance(value, str) and low <= len(value) <= high and value.isprintable()
        case _:
            return False  # a list or an object was expected


def _within(kind: inspect.IntType | inspect.FloatType, value: float) -> bool:
    above = value > kind.gt if kind.gt is not None else True
    return above and (kind.ge is None or value >= kind.ge) and (kind.le is None or value <= kind.le)


def _allowed(kind: inspect.Type) -> str:
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"an integer from {kind.ge} to {kind.le}"
        case inspect.FloatType() if kind.gt is not None:
            return f"a number above {kind.gt:g} and at most {kind.le:,.0f}"
        case inspect.FloatType() if kind.ge is not None:
            return f"a number from {kind.ge:g} to {kind.le:g}"
        case inspect.FloatType():
            return "a number"
        case inspect.LiteralType():
            return " or ".join(json.dumps(value) for value in kind.values)
        case inspect.StrType():
            return f"a text of {kind.min_length} to {kind.max_length} printable characters"
        case inspect.VarTupleType():
            return "a list" + (" that is not empty" if kind.min_length else "")
        case _:
            return "an object"


def _join(path: str, key: object) -> str:
    text = str(key)
    name = text if re.fullmatch(r"\w{1,40}", text) else json.dumps(text[:40], ensure_ascii=False)
    return f"{path}.{name}" if path else name


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "an empty list" if not value else "a list"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    if isinstance(value, int) and not isinstance(value, bool):
        text = (
            f"{value}"
            if abs(value) < 10**20
            else f"{'-' * (value < 0)}1e{int(math.log10(abs(value)))}"
        )
    else:
        text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"
