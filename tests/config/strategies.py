"""Hypothesis strategies for valid Configs, derived from the types and ranges of the structs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from qts.config import Config, Setting, settings_of
from qts.domain import Secret
from qts.pipeline import StrategyConfig
from qts.risk import StrategyLimitsConfig, StrategyStopsConfig

Table = TypeVar("Table", bound=msgspec.Struct)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_WORD = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=20)

# Values that satisfy the rules between fields.
_CONSTRAINED: dict[str, st.SearchStrategy[Any]] = {
    "events.p0.overflow": st.just("block"),
    "events.p0.isolation": st.just("thread"),
    **{
        f"events.p{lane}.{mark}": values
        for lane in range(4)
        for mark, values in {"warning": st.floats(0.1, 0.5), "critical": st.floats(0.95, 1)}.items()
    },
    **{
        f"outbox.{stream}.backoff_max_s": st.floats(60, 86_400)
        for stream in (
            "trade_command",
            "trade_exit",
            "trade_event",
            "backtest_command",
            "backtest_event",
            "system_event",
        )
    },
    "strategy": st.lists(
        st.builds(
            StrategyConfig,
            source=_WORD,
            name=_WORD,
            symbols=st.none() | st.lists(_WORD).map(tuple),
            capital=st.none() | st.integers(1, 10**15),
            limits=st.builds(StrategyLimitsConfig, orders_per_day=st.none() | st.integers(1, 99)),
            stops=st.builds(StrategyStopsConfig, trail=st.none() | st.floats(0.001, 0.9)),
            parameters=st.dictionaries(_WORD, st.integers(0, 9) | st.lists(st.booleans()) | _WORD),
        ),
        max_size=3,
    ).map(tuple),
    "brokers.mode": st.just("paper"),
    "brokers.broker": st.sampled_from(["paper", "kis", "upbit", "kis, upbit"]),
    "feed.venue": st.sampled_from(["kis", "upbit", "kis,upbit", "upbit, kis"]),
    "venues.kis.account": st.none() | st.integers(10**9, 10**10 - 1).map(str).map(Secret),
    "dashboard.host": st.sampled_from(["127.0.0.1", "localhost", "::1"]),
    "dashboard.certificate": st.none(),
    "dashboard.key": st.none(),
    "risk.limits.min_order_value": st.integers(1, 1000),
    "risk.limits.max_order_value": st.integers(5000, 10**15),
    "risk.stops.mae_half": st.floats(0.001, 0.01),
    "risk.stops.mae_full": st.floats(0.02, 0.99),
    "risk.stops.vix_warning": st.floats(10, 25),
    "risk.stops.vix_half": st.floats(25, 40),
    "risk.stops.vix_kill": st.floats(40, 90),
    "risk.stops.volatility_warning": st.floats(0.01, 0.03),
    "risk.stops.volatility_half": st.floats(0.03, 0.08),
    "risk.stops.volatility_kill": st.floats(0.08, 0.9),
    "orders.send_within_s": st.floats(0.05, 1),
    "orders.place_timeout_s": st.floats(3.5, 5),
    "brokers.send_timeout_s": st.floats(0.001, 3),
    "orders.absent_after_s": st.floats(121, 3600),
    "orders.throttle_base_s": st.floats(0.01, 0.5),
    "orders.throttle_max_s": st.floats(0.5, 600),
    "database.url": st.none() | _WORD.map(lambda text: Secret(f"postgresql://{text}")),
    "database.pool_min": st.integers(0, 10),
    "database.pool_max": st.integers(10, 1000),
    "cache.prefix": st.from_regex(r"[A-Za-z0-9_-]{1,32}:", fullmatch=True),
    "cache.url": st.none() | _WORD.map(lambda text: Secret(f"redis://{text}")),
}


def values_of(setting: Setting) -> st.SearchStrategy[Any]:
    if setting.name in _CONSTRAINED:
        return _CONSTRAINED[setting.name]
    values = _values(setting.kind)
    return st.none() | values if setting.default is None else values


def _values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    match kind:
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            return st.integers(kind.ge, kind.le)
        case inspect.FloatType():
            low, high = (kind.ge if kind.gt is None else kind.gt), kind.le
            numbers = st.floats(low, high, exclude_min=kind.gt is not None, allow_subnormal=False)
            return numbers.filter(lambda number: number - number == 0)
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.CustomType() if kind.cls is Path:
            plain = TEXT.filter(lambda text: "\0" not in text)
            return plain.map(lambda text: Path("/", text.lstrip("/")))
        case inspect.CustomType() if kind.cls is Secret:
            return _WORD.filter(lambda text: text != "***").map(Secret)
        case inspect.VarTupleType(item_type=inspect.LiteralType() | inspect.IntType() as item):
            return st.lists(_values(item), min_size=1, max_size=3).map(tuple)
        case inspect.VarTupleType():
            plain = st.from_regex(r"[a-z_.:=0-9]{1,20}", fullmatch=True)
            return st.lists(plain, min_size=1, max_size=3).map(tuple)
        case inspect.StrType():
            return st.text(
                st.characters(exclude_categories=["Cs"]), min_size=kind.min_length or 0, max_size=20
            )
    raise AssertionError(f"no values for {kind}")


def with_values(table: Table, values: Mapping[str, Any], prefix: str = "") -> Table:
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(table):
        name, current = f"{prefix}{field.name}", getattr(table, field.name)
        if isinstance(current, msgspec.Struct):
            fields[field.name] = with_values(current, values, f"{name}.")
        else:
            fields[field.name] = values.get(name, current)
    return type(table)(**fields)


# A few settings at a time: the rules between fields must hold with the defaults of the others.
_VALUES = {setting.name: values_of(setting) for setting in settings_of()}
CONFIGS: st.SearchStrategy[Config] = (
    st.sets(st.sampled_from(sorted(_VALUES)), max_size=8)
    .flatmap(lambda names: st.fixed_dictionaries({name: _VALUES[name] for name in sorted(names)}))
    .map(lambda values: with_values(Config(), values))
)
