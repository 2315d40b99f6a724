"""Settings of the pipeline and its strategies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from qts.domain import RefusedError, name_choices

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
        Meta(description="module:Class of each strategy, in order of precedence"),
    ] = ()
    isolated_strategies: Annotated[
        tuple[str, ...],
        Meta(description='keys of strategies that run in separate processes; "*": all'),
    ] = ()
    journal: Annotated[
        Path | None,
        Meta(description="folder of decision journals (qts dev verify decisions); unset: none"),
    ] = None
    params: Annotated[
        tuple[str, ...],
        Meta(description="parameters of strategies, each as rsi_scalper.length=20"),
    ] = ()

    def params_of(self, key: str) -> dict[str, str]:
        """Return the parameters of one strategy, as they were written."""
        return {name: value for strategy, name, value in self._params() if strategy == key}

    def strategy_keys(self) -> list[str]:
        """Return the keys of the strategies that a run has; without a list, the built-in ones."""
        return sorted(self._kinds())

    def check_strategies(self) -> None:
        """Load every strategy with its parameters; refuse what is unknown or does not fit.

        While no strategy is listed, parameters may be those of the built-in ones, which the
        simulated market runs.
        """
        kinds = self._kinds()
        for key, name, value in self._params():
            if key not in kinds:
                raise RefusedError(
                    f"pipeline.params: '{key}.{name}={value}' is for {key!r}; expected the key of"
                    f" a strategy in pipeline.strategies: {name_choices(key, sorted(kinds))}"
                )
            fields = kinds[key].Params.__struct_fields__
            if name not in fields:
                raise RefusedError(
                    f"pipeline.params: strategy {key} has no parameter {name!r}; expected"
                    f" {name_choices(name, sorted(fields))}"
                )
        for key, kind in kinds.items():
            params = self.params_of(key)
            try:
                kind.parse_params(params)
            except RefusedError as error:
                text, _, field = str(error).removeprefix(f"strategy {key}: ").partition(" - at `$.")
                name = field.rstrip("`")
                given = f".{name}={params[name]}" if name in params else ""
                raise RefusedError(f"pipeline.params: {key}{given}: {text}") from None
        for key in self.isolated_strategies:
            if key not in (*kinds, "*"):
                raise RefusedError(
                    f"pipeline.isolated_strategies: {key!r} is not the key of a strategy in"
                    f" pipeline.strategies; expected {name_choices(key, sorted([*kinds, '*']))}"
                )

    def _kinds(self) -> dict[str, type[Strategy[Any]]]:
        from qts.strategies import builtin_strategies, load_strategy

        kinds: dict[str, type[Strategy[Any]]] = {}
        for name in self.strategies:
            try:
                kind = load_strategy(name)
            except RefusedError as error:
                raise RefusedError(f"pipeline.strategies: {error}") from None
            if kind.key in kinds:
                raise RefusedError(
                    f"pipeline.strategies: {name!r} has the key {kind.key!r} of an earlier entry;"
                    " expected each strategy once"
                )
            kinds[kind.key] = kind
        return kinds or builtin_strategies()

    def _params(self) -> Iterator[tuple[str, str, str]]:
        for line in self.params:
            name, is_set, value = line.partition("=")
            strategy, _, parameter = name.strip().partition(".")
            if not (is_set and strategy and parameter):
                raise RefusedError(
                    f"pipeline.params: {line!r} is not a parameter; write rsi_scalper.length=20"
                )
            yield strategy, parameter, value.strip()
