"""Settings of the durable bus: six streams with separate retry and timeout settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from qts.domain import RefusedError, Secret


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Claiming, retries and timeouts of one stream."""

    ordered: Annotated[
        bool, Meta(description="handle the events of an aggregate one by one, as published")
    ] = False
    batch: Annotated[
        int, Meta(ge=1, le=5000, description="events claimed at once while handlers keep up")
    ] = 100
    concurrency: Annotated[
        int, Meta(ge=1, le=1000, description="handlers that run concurrently in one worker")
    ] = 10
    lock_ttl_s: Annotated[
        float, Meta(ge=0.2, le=3600, description="how long a claim lasts without a heartbeat")
    ] = 30.0
    handler_timeout_s: Annotated[
        float, Meta(ge=0.01, le=86_400, description="maximum duration of one attempt")
    ] = 30.0
    max_attempts: Annotated[
        int, Meta(ge=1, le=1000, description="attempts before an event becomes a dead letter")
    ] = 10
    backoff_base_s: Annotated[
        float, Meta(ge=0.001, le=60, description="first backoff; doubles with each failure")
    ] = 1.0
    backoff_max_s: Annotated[
        float, Meta(ge=0.001, le=86_400, description="maximum backoff between attempts")
    ] = 60.0
    poll_max_s: Annotated[
        float,
        Meta(ge=0.01, le=60, description="maximum interval between polls of an idle worker"),
    ] = 1.0

    def __post_init__(self) -> None:
        if self.backoff_base_s > self.backoff_max_s:
            raise ValueError(
                f"backoff_base_s ({self.backoff_base_s:g}) must not be above backoff_max_s "
                f"({self.backoff_max_s:g})"
            )


class NatsBusConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bus on NATS JetStream."""

    url: Annotated[
        Secret | None,
        Meta(description="nats://user:password@host:port, several separated by commas"),
    ] = None
    ssl_ca: Annotated[
        str | None, Meta(description="file of trusted certificates; unset: those of the system")
    ] = None
    replicas: Annotated[
        int, Meta(ge=1, le=5, description="servers of the cluster that store each event")
    ] = 1
    partitions: Annotated[
        int,
        Meta(ge=1, le=256, description="partitions of an ordered stream; fixed when it is created"),
    ] = 8
    duplicate_window_s: Annotated[
        float,
        Meta(ge=1, le=86_400, description="how long a duplicate event is recognised"),
    ] = 120.0


class KafkaBusConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bus on Kafka."""

    bootstrap: Annotated[
        str | None, Meta(description="host:port of brokers, separated by commas")
    ] = None
    group: Annotated[str, Meta(description="name of the consumer group")] = "qts"
    topic_prefix: Annotated[
        str, Meta(description="prefix of the topic names, for shared brokers")
    ] = ""
    group_protocol: Annotated[
        Literal["consumer", "classic"],
        Meta(description="classic for brokers older than Kafka 4.0"),
    ] = "consumer"
    security_protocol: Annotated[
        Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"],
        Meta(description="protocol of the connection to brokers"),
    ] = "plaintext"
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"], Meta(description="authentication")
    ] = "SCRAM-SHA-512"
    sasl_username: Annotated[str | None, Meta(description="user name")] = None
    sasl_password: Annotated[Secret | None, Meta(description="password")] = None
    ssl_ca: Annotated[
        str | None, Meta(description="file of trusted certificates; unset: those of the system")
    ] = None


class OutboxConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Transport, retention and streams of the durable bus."""

    bus: Annotated[
        Literal["postgres", "nats", "kafka"],
        Meta(description="transport from outbox to handlers; publishing always uses PostgreSQL"),
    ] = "postgres"
    run_relay: Annotated[
        bool,
        Meta(description="run the relay in this process; else with: qts ops outbox relay"),
    ] = True
    keep_days: Annotated[
        int, Meta(ge=1, le=3650, description="days that handled events and event ids are kept")
    ] = 90
    nats: Annotated[NatsBusConfig, Meta(description="The bus on NATS JetStream")] = NatsBusConfig()
    kafka: Annotated[KafkaBusConfig, Meta(description="The bus on Kafka")] = KafkaBusConfig()
    trade_command: Annotated[
        StreamConfig, Meta(description="everbit.trade.command: entries to execute")
    ] = StreamConfig(ordered=True, backoff_base_s=0.5)
    trade_exit: Annotated[
        StreamConfig, Meta(description="everbit.trade.exit: exits and cancels, ahead of entries")
    ] = StreamConfig(backoff_base_s=0.5)
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
        """Settings by stream name."""
        return {name: getattr(self, field) for name, field in STREAMS.items()}


TRADE_COMMAND = "everbit.trade.command"
TRADE_EXIT = "everbit.trade.exit"
TRADE_EVENT = "everbit.trade.event"
BACKTEST_COMMAND = "everbit.backtest.command"
BACKTEST_EVENT = "everbit.backtest.event"
SYSTEM_EVENT = "everbit.system.event"

STREAMS = {
    name: name.removeprefix("everbit.").replace(".", "_")
    for name in (
        TRADE_COMMAND,
        TRADE_EXIT,
        TRADE_EVENT,
        BACKTEST_COMMAND,
        BACKTEST_EVENT,
        SYSTEM_EVENT,
    )
}


def stream_config(streams: Mapping[str, StreamConfig], stream: str) -> StreamConfig:
    """Return the settings of a stream; raise RefusedError if it is unknown."""
    if stream not in streams:
        raise RefusedError(f"stream {stream!r} is unknown; known: {', '.join(streams)}")
    return streams[stream]


# The workers of a run and their streams; a run consumes every stream.
WORKERS = {
    "exit-executor-worker": (TRADE_EXIT,),
    "order-executor-worker": (TRADE_COMMAND,),
    "notification-worker": (TRADE_EVENT, BACKTEST_EVENT),
    "backtest-worker": (BACKTEST_COMMAND,),
    "system-worker": (SYSTEM_EVENT,),
}
