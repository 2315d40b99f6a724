"""Settings of the durable bus: five streams, each with its own patience."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from qts.domain import Secret


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the events of one stream are taken, tried and given up."""

    ordered: Annotated[
        bool, Meta(description="events of one aggregate one by one, in the order of publishing")
    ] = False
    batch: Annotated[
        int, Meta(ge=1, le=5000, description="events taken at once, when handlers keep up")
    ] = 100
    concurrency: Annotated[
        int, Meta(ge=1, le=1000, description="handlers that run at the same time in one worker")
    ] = 10
    lock_ttl_s: Annotated[
        float,
        Meta(ge=0.2, le=3600, description="a silent worker loses its events after this long"),
    ] = 30.0
    handler_timeout_s: Annotated[
        float, Meta(ge=0.01, le=86_400, description="longest one attempt may take")
    ] = 30.0
    max_attempts: Annotated[
        int, Meta(ge=1, le=1000, description="attempts before an event is a dead letter")
    ] = 10
    backoff_base_s: Annotated[
        float, Meta(ge=0.001, le=60, description="pause after the first failure; doubles each time")
    ] = 1.0
    backoff_max_s: Annotated[
        float, Meta(ge=0.001, le=86_400, description="longest pause between attempts")
    ] = 60.0
    poll_max_s: Annotated[
        float,
        Meta(ge=0.01, le=60, description="longest an idle worker waits before it looks by itself"),
    ] = 1.0

    def __post_init__(self) -> None:
        if self.backoff_base_s > self.backoff_max_s:
            raise ValueError(
                f"backoff_base_s ({self.backoff_base_s:g}) must not be above backoff_max_s "
                f"({self.backoff_max_s:g})"
            )


class NatsBusConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The bus on NATS JetStream."""

    url: Annotated[
        Secret | None,
        Meta(description="nats://user:password@host:port, several with commas between them"),
    ] = None
    replicas: Annotated[
        int, Meta(ge=1, le=5, description="servers of the cluster that keep each event")
    ] = 1
    partitions: Annotated[
        int,
        Meta(ge=1, le=256, description="lines of an ordered stream; fixed when it is made"),
    ] = 8
    duplicate_window_s: Annotated[
        float,
        Meta(ge=1, le=86_400, description="how long an event sent twice is known as the same"),
    ] = 120.0


class KafkaBusConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The bus on Kafka."""

    bootstrap: Annotated[
        str | None, Meta(description="host:port of brokers, with commas between them")
    ] = None
    group: Annotated[str, Meta(description="name of the consumer group")] = "qts"
    topic_prefix: Annotated[
        str, Meta(description="before the streams' names, where brokers are shared")
    ] = ""
    group_protocol: Annotated[
        Literal["consumer", "classic"],
        Meta(description="classic for brokers older than Kafka 4.0"),
    ] = "consumer"
    security_protocol: Annotated[
        Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"],
        Meta(description="how brokers are talked to"),
    ] = "plaintext"
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"], Meta(description="how users log in")
    ] = "SCRAM-SHA-512"
    sasl_username: Annotated[str | None, Meta(description="the user")] = None
    sasl_password: Annotated[Secret | None, Meta(description="the password")] = None
    ssl_ca: Annotated[
        str | None, Meta(description="file of trusted certificates; unset: the system's")
    ] = None


class OutboxConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What carries the events, the streams by name, and how long history is kept."""

    bus: Annotated[
        Literal["postgres", "nats", "kafka"],
        Meta(description="what brings events to handlers; publishing always is PostgreSQL's"),
    ] = "postgres"
    run_relay: Annotated[
        bool,
        Meta(description="move events to NATS or Kafka in this process; else: qts outbox relay"),
    ] = True
    keep_days: Annotated[
        int,
        Meta(
            ge=1, le=3650, description="days of handled events kept; event ids are unique so long"
        ),
    ] = 90
    nats: Annotated[NatsBusConfig, Meta(description="The bus on NATS JetStream")] = NatsBusConfig()
    kafka: Annotated[KafkaBusConfig, Meta(description="The bus on Kafka")] = KafkaBusConfig()
    trade_command: Annotated[
        StreamConfig, Meta(description="everbit.trade.command: orders to execute")
    ] = StreamConfig(ordered=True, backoff_base_s=0.5)
    trade_event: Annotated[
        StreamConfig, Meta(description="everbit.trade.event: orders, fills, positions")
    ] = StreamConfig(ordered=True)
    backtest_command: Annotated[
        StreamConfig, Meta(description="everbit.backtest.command: backtests to run")
    ] = StreamConfig(
        batch=1, concurrency=1, handler_timeout_s=3600.0, max_attempts=3, backoff_max_s=300.0
    )
    backtest_event: Annotated[
        StreamConfig, Meta(description="everbit.backtest.event: results of backtests")
    ] = StreamConfig(backoff_max_s=300.0)
    system_event: Annotated[
        StreamConfig, Meta(description="everbit.system.event: settings, kill switch, operation")
    ] = StreamConfig(ordered=True, backoff_base_s=0.5)

    @property
    def streams(self) -> dict[str, StreamConfig]:
        """The settings by the streams' own names."""
        return {name: getattr(self, field) for name, field in STREAMS.items()}


TRADE_COMMAND = "everbit.trade.command"
TRADE_EVENT = "everbit.trade.event"
BACKTEST_COMMAND = "everbit.backtest.command"
BACKTEST_EVENT = "everbit.backtest.event"
SYSTEM_EVENT = "everbit.system.event"

STREAMS = {
    name: name.removeprefix("everbit.").replace(".", "_")
    for name in (TRADE_COMMAND, TRADE_EVENT, BACKTEST_COMMAND, BACKTEST_EVENT, SYSTEM_EVENT)
}

# Who consumes what. The results of backtests are read where they are shown.
WORKERS = {
    "order-executor-worker": TRADE_COMMAND,
    "notification-worker": TRADE_EVENT,
    "backtest-worker": BACKTEST_COMMAND,
    "system-worker": SYSTEM_EVENT,
}
