"""The venue of a run: what fits together is opened, and on paper nothing reaches a real order."""

from __future__ import annotations

import json
import urllib.request
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.app.account_configs import (
    SimulatedVenue,
    account_configs,
    check_venues,
    refuse_stale_positions,
    run_accounts,
    uses_simulated_venue,
)
from qts.app.app import check_settings
from qts.app.upbit_venue import UpbitConnection
from qts.app.venue import ChosenVenue
from qts.brokers import ACKNOWLEDGEMENT, BrokerOptions
from qts.cli.main import run_command
from qts.config import Config
from qts.config.schema import SimulatorConfig
from qts.database import Database
from qts.domain import (
    AccountKey,
    Instruments,
    RefusedError,
    SystemClock,
    krx_instrument,
    upbit_instrument,
)
from qts.embedded import Home
from qts.feed import symbols_by_venue
from qts.venues import UpbitConfig, is_loopback
from tests.accounts import PAPER, UPBIT, VENUE
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
        check_venues(config)
    except RefusedError:
        return
    chosen = ChosenVenue.of(config)
    async with chosen.connect(Path("unused"), SystemClock()) as connection:
        assert isinstance(connection, UpbitConnection)
        options = BrokerOptions(cast(Database, None), config.brokers, Instruments())
        if broker == "paper":
            with pytest.raises(RefusedError, match="not set"):
                # no order, no cancel: nothing here can be signed
                connection._client.authorization()
        elif is_loopback(url):
            connection.broker(options)
        else:
            with pytest.raises(RefusedError, match="real money"):
                connection.broker(options)


def test_a_broker_of_another_venue_is_refused_in_one_line() -> None:
    for venue, broker in (("kis", "upbit"), ("upbit", "kis")):
        with pytest.raises(RefusedError, match=f'expected "paper" or "{venue}"') as refused:
            check_venues(config_of(feed={"venue": venue}, brokers={"broker": broker}))
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("venue", ["kis", "upbit"])
def test_live_without_a_key_is_not_the_simulator(venue: str) -> None:
    brokers = {"broker": venue, "mode": "live", "live_acknowledgement": ACKNOWLEDGEMENT}
    with pytest.raises(RefusedError, match=f"venues.{venue} has no key"):
        check_settings(config_of(feed={"venue": venue}, brokers=brokers))


def test_quotes_of_a_simulator_are_not_mixed_with_real_ticks() -> None:
    upbit = {"url": "http://127.0.0.1:9"}
    with pytest.raises(RefusedError, match="stream_url"):
        check_venues(config_of(feed={"venue": "upbit"}, venues={"upbit": upbit}))


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


def test_observe_plans_for_the_venue_of_the_settings_and_refuses_several(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QTS_FEED__VENUE", "upbit")
    assert run_command(["observe", "--plan"]) == 0
    assert "10/s, 600/min" in capsys.readouterr().out
    monkeypatch.setenv("QTS_FEED__VENUE", "kis,upbit")
    assert run_command(["observe", "--plan"]) == 2
    assert 'feed.venue = "kis,upbit": qts data observe watches one' in capsys.readouterr().err


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


def test_each_venue_of_a_run_has_settings_of_its_own() -> None:
    config = config_of(
        feed={"venue": "kis, upbit", "index_symbol": "KRW-BTC", "volatility_index": "0503"},
        brokers={"broker": ["upbit"]},
    )
    kis, upbit = account_configs(config)
    assert (kis.feed.venue_name, upbit.feed.venue_name) == ("kis", "upbit")
    assert (kis.brokers.names, upbit.brokers.names) == (("paper",), ("upbit",))
    assert (kis.feed.index_symbol, upbit.feed.index_symbol) == (None, "KRW-BTC")
    assert (kis.feed.volatility_index, upbit.feed.volatility_index) == ("0503", None)
    assert kis.feed.record_dir != upbit.feed.record_dir
    check_venues(config)


def test_a_paper_account_of_one_venue_keeps_its_key_and_those_of_two_differ() -> None:
    one = {venue: run_accounts(config_of(feed={"venue": venue})) for venue in ("kis", "upbit")}
    assert one == {"kis": {"kis": PAPER}, "upbit": {"upbit": PAPER}}
    assert run_accounts(config_of(feed={"venue": ["kis"]})) == {"kis": PAPER}
    for names in ("kis,upbit", "upbit,kis"):  # the order does not matter
        both = run_accounts(config_of(feed={"venue": names}))
        assert both["kis"] == AccountKey.of("paper", "paper-kis")
        assert both["upbit"] == AccountKey.of("paper", "paper-upbit")


@pytest.mark.parametrize(
    ("venue", "reason"),
    [("kis,kis", "twice"), ("", "empty"), (["kis", "upbti"], "did you mean upbit")],
)
def test_venues_that_are_unknown_or_named_twice_are_refused(venue: Any, reason: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=reason):
        config_of(feed={"venue": venue})


def test_symbols_are_those_of_the_venue_that_lists_them(tmp_path: Path) -> None:
    path = tmp_path / "symbols"
    path.write_text("KRW-BTC\n005930\n")
    listed = {
        "kis": Instruments([krx_instrument("005930")]),
        "upbit": Instruments([upbit_instrument("KRW-BTC")]),
    }
    assert symbols_by_venue(path, listed) == {"kis": ["005930"], "upbit": ["KRW-BTC"]}
    path.write_text("KRW-BTC\n005930\n999999\n")
    with pytest.raises(RefusedError, match="999999 is not listed at kis or upbit"):
        symbols_by_venue(path, listed)
    path.write_text("005930\n")
    with pytest.raises(RefusedError, match="no symbol is listed at upbit"):
        symbols_by_venue(path, listed)


def test_a_symbol_of_two_venues_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "symbols"
    path.write_text("005930\n")
    twin = msgspec.structs.replace(krx_instrument("005930"), venue="upbit")
    listed = {"kis": Instruments([krx_instrument("005930")]), "upbit": Instruments([twin])}
    with pytest.raises(RefusedError, match="005930 is listed at kis and at upbit"):
        symbols_by_venue(path, listed)
