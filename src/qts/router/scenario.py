"""Scenario of a run: messages, routes and processing times. Every instance is validated.

The files in `scenarios/` show the JSON form. Besides producers, processors, strategies and the two
lists of rules, a file may contain (default in parentheses):

    seed                          same seed, same messages (1)
    stage1_routers                several Stage 1 routers; producers are split in blocks (1)
    ring_capacity                 slots of a ring, a power of two (null: chosen by the plan)
    producers.burst               {period_ms, on_ms, factor, base_factor}
    producers.symbols             number of symbol ids in the messages (16)
    stage1_rules[].by             "round_robin", or "symbol": one symbol, always one processor
    stage1_rules[].when           {price_above: x} or {price_below: x}; messages that do not match
    stage1_rules[].otherwise      go to these processors
    stage2_rules[].priority       true: overtakes messages in rings without it
"""

from __future__ import annotations

import json
import os
import stat
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from qts.domain import ScenarioError, nearest_name
from qts.router.validation import find_contradictions, find_schema_errors

_BUILTIN = Path(__file__).parent / "scenarios"
_MAX_BYTES = 1_000_000

_NS = 1_000_000_000
_MS = 1_000
MAX_COMPONENTS = 256
DEFAULT_NS = 100
# Cost of a message in a component besides its declared work, measured by `qts dev bench router`:
# with every hop stamped for every message (73 ns in all), and with fewer stamps (19 ns).
OVERHEAD_NS = {"producer": 10, "stage1": 20, "processor": 18, "stage2": 20, "strategy": 5}
LEAN_NS = {"producer": 8, "stage1": 3, "processor": 2, "stage2": 3, "strategy": 3}
Count = Annotated[int, Meta(ge=1, le=MAX_COMPONENTS)]
Id = Annotated[int, Meta(ge=0, le=MAX_COMPONENTS - 1)]
MsgType = Annotated[int, Meta(ge=0, le=7)]
TypeKey = Annotated[str, Meta(pattern=r"^msg_type_[0-7]$", description="msg_type_0 to msg_type_7")]
StrategyKey = Annotated[
    str, Meta(pattern=r"^strategy_(0|[1-9][0-9]{0,2})$", description="strategy_0, strategy_1, ...")
]
Share = Annotated[float, Meta(ge=0, le=1)]
BusyNs = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Processors = Annotated[tuple[Id, ...], Meta(min_length=1)]


class BurstProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`on_ms` of every `period_ms` at `factor` times the rate, the rest at `base_factor` times."""

    period_ms: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]
    on_ms: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]
    factor: Annotated[float, msgspec.Meta(ge=0.001, le=1000)]
    base_factor: Annotated[float, msgspec.Meta(ge=0, le=1000)]


class Pacing(msgspec.Struct, frozen=True):
    """Send times of one producer: the exact count in a span, and the intended time of each.

    The intended rate is constant, or alternates: every period begins with `on_ms` at `factor` times
    the rate and continues at `base_factor` times the rate. Message k (from 0) is due at the moment
    from which the integral of the rate is above k; a run sends the integer part of the integral
    over its duration. Fractions, not floats: 40,000,000 is 40,000,000 on every machine.
    """

    per_second: float
    burst: BurstProfile | None = None

    @property
    def peak_per_second(self) -> float:
        if self.burst is None:
            return self.per_second
        return self.per_second * max(self.burst.factor, self.burst.base_factor)

    def count(self, seconds: float) -> int:
        """Return the number of messages sent in the first `seconds`."""
        return int(self._integral(exact(seconds)))

    def due_ns(self, index: int) -> int:
        """Return the intended time of message `index` in nanoseconds after the start."""
        if self.burst is None:
            return int(index * _NS / exact(self.per_second))
        on, fast, slow = self._shape(self.burst)
        period = Fraction(self.burst.period_ms, _MS)
        periods, rest = divmod(Fraction(index), on * fast + (period - on) * slow)
        within = rest / fast if rest <= on * fast else on + (rest - on * fast) / slow
        return int((periods * period + within) * _NS)

    def _integral(self, seconds: Fraction) -> Fraction:
        if self.burst is None:
            return exact(self.per_second) * seconds
        on, fast, slow = self._shape(self.burst)
        period = Fraction(self.burst.period_ms, _MS)
        periods, rest = divmod(seconds, period)
        whole = periods * (on * fast + (period - on) * slow)
        return whole + min(rest, on) * fast + max(rest - on, Fraction(0)) * slow

    def _shape(self, burst: BurstProfile) -> tuple[Fraction, Fraction, Fraction]:
        rate = exact(self.per_second)
        return (
            Fraction(burst.on_ms, _MS),
            rate * exact(burst.factor),
            rate * exact(burst.base_factor),
        )


def exact(value: float) -> Fraction:
    """Return the number as it was written: 0.1 is one tenth."""
    return Fraction(str(value))


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class ProducerSettings(_Part, frozen=True, kw_only=True):
    count: Count = 4
    messages_per_sec: Annotated[float, Meta(gt=0, le=1e9)] = 1e6  # each
    distribution: dict[TypeKey, Share]
    burst: BurstProfile | None = None
    symbols: Annotated[int, Meta(ge=1, le=65_536)] = 16


class ProcessorSettings(_Part, frozen=True, kw_only=True):
    count: Count = 4
    processing_times_ns: dict[TypeKey, BusyNs] = {}


class StrategySettings(_Part, frozen=True, kw_only=True):
    count: Count = 3
    processing_times_ns: dict[StrategyKey, BusyNs] = {}


class PriceTest(_Part, frozen=True, kw_only=True):
    price_above: float | None = None
    price_below: float | None = None


class Stage1Rule(_Part, frozen=True, kw_only=True):
    msg_type: MsgType
    processors: Processors
    by: Literal["round_robin", "symbol"] = "round_robin"
    when: PriceTest | None = None
    otherwise: tuple[Id, ...] = ()


class Stage2Rule(_Part, frozen=True, kw_only=True):
    msg_type: MsgType
    strategy: Id
    ordering_required: bool = True
    priority: bool = False


class Scenario(_Part, frozen=True, kw_only=True, dict=True):
    scenario: Annotated[str, Meta(min_length=1, max_length=80)] = "unknown"
    duration_secs: Annotated[float, Meta(gt=0, le=86_400)] = 10.0
    producers: ProducerSettings
    processors: ProcessorSettings
    strategies: StrategySettings
    stage1_rules: tuple[Stage1Rule, ...]
    stage2_rules: tuple[Stage2Rule, ...]
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 1
    stage1_routers: Count = 1
    ring_capacity: Annotated[int, Meta(ge=2, le=1_048_576)] | None = None

    def __post_init__(self) -> None:
        for problem in find_schema_errors(Scenario, msgspec.to_builtins(self)):
            raise ScenarioError(problem)
        for problem in find_contradictions(self):
            raise ScenarioError(problem)

    @cached_property
    def shares(self) -> dict[int, float]:
        """Share of each message type, without those of share 0."""
        distribution = self.producers.distribution
        return {int(key[-1]): share for key, share in sorted(distribution.items()) if share > 0}

    @cached_property
    def stage1(self) -> dict[int, Stage1Rule]:
        return {rule.msg_type: rule for rule in self.stage1_rules}

    @cached_property
    def stage2(self) -> dict[int, Stage2Rule]:
        return {rule.msg_type: rule for rule in self.stage2_rules}

    @property
    def pacing(self) -> Pacing:
        return Pacing(self.producers.messages_per_sec, self.producers.burst)

    @property
    def messages_per_producer(self) -> int:
        return self.pacing.count(self.duration_secs)

    @property
    def total_messages(self) -> int:
        return self.producers.count * self.messages_per_producer

    @property
    def offered_rate(self) -> float:
        """Messages per second of all producers together, on average over the run."""
        return self.total_messages / self.duration_secs

    @property
    def peak_rate(self) -> float:
        return self.producers.count * self.pacing.peak_per_second

    @property
    def busy_ns_per_message(self) -> float:
        """Declared processing time of an average message in its processor and its strategy."""
        return sum(
            share
            * (self.processing_ns(msg_type) + self.strategy_ns(self.stage2[msg_type].strategy))
            for msg_type, share in self.shares.items()
        )

    def cores_needed(self) -> float:
        """Return the cores that the offered rate keeps busy: declared time and routing overhead."""
        per_message = self.busy_ns_per_message + sum(OVERHEAD_NS.values())
        return self.offered_rate * per_message / 1e9

    def processing_ns(self, msg_type: int) -> int:
        return self.processors.processing_times_ns.get(f"msg_type_{msg_type}", DEFAULT_NS)

    def strategy_ns(self, strategy: int) -> int:
        return self.strategies.processing_times_ns.get(f"strategy_{strategy}", DEFAULT_NS)

    def stage1_of(self, producer: int) -> int:
        """Return the Stage 1 router of a producer."""
        return producer * self.stage1_routers // self.producers.count


def load_scenario(path_or_name: str | Path) -> Scenario:
    """Load a built-in scenario by name, or one from a JSON file; raise ScenarioError if invalid."""
    path = find(path_or_name)
    values = read(path)
    for problem in find_schema_errors(Scenario, values):
        raise ScenarioError(f"{path}: {problem}")
    try:
        return msgspec.convert(values, Scenario)
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from None


def builtin_scenarios() -> dict[str, Path]:
    """Return the files of the built-in scenarios by name."""
    return {path.stem: path for path in sorted(_BUILTIN.glob("*.json"))}


def find(path_or_name: str | Path) -> Path:
    """Return the file of a built-in name or a path; a name takes precedence over a file."""
    names = builtin_scenarios()
    text = str(path_or_name)
    if isinstance(path_or_name, str) and text in names:
        return names[text]
    path = Path(path_or_name).expanduser()
    if path.name != text or path.suffix or os.path.lexists(path):
        return path
    near = nearest_name(text, names)
    hint = f"did you mean {near}? " if near else ""
    raise ScenarioError(
        f"no scenario {_quoted(text)}: {hint}QTS ships {', '.join(names)};"
        " anything else is the path of a file"
    )


def read(path: Path) -> Any:
    text = _text(path)
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        place = f"{path}:{error.lineno}:{error.colno}"
        raise ScenarioError(f"{place}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise ScenarioError(f"{path}: nested too deeply") from None
    except ValueError as error:  # a repeated key, or a number of thousands of digits
        raise ScenarioError(f"{path}: {str(error).partition(';')[0]}") from None


def _text(path: Path) -> str:
    try:
        # O_NONBLOCK: a pipe without a writer is refused below instead of blocking.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ScenarioError(f"cannot read scenario {_quoted(str(path))}: {reason}") from None
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise ScenarioError(f"cannot read scenario {path}: it is {kind}")
        content = os.read(descriptor, _MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > _MAX_BYTES:
        raise ScenarioError(f"scenario {path} is larger than {_MAX_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ScenarioError(f"scenario {path} is not UTF-8 text (line {line})") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {_quoted(twice)} appears twice in one object; expected once")
    return values


def _quoted(text: str) -> str:
    return json.dumps(text if len(text) <= 80 else text[:80] + "…", ensure_ascii=False)
