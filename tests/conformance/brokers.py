"""Message brokers, a new one for each test.

Kafka is librdkafka's mock cluster, which stores nothing, unless KAFKA_BOOTSTRAP names real
brokers; those must create topics automatically.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from qts.embedded import Home, NatsServer
from qts.outbox import KafkaBusConfig, NatsBusConfig


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(Home.at(tmp_path / "nats-home")) as server:
        yield server


@pytest.fixture
def nats(nats_server: NatsServer) -> NatsBusConfig:
    return NatsBusConfig(url=nats_server.url)


@pytest.fixture
def kafka() -> Iterator[KafkaBusConfig]:
    suffix = secrets.token_hex(4)
    if bootstrap := os.environ.get("KAFKA_BOOTSTRAP"):
        yield KafkaBusConfig(bootstrap=bootstrap, group=suffix, topic_prefix=f"qts-test-{suffix}-")
        return
    settings = {"bootstrap.servers": "", "test.mock.num.brokers": 3, "log_level": 0}
    cluster = Producer(settings)  # the brokers exist as long as it does
    brokers = cluster.list_topics(timeout=10).brokers.values()
    bootstrap = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    yield KafkaBusConfig(bootstrap=bootstrap, group=suffix)
    del cluster
