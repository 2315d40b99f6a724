"""What can be set: the Config, and every one of its settings by full name.

Type, range, default and explanation of a setting stand once, in its room's struct; errors,
`qts config show` and `qts config init` read them from there.

Settings of the simulated market that QTS runs on while it has no key of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, inspect

from qts.brokers import BrokersConfig
from qts.cache import CacheConfig
from qts.config.formatting import allowed
from qts.dashboard import DashboardConfig
from qts.database import DatabaseConfig
from qts.domain import Secret
from qts.embedded import EmbeddedConfig
from qts.events import EventsConfig
from qts.feed import FeedConfig
from qts.notify import NotifyConfig
from qts.orders import OrdersConfig
from qts.outbox import OutboxConfig
from qts.pipeline import PipelineConfig
from qts.risk import RiskConfig
from qts.telemetry import TelemetryConfig
from qts.venues import VenuesConfig


class DemoConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A simulator of feed.venue in a process of its own, while it has no key and no host."""

    enabled: Annotated[
        bool, Meta(description="false: no simulator; Upbit's own quotes need no key")
    ] = True
    seed: Annotated[int, Meta(ge=0, description="same seed, same market")] = 1
    symbols: Annotated[
        int, Meta(ge=1, le=4000, description="symbols that are listed; of Upbit 200 at most")
    ] = 2500
    speed: Annotated[
        float,
        Meta(ge=1, le=1000, description="seconds of the market in a second; 1 if it takes orders"),
    ] = 10.0
    scan_s: Annotated[
        float, Meta(gt=0, le=3600, description="a scan of all symbols takes this long, of Upbit 1")
    ] = 6.0
    port: Annotated[int, Meta(ge=0, le=65_535, description="of the simulator; 0: any")] = 0


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of QTS."""

    home: Annotated[
        Path | None,
        msgspec.Meta(description="directory of the embedded servers; unset: ~/.local/state/qts"),
    ] = None
    events: Annotated[EventsConfig, msgspec.Meta(description="The event lanes")] = EventsConfig()
    database: Annotated[DatabaseConfig, msgspec.Meta(description="PostgreSQL")] = DatabaseConfig()
    outbox: Annotated[OutboxConfig, msgspec.Meta(description="The durable bus")] = OutboxConfig()
    venues: Annotated[
        VenuesConfig, msgspec.Meta(description="KIS and Upbit: keys, hosts, limits")
    ] = VenuesConfig()
    feed: Annotated[FeedConfig, msgspec.Meta(description="What is watched, and how often")] = (
        FeedConfig()
    )
    cache: Annotated[CacheConfig, msgspec.Meta(description="Valkey or Redis")] = CacheConfig()
    pipeline: Annotated[
        PipelineConfig, msgspec.Meta(description="Strategies and the cycle around them")
    ] = PipelineConfig()
    risk: Annotated[RiskConfig, msgspec.Meta(description="Limits of the gate, and stops")] = (
        RiskConfig()
    )
    orders: Annotated[
        OrdersConfig, msgspec.Meta(description="How orders leave and are accounted for")
    ] = OrdersConfig()
    brokers: Annotated[BrokersConfig, msgspec.Meta(description="Where orders go")] = BrokersConfig()
    dashboard: Annotated[
        DashboardConfig, msgspec.Meta(description="The owner's view in a browser")
    ] = DashboardConfig()
    simulator: Annotated[
        DemoConfig, msgspec.Meta(description="The simulated market, while there is no key")
    ] = DemoConfig()
    embedded: Annotated[
        EmbeddedConfig, msgspec.Meta(description="The servers QTS starts when no URL is given")
    ] = EmbeddedConfig()
    notify: Annotated[NotifyConfig, msgspec.Meta(description="Messages to the owner")] = (
        NotifyConfig()
    )
    telemetry: Annotated[TelemetryConfig, msgspec.Meta(description="Logs, metrics and traces")] = (
        TelemetryConfig()
    )

    def __post_init__(self) -> None:
        patience, limit = self.brokers.send_timeout_s, self.orders.place_timeout_s
        if patience >= limit:
            raise ValueError(
                f"brokers.send_timeout_s ({patience:g}) must be below orders.place_timeout_s"
                f" ({limit:g}): an order that never left would count as unknown"
            )


class Setting(msgspec.Struct, frozen=True):
    """One key: where it stands, its type as the room declares it, and its default."""

    path: tuple[str, ...]
    type: Any
    default: Any

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """The environment variable that overrides this key."""
        return "QTS_" + "__".join(self.path).upper()

    @property
    def description(self) -> str:
        return _description(self.type)

    @property
    def kind(self) -> inspect.Type:
        """The type without its metadata and without None, which TOML cannot say."""
        return _bare(self.type)

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


class Schema(msgspec.Struct, frozen=True):
    """Every setting and every table of a struct, by path, in the order of declaration."""

    settings: dict[tuple[str, ...], Setting]
    tables: dict[tuple[str, ...], str]

    def nearest(self, path: tuple[str, ...]) -> str | None:
        """The known name most like an unknown one, anywhere in the tree."""
        known = [other for other in [*self.settings, *self.tables] if path[: len(other)] != other]
        best = max(known, key=lambda other: sum(_likeness(path, other)))
        whole, last = _likeness(path, best)
        return ".".join(best) if last >= 0.6 or (whole >= 0.7 and last >= 0.4) else None


@cache
def schema_of(struct: type[msgspec.Struct]) -> Schema:
    settings: dict[tuple[str, ...], Setting] = {}
    tables: dict[tuple[str, ...], str] = {}
    for path, annotation, default in _walk(struct(), ()):
        if isinstance(default, msgspec.Struct):
            tables[path] = _description(annotation)
        else:
            settings[path] = Setting(path, annotation, default)
    return Schema(settings, tables)


def settings_of(struct: type[msgspec.Struct] = Config) -> Iterable[Setting]:
    return schema_of(struct).settings.values()


def _walk(
    table: msgspec.Struct, prefix: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    for field in msgspec.structs.fields(table):
        path = (*prefix, field.name)
        value = getattr(table, field.name)
        yield path, field.type, value
        if isinstance(value, msgspec.Struct):
            yield from _walk(value, path)


def _bare(annotation: Any) -> inspect.Type:
    kind = inspect.type_info(annotation)
    if isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        (kind,) = (part for part in kind.types if not isinstance(part, inspect.NoneType))
    return kind


def _description(annotation: Any) -> str:
    kind = inspect.type_info(annotation)
    extra = (kind.extra_json_schema if isinstance(kind, inspect.Metadata) else None) or {}
    return str(extra.get("description", "")).rstrip(".")


def _likeness(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[float, float]:
    whole = SequenceMatcher(None, ".".join(one), ".".join(other)).ratio()
    return whole, SequenceMatcher(None, one[-1], other[-1]).ratio()
