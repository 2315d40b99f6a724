"""Settings of the pipeline and of strategies: checked, and the strategies made of them.

[[strategy]] ──────────────────────────┐
pipeline.strategies, the short form ───┴─▶ StrategyConfig with a name ─▶ Strategy
                                                    ▲
pipeline.params, by name ───────────────────────────┘
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from qts.domain import MANUAL, STOPS, RefusedError, assumed_instrument, check_name, name_choices
from qts.risk import (
    PositionStops,
    RiskLimits,
    StopsConfig,
    StrategyLimits,
    StrategyLimitsConfig,
    StrategyStopsConfig,
)

if TYPE_CHECKING:
    from qts.strategies import Strategy


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cycles and strategies."""

    interval_ms: Annotated[
        int, Meta(ge=500, le=3000, description="between the starts of two cycles")
    ] = 1000
    fill_timeout_s: Annotated[
        float, Meta(gt=0, le=60, description="how long a cycle waits for its fills")
    ] = 5.0
    signal_ttl_s: Annotated[
        float, Meta(gt=0, le=300, description="a signal older than this is not sent")
    ] = 5.0
    strategies: Annotated[
        tuple[str, ...],
        Meta(description="class of each strategy: the short form of [[strategy]] tables"),
    ] = ()
    isolated_strategies: Annotated[
        tuple[str, ...],
        Meta(description='names of strategies that run in separate processes; "*": all'),
    ] = ()
    journal: Annotated[
        Path | None,
        Meta(description="folder of decision journals, for qts explain; unset: none"),
    ] = None
    params: Annotated[
        tuple[str, ...],
        Meta(description="parameters of strategies, each as rsi_scalper.length=20"),
    ] = ()


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_RESERVED = {MANUAL: "orders of the operator", STOPS: "orders of the stops"}
ALL = "all"  # every instance, on the command line


class StrategyConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One instance of a strategy class; several may have the same class."""

    source: Annotated[
        str, Meta(min_length=1, description="rsi_scalper, module:Class or path.py:Class")
    ] = msgspec.field(name="class")
    name: Annotated[
        str,
        Meta(description="what orders, state and switches know it by; default: the class's key"),
    ] = ""
    symbols: Annotated[
        tuple[str, ...] | None, Meta(description="instead of the symbols of the class")
    ] = None
    capital: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=10**15,
                description="won that it may hold in positions and entries together",
            ),
        ]
        | None
    ) = None
    limits: Annotated[
        StrategyLimitsConfig, Meta(description="its own limits beside those of the account")
    ] = StrategyLimitsConfig()
    stops: Annotated[
        StrategyStopsConfig, Meta(description="stops of its positions instead of risk.stops")
    ] = StrategyStopsConfig()
    parameters: Annotated[
        dict[str, Any], Meta(description="its parameters, as { fall = 0.03, windows = [5, 20] }")
    ] = {}

    def __post_init__(self) -> None:
        if self.limits.max_symbol_exposure is not None and self.capital is None:
            raise ValueError(
                f"limits.max_symbol_exposure ({self.limits.max_symbol_exposure:g}) is a fraction of"
                " the capital; expected capital too"
            )

    @property
    def exact_limits(self) -> StrategyLimits | None:
        """Its capital and limits as decimals; None: only those of the account hold."""
        if self.capital is None and self.limits == StrategyLimitsConfig():
            return None
        return self.limits.exact(self.capital)

    def with_parameters(self, more: Mapping[str, Any]) -> StrategyConfig:
        """Return the instance with these parameters too, which win over its own."""
        return replace(self, parameters={**self.parameters, **more})

    def create(self) -> Strategy[Any]:
        """Return the strategy, with this name, these symbols and these parameters."""
        from qts.strategies import load_strategy

        return load_strategy(self.source).from_params(
            self.parameters, name=self.name, symbols=self.symbols
        )


def strategy_instances(
    pipeline: PipelineConfig, tables: Sequence[StrategyConfig]
) -> tuple[StrategyConfig, ...]:
    """Return the instances of a run with their names and all their parameters.

    Load every class; raise RefusedError for what is unknown or does not fit.
    """
    short = [StrategyConfig(source=source) for source in pipeline.strategies]
    found: dict[str, StrategyConfig] = {}
    for where, given in (
        *(("pipeline.strategies", each) for each in short),
        *(("strategy", each) for each in tables),
    ):
        instance = _named(where, given)
        if (other := found.get(instance.name)) is not None:
            raise RefusedError(
                f"{where}: {given.source!r} has the name {instance.name!r} of {other.source!r};"
                " expected each name once, set as in name = " + f'"{instance.name}-2"'
            )
        found[instance.name] = instance
    known = found or _builtin()
    _check_isolated(pipeline, known)
    lines = _params_by_name(pipeline, known)
    instances = {name: each.with_parameters(lines.get(name, {})) for name, each in known.items()}
    for each in instances.values():
        _check_parameters(each, lines.get(each.name, {}))
    return tuple(instances.values()) if found else ()


def with_strategies(limits: RiskLimits, instances: Sequence[StrategyConfig]) -> RiskLimits:
    """Return the limits of an account with those of each instance that has its own.

    What the widest of their stops sells must be sellable, too.
    """
    own = {each.name: found for each in instances if (found := each.exact_limits) is not None}
    falls = [Decimal(str(each.stops.mae_full)) for each in instances if each.stops.mae_full]
    return replace(limits, strategies=own, exit_margin=max(limits.exit_margin, *falls, Decimal(0)))


def own_stops(stops: StopsConfig, instances: Iterable[StrategyConfig]) -> dict[str, PositionStops]:
    """Return the stops of each instance that has its own; raise RefusedError for wrong ones."""
    found: dict[str, PositionStops] = {}
    for each in instances:
        try:
            own = each.stops.over(stops)
        except ValueError as error:
            raise RefusedError(f"strategy {each.name}: stops: {error}") from None
        if own is not None:
            found[each.name] = own
    return found


def check_venues(instance: StrategyConfig, venues: Sequence[str]) -> None:
    """Refuse capital or limits of an instance that trades at all of these venues.

    Each account has its own gate, and none of them counts what another holds.
    """
    if len(venues) > 1 and instance.exact_limits is not None:
        raise RefusedError(
            f"strategy {instance.name}: it trades at {' and '.join(venues)}, and its capital and"
            " limits hold at one venue; expected symbols of one of them"
        )


def check_venues_by_form(instance: StrategyConfig, venues: Sequence[str]) -> None:
    """Do so before the lists of the venues are known: by the form of the symbols."""
    from qts.strategies import load_strategy
    from qts.venues import market_of_venue

    if len(venues) < 2 or instance.exact_limits is None:
        return
    symbols = instance.symbols or load_strategy(instance.source).symbols
    markets = {assumed_instrument(each).market for each in symbols or ()}
    check_venues(
        instance, [each for each in venues if symbols is None or market_of_venue(each) in markets]
    )


def strategy_names(pipeline: PipelineConfig, tables: Sequence[StrategyConfig]) -> list[str]:
    """Return the names of the instances; without any, those of the built-in strategies."""
    instances = strategy_instances(pipeline, tables)
    return sorted([each.name for each in instances] or _builtin())


def select_instances(
    chosen: Sequence[str], pipeline: PipelineConfig, tables: Sequence[StrategyConfig]
) -> list[StrategyConfig]:
    """Return what a command names: a [[strategy]] by its name, a class, or all of the settings."""
    names = [each.name for each in tables if each.name]
    if ALL not in chosen and not set(names).intersection(chosen):
        return [_named_class(each, names) for each in chosen]
    known = {each.name: each for each in strategy_instances(pipeline, tables)}
    if not known:
        raise RefusedError(f"{ALL}: the settings have no strategy; write a [[strategy]] table")
    found: list[StrategyConfig] = []
    for each in chosen:
        if each == ALL:
            found += known.values()
        else:
            found.append(known[each] if each in names else _named_class(each, names))
    return found


def _named_class(source: str, names: Sequence[str]) -> StrategyConfig:
    """Return the instance of a class, with the class's key as its name."""
    from qts.strategies import builtin_strategies, load_strategy

    builtin = builtin_strategies()
    if names and ":" not in source and source not in builtin:
        check_name("strategy", source, [*names, ALL, *sorted(builtin)])
    return StrategyConfig(source=source, name=load_strategy(source).key)


def _builtin() -> dict[str, StrategyConfig]:
    """Return the built-in strategies, which the simulated market runs where none is set."""
    from qts.strategies import builtin_strategies

    return {key: StrategyConfig(source=key, name=key) for key in builtin_strategies()}


def _named(where: str, given: StrategyConfig) -> StrategyConfig:
    """Return the instance with its name; check what does not depend on other instances."""
    from qts.strategies import bar_subscription, load_strategy

    try:
        kind = load_strategy(given.source)
        name = given.name or kind.key
        if given.name and not _NAME.fullmatch(name):
            raise RefusedError(
                f"name {name!r} of {given.source!r}: expected letters, digits, - and _, at most 64"
            )
        if name in _RESERVED:
            raise RefusedError(
                f"name {name!r} of {given.source!r} is that of {_RESERVED[name]}; expected another"
            )
        if given.name == ALL:
            raise RefusedError(f"name {name!r} means every instance; expected another")
        _check_symbols(name, given.symbols)
        bar_subscription(kind)
    except RefusedError as error:
        raise RefusedError(f"{where}: {error}") from None
    return replace(given, name=name)


def _check_symbols(name: str, symbols: tuple[str, ...] | None) -> None:
    if symbols is None:
        return
    if not symbols:
        raise RefusedError(f"symbols of {name} is empty; expected symbols, or no such key for all")
    for number, each in enumerate(symbols):
        if not each.strip() or each != each.strip():
            raise RefusedError(f"symbols of {name}: {each!r}; expected one as in 005930 or KRW-BTC")
        if each in symbols[:number]:
            raise RefusedError(f"symbols of {name}: {each!r} twice; expected each once")


def _params_by_name(
    pipeline: PipelineConfig, known: Mapping[str, StrategyConfig]
) -> dict[str, dict[str, str]]:
    """Return what pipeline.params sets, by the name of the instance."""
    found: dict[str, dict[str, str]] = {}
    for name, parameter, value in _param_lines(pipeline.params):
        if name not in known:
            raise RefusedError(
                f"pipeline.params: '{name}.{parameter}={value}' is for {name!r}; expected the name"
                f" of a strategy in pipeline.strategies: {name_choices(name, sorted(known))}"
            )
        found.setdefault(name, {})[parameter] = value
    return found


def _check_parameters(instance: StrategyConfig, lines: Mapping[str, str]) -> None:
    """Raise RefusedError for a parameter that its class does not have or take."""
    from qts.strategies import load_strategy

    kind = load_strategy(instance.source)
    fields, name = kind.Params.__struct_fields__, instance.name

    def where(parameter: str) -> str:
        return "pipeline.params" if parameter in lines else f"strategy {name}: parameters"

    for parameter in instance.parameters:
        if parameter not in fields:
            choices = name_choices(parameter, sorted(fields)) if fields else "none"
            raise RefusedError(
                f"{where(parameter)}: strategy {name} has no parameter {parameter!r};"
                f" expected {choices}"
            )
    try:
        kind.parse_params(instance.parameters)
    except RefusedError as error:
        text, _, field = str(error).removeprefix(f"strategy {kind.key}: ").partition(" - at `$.")
        bad = re.split(r"[.\[`]", field)[0]
        given = f".{bad}={instance.parameters[bad]}" if bad in instance.parameters else ""
        place = where(bad) if given or not lines else "pipeline.params"
        raise RefusedError(f"{place}: {name}{given}: {text}") from None


def _check_isolated(pipeline: PipelineConfig, known: Mapping[str, StrategyConfig]) -> None:
    for name in pipeline.isolated_strategies:
        if name not in (*known, "*"):
            raise RefusedError(
                f"pipeline.isolated_strategies: {name!r} is not the name of a strategy in"
                f" pipeline.strategies; expected {name_choices(name, sorted([*known, '*']))}"
            )


def _param_lines(lines: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield strategy, parameter and value of lines such as rsi_scalper.length=20."""
    for line in lines:
        name, is_set, value = line.partition("=")
        strategy, _, parameter = name.strip().partition(".")
        if not (is_set and strategy and parameter):
            raise RefusedError(
                f"pipeline.params: {line!r} is not a parameter; write rsi_scalper.length=20"
            )
        yield strategy, parameter, value.strip()
