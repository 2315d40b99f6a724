"""Schema of the settings: the Config struct, and every setting by full name.

Type, range, default and description of a setting are declared once, in its package's struct;
errors, `qts config show` and `qts config init` read them there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, inspect

from qts.brokers import BrokersConfig
from qts.cache import CacheConfig
from qts.dashboard import DashboardConfig
from qts.database import DatabaseConfig
from qts.domain import Secret
from qts.embedded import EmbeddedConfig
from qts.events import EventsConfig
from qts.feed import FeedConfig
from qts.notify import NotifyConfig
from qts.orders import OrdersConfig
from qts.outbox import OutboxConfig
from qts.pipeline import (
    PipelineConfig,
    StrategyConfig,
    check_venues_by_form,
    own_stops,
    strategy_instances,
    strategy_names,
)
from qts.risk import RiskConfig
from qts.telemetry import TelemetryConfig
from qts.venues import VenuesConfig


class SimulatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Simulator of a venue in a separate process, used while the venue has no key or host."""

    enabled: Annotated[
        bool, Meta(description="false: no simulator; Upbit's quotes need no key")
    ] = True
    seed: Annotated[
        int, Meta(ge=0, description="seed of the market; the same seed gives the same market")
    ] = 1
    symbols: Annotated[
        int, Meta(ge=1, le=4000, description="listed symbols; at most 200 for Upbit")
    ] = 2500
    speed: Annotated[
        float,
        Meta(ge=1, le=1000, description="simulated seconds per second; 1 if it takes orders"),
    ] = 10.0
    scan_s: Annotated[
        float, Meta(gt=0, le=3600, description="duration of a scan of all symbols; 1 for Upbit")
    ] = 6.0
    port: Annotated[
        int, Meta(ge=0, le=65_535, description="port of the simulator; 0: any free one")
    ] = 0


_Days = Annotated[int, Meta(ge=1, le=36_500)]


class RetentionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long QTS keeps what would otherwise grow without end."""

    snapshots_all_hours: Annotated[
        int, Meta(ge=1, le=8760, description="hours in which every account snapshot is kept")
    ] = 24
    snapshots_5min_days: Annotated[
        _Days, Meta(description="days in which one account snapshot per five minutes is kept")
    ] = 31
    snapshots_daily_days: Annotated[
        _Days, Meta(description="days in which one account snapshot and sample per day is kept")
    ] = 3650
    safety_log_days: Annotated[
        int, Meta(ge=30, le=36_500, description="days of the log of the fail-safe")
    ] = 730
    actions_days: Annotated[
        int, Meta(ge=30, le=36_500, description="days of the log of actions on the dashboard")
    ] = 730
    notifications_days: Annotated[
        _Days, Meta(description="days of sent and abandoned messages; at least outbox.keep_days")
    ] = 90
    backtest_jobs_days: Annotated[_Days, Meta(description="days of finished backtest jobs")] = 90
    replayed_letters_days: Annotated[
        _Days, Meta(description="days of dead letters of lanes after their replay")
    ] = 30
    samples_days: Annotated[
        int,
        Meta(
            ge=8,
            le=36_500,
            description="days in which every sample of a run is kept; then one per day",
        ),
    ] = 90
    reports_days: Annotated[
        int, Meta(ge=8, le=36_500, description="days of daily reports in the home")
    ] = 1830
    journal_days: Annotated[_Days, Meta(description="days of decision journals")] = 30
    journal_mb: Annotated[
        int,
        Meta(ge=1, le=10_000_000, description="size of all decision journals, and of one"),
    ] = 2000
    log_mb: Annotated[
        int,
        Meta(ge=1, le=10_000, description="size at which the log of a server is rotated, once"),
    ] = 20


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of QTS."""

    home: Annotated[
        Path | None,
        msgspec.Meta(description="directory of the embedded servers; unset: ~/.local/state/qts"),
    ] = None
    strategy: Annotated[
        tuple[StrategyConfig, ...],
        msgspec.Meta(description="Instances of strategies, each a table [[strategy]]"),
    ] = ()
    events: Annotated[EventsConfig, msgspec.Meta(description="The event lanes")] = EventsConfig()
    database: Annotated[DatabaseConfig, msgspec.Meta(description="PostgreSQL")] = DatabaseConfig()
    outbox: Annotated[OutboxConfig, msgspec.Meta(description="The durable event bus")] = (
        OutboxConfig()
    )
    venues: Annotated[
        VenuesConfig, msgspec.Meta(description="KIS and Upbit: keys, hosts, limits")
    ] = VenuesConfig()
    feed: Annotated[
        FeedConfig, msgspec.Meta(description="Market data: symbols and scan interval")
    ] = FeedConfig()
    cache: Annotated[CacheConfig, msgspec.Meta(description="Valkey or Redis")] = CacheConfig()
    pipeline: Annotated[
        PipelineConfig, msgspec.Meta(description="Strategies and the ETEDA cycle")
    ] = PipelineConfig()
    risk: Annotated[
        RiskConfig, msgspec.Meta(description="Limits of the pre-trade gate, and stops")
    ] = RiskConfig()
    orders: Annotated[
        OrdersConfig, msgspec.Meta(description="Order execution and reconciliation")
    ] = OrdersConfig()
    brokers: Annotated[BrokersConfig, msgspec.Meta(description="Where orders go")] = BrokersConfig()
    dashboard: Annotated[
        DashboardConfig, msgspec.Meta(description="The dashboard in the browser")
    ] = DashboardConfig()
    simulator: Annotated[
        SimulatorConfig,
        msgspec.Meta(description="The simulated market, used while there is no key"),
    ] = SimulatorConfig()
    embedded: Annotated[
        EmbeddedConfig, msgspec.Meta(description="Servers that QTS starts when no URL is set")
    ] = EmbeddedConfig()
    notify: Annotated[NotifyConfig, msgspec.Meta(description="Notifications to the operator")] = (
        NotifyConfig()
    )
    retention: Annotated[
        RetentionConfig, msgspec.Meta(description="How long records, logs and journals are kept")
    ] = RetentionConfig()
    telemetry: Annotated[TelemetryConfig, msgspec.Meta(description="Logs, metrics and traces")] = (
        TelemetryConfig()
    )

    def __post_init__(self) -> None:
        send_s, place_s = self.brokers.send_timeout_s, self.orders.place_timeout_s
        if send_s >= place_s:
            raise ValueError(
                f"brokers.send_timeout_s ({send_s:g}) must be below orders.place_timeout_s"
                f" ({place_s:g}): an order that was never sent would count as unknown"
            )

    def strategy_instances(self) -> tuple[StrategyConfig, ...]:
        """Return the instances of strategies of a run; raise RefusedError for one that is wrong."""
        instances = strategy_instances(self.pipeline, self.strategy)
        own_stops(self.risk.stops, instances)
        for each in instances:
            check_venues_by_form(each, self.feed.venues)
        return instances

    def strategy_names(self) -> list[str]:
        """Return the names of the instances; without any, those of the built-in strategies."""
        return strategy_names(self.pipeline, self.strategy)


class Setting(msgspec.Struct, frozen=True):
    """One key: its path, its declared type and its default."""

    path: tuple[str, ...]
    type: Any
    default: Any

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """Return the environment variable that overrides this key."""
        return variable_of(self.name)

    @property
    def description(self) -> str:
        return _description(self.type)

    @property
    def kind(self) -> inspect.Type:
        """Return the type without metadata and without None, which TOML cannot express."""
        return bare_type(inspect.type_info(self.type))

    @property
    def allowed(self) -> str:
        return allowed(self.kind)

    @property
    def secret(self) -> bool:
        return isinstance(self.kind, inspect.CustomType) and self.kind.cls is Secret

    def of(self, config: msgspec.Struct) -> Any:
        value: Any = config
        for key in self.path:
            value = getattr(value, key)
        return value


# Keys and tables renamed before 1.0: old name -> new name.
RENAMED = {
    "brokers.paper.book": "brokers.paper.account",
    "brokers.patience_s": "brokers.send_timeout_s",
    "cache.truth_ms": "cache.load_timeout_ms",
    "demo": "simulator",
    "events.calm_checks": "events.recovery_checks",
    "events.held_too_long_ms": "events.gil_stall_ms",
    "events.hold_ms": "events.gil_slice_ms",
    "feed.bursts": "feed.max_bursts",
    "notify.group_s": "notify.batch_window_s",
    "outbox.relay_here": "outbox.run_relay",
    "pipeline.fill_wait_s": "pipeline.fill_timeout_s",
    "pipeline.processes": "pipeline.isolated_strategies",
    "pipeline.signal_life_s": "pipeline.signal_ttl_s",
    "risk.stops.earning_extra_s": "risk.stops.profit_extension_s",
    "risk.stops.excursion_account": "risk.stops.mae_account",
    "risk.stops.excursion_all": "risk.stops.mae_full",
    "risk.stops.excursion_half": "risk.stops.mae_half",
    "risk.stops.trail_least": "risk.stops.trail_min_distance",
}


class Schema(msgspec.Struct, frozen=True):
    """All settings and tables of a struct, by path, in the order of declaration."""

    settings: dict[tuple[str, ...], Setting]
    tables: dict[tuple[str, ...], str]
    skipped: tuple[tuple[str, ...], ...] = ()  # tables of which nothing is known

    def renamed(self, path: tuple[str, ...]) -> str | None:
        """Return the current name of a renamed key or table, or None."""
        for length in range(1, len(path) + 1):
            if new := RENAMED.get(".".join(path[:length])):
                current = (*new.split("."), *path[length:])
                if current in self.settings or current in self.tables:
                    return ".".join(current)
        return None

    def nearest(self, path: tuple[str, ...]) -> str | None:
        """Return the known name most similar to an unknown one, or None."""
        known = [other for other in [*self.settings, *self.tables] if path[: len(other)] != other]
        best = max(known, key=lambda other: sum(_similarity(path, other)))
        full, last = _similarity(path, best)
        return ".".join(best) if last >= 0.6 or (full >= 0.7 and last >= 0.4) else None


@cache
def schema_of(struct: type[msgspec.Struct], venues: type[VenuesConfig] = VenuesConfig) -> Schema:
    """Return the schema of a struct; `venues` has the tables of venues that packages add."""
    settings: dict[tuple[str, ...], Setting] = {}
    tables: dict[tuple[str, ...], str] = {}
    defaults = struct() if venues is VenuesConfig else struct(venues=venues())
    for path, annotation, default in _walk(defaults, ()):
        if isinstance(default, msgspec.Struct):
            tables[path] = _description(annotation)
        else:
            settings[path] = Setting(path, annotation, default)
    return Schema(settings, tables)


def variable_of(name: str) -> str:
    return "QTS_" + name.replace(".", "__").upper()


def settings_of(config: Config | None = None) -> Iterable[Setting]:
    """Return every setting: of QTS, and of the venues of others in `config`."""
    venues = VenuesConfig if config is None else type(config.venues)
    return schema_of(Config, venues).settings.values()


def _walk(
    table: msgspec.Struct, prefix: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    for field in msgspec.structs.fields(table):
        path = (*prefix, field.name)
        value = getattr(table, field.name)
        yield path, field.type, value
        if isinstance(value, msgspec.Struct):
            yield from _walk(value, path)


def bare_type(kind: inspect.Type) -> inspect.Type:
    """Return a type without metadata and without None, which TOML cannot express."""
    if isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        parts = [part for part in kind.types if not isinstance(part, inspect.NoneType)]
        # A text that may be a list too is read as its text.
        kind = next((part for part in parts if isinstance(part, inspect.StrType)), parts[0])
        return bare_type(kind)
    return kind


def _description(annotation: Any) -> str:
    kind = inspect.type_info(annotation)
    extra = (kind.extra_json_schema if isinstance(kind, inspect.Metadata) else None) or {}
    return str(extra.get("description", "")).rstrip(".")


def _similarity(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[float, float]:
    full = SequenceMatcher(None, ".".join(one), ".".join(other)).ratio()
    return full, SequenceMatcher(None, one[-1], other[-1]).ratio()


def allowed(kind: inspect.Type) -> str:
    """Describe the values a type allows, as in `an integer from 1 to 500`."""
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "an integer" + _range(kind)
        case inspect.FloatType():
            return "a finite number" + _range(kind)
        case inspect.LiteralType():
            return " or ".join(json.dumps(value) for value in kind.values)
        case inspect.VarTupleType(item_type=inspect.StructType()):
            return "tables [[...]] of a settings file"
        case inspect.StructType() | inspect.DictType():
            return "a table"
        case inspect.ListType() | inspect.VarTupleType():
            return f"a list, each {allowed(kind.item_type)}"
        case inspect.CustomType() if kind.cls is Secret:
            return 'a text or { file = "path" }'
        case inspect.CustomType():
            return "a path"
        case _:
            return "a text"


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge} to {kind.le}"
    bounds = {"at least": kind.ge, "above": kind.gt, "at most": kind.le, "below": kind.lt}
    given = [f"{word} {bound}" for word, bound in bounds.items() if bound is not None]
    return f" {' and '.join(given)}" if given else ""
