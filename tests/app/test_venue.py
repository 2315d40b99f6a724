"""The venue of a run: what fits together is opened, and on paper nothing reaches a real order."""

from __future__ import annotations

import json
import urllib.request
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.app.app import check
from qts.app.simulated_venue import (
    SimulatedVenue,
    refuse_stale_positions,
    uses_simulated_venue,
)
from qts.app.venue import check_venue, upbit_key
from qts.brokers import ACKNOWLEDGEMENT, UpbitBroker
from qts.brokers.config import is_loopback
from qts.cli.main import run_command
from qts.config import Config
from qts.config.schema import SimulatorConfig
from qts.database import Database
from qts.domain import RefusedError, SystemClock
from qts.embedded import Home
from qts.venues import UpbitClient, UpbitConfig
from tests.accounts import UPBIT, VENUE
from tests.orders.kit import PRICE, open_kit

REAL = UpbitConfig().url
HOSTS = (REAL, "https://api.upbit.com/", "http://10.0.0.7", "http://127.0.0.1:1")


def config_of(**tables: Any) -> Config:
    return msgspec.convert(tables, Config, strict=False, dec_hook=lambda kind, text: kind(text))


@given(
    broker=st.sampled_from(("paper", "upbit")),
    acknowledgement=st.sampled_from(("", ACKNOWLEDGEMENT)),
    keyed=st.booleans(),
    url=st.sampled_from(HOSTS),
    stream_url=st.sampled_from(("wss://api.upbit.com/websocket/v1", "ws://127.0.0.1:1")),
    demo=st.booleans(),
)
async def test_on_paper_no_setting_leads_to_a_real_order(
    broker: str, acknowledgement: str, keyed: bool, url: str, stream_url: str, demo: bool
) -> None:
    key = {"access_key": "a", "secret_key": "b"} if keyed else {}
    config = config_of(
        feed={"venue": "upbit"},
        brokers={"broker": broker, "mode": "paper", "live_acknowledgement": acknowledgement},
        venues={"upbit": {"url": url, "stream_url": stream_url, **key}},
        simulator={"enabled": demo},
    )
    try:
        check_venue(config)
    except RefusedError:
        return
    async with aiohttp.ClientSession() as session:
        client = UpbitClient(upbit_key(config), SystemClock(), session)
        if broker == "paper":
            with pytest.raises(RefusedError, match="not set"):
                client.authorization()  # no order, no cancel: nothing here can be signed
        elif is_loopback(url):
            UpbitBroker(client, config.brokers, SystemClock())
        else:
            with pytest.raises(RefusedError, match="real money"):
                UpbitBroker(client, config.brokers, SystemClock())


def test_a_broker_of_another_venue_is_refused_in_one_line() -> None:
    for venue, broker in (("kis", "upbit"), ("upbit", "kis")):
        with pytest.raises(RefusedError, match=f'expected "paper" or "{venue}"') as refused:
            check_venue(config_of(feed={"venue": venue}, brokers={"broker": broker}))
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("venue", ["kis", "upbit"])
def test_live_without_a_key_is_not_the_simulator(venue: str) -> None:
    brokers = {"broker": venue, "mode": "live", "live_acknowledgement": ACKNOWLEDGEMENT}
    with pytest.raises(RefusedError, match=f"venues.{venue} has no key"):
        check(config_of(feed={"venue": venue}, brokers=brokers))


def test_quotes_of_a_simulator_are_not_mixed_with_real_ticks() -> None:
    upbit = {"url": "http://127.0.0.1:9"}
    with pytest.raises(RefusedError, match="stream_url"):
        check_venue(config_of(feed={"venue": "upbit"}, venues={"upbit": upbit}))


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({}, True),
        ({"feed": {"venue": "upbit"}}, True),
        ({"feed": {"venue": "upbit"}, "venues": {"upbit": {"access_key": "a"}}}, False),
        ({"feed": {"venue": "upbit"}, "venues": {"upbit": {"url": "http://127.0.0.1:9"}}}, False),
        ({"feed": {"venue": "upbit"}, "simulator": {"enabled": False}}, False),
        ({"feed": {"venue": "upbit"}, "venues": {"kis": {"app_key": "a"}}}, True),
        ({"venues": {"kis": {"app_key": "a"}}}, False),
        ({"venues": {"upbit": {"access_key": "a"}}}, True),
    ],
)
def test_the_simulator_stands_in_for_a_venue_without_key_and_host(
    tables: dict[str, Any], expected: bool
) -> None:
    assert uses_simulated_venue(config_of(**tables)) is expected


async def test_positions_of_a_former_simulated_account_are_refused(database: Database) -> None:
    async with open_kit(database, SystemClock()) as kit:
        await refuse_stale_positions(database, VENUE)
        name = await kit.order()
        await kit.context.ledger.record_fill(kit.venue.trade(name, Decimal(2), PRICE))
    await refuse_stale_positions(database, UPBIT)
    with pytest.raises(RefusedError, match="starts empty"):
        await refuse_stale_positions(database, VENUE)


def test_observe_does_not_watch_one_venue_in_the_name_of_the_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QTS_FEED__VENUE", "upbit")
    assert run_command(["observe", "--plan"]) == 2
    assert 'feed.venue = "upbit"' in capsys.readouterr().err


@pytest.mark.parametrize("venue", ["kis", "upbit"])
def test_a_simulator_that_takes_orders_dates_them_by_our_clock(venue: Any, tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    home.create_directories()
    config = SimulatorConfig(symbols=5, speed=60)
    with (
        SimulatedVenue(home, config, venue, takes_orders=True) as simulated,
        urllib.request.urlopen(f"{simulated.url}/_control/clock", timeout=10) as reply,  # noqa: S310
    ):
        clock = json.load(reply)
    assert clock["speed"] == 1.0
    ahead = datetime.fromisoformat(clock["now"]) - datetime.now(UTC)
    assert abs(ahead) < timedelta(seconds=5)
