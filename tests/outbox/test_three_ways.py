"""The example with three settings files: the same program, the same result."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path

import pytest

from qts.domain import Secret
from qts.outbox import KafkaBusConfig, NatsBusConfig
from tests.conformance.brokers import kafka, nats, nats_server

__all__ = ["kafka", "nats", "nats_server"]

FOLDER = Path(__file__).parents[2] / "examples" / "outbox_three_ways"


@pytest.mark.parametrize("settings", ["postgres", "nats", "kafka"])
async def test_the_same_handlers_run_on(
    settings: str, database_url: Secret, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    main = runpy.run_path(str(FOLDER / "main.py"))["main"]
    environment = {"QTS_DATABASE__URL": database_url.reveal(), "QTS_HOME": str(tmp_path)}
    if settings == "nats":
        server: NatsBusConfig = request.getfixturevalue("nats")
        assert server.url is not None
        environment["QTS_OUTBOX__NATS__URL"] = server.url.reveal()
    if settings == "kafka":
        brokers: KafkaBusConfig = request.getfixturevalue("kafka")
        environment["QTS_OUTBOX__KAFKA__BOOTSTRAP"] = brokers.bootstrap or ""
        environment["QTS_OUTBOX__KAFKA__TOPIC_PREFIX"] = brokers.topic_prefix
    async with asyncio.timeout(60):
        received = await main(FOLDER / f"{settings}.toml", environment)
    assert received == {market: [0, 1, 2, 3] for market in ("KRW-BTC", "KRW-ETH", "KRW-XRP")}
