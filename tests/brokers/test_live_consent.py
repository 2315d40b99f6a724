"""Orders use real money only with three explicit settings and a real key."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qts.brokers.paper
from qts.brokers import ACKNOWLEDGEMENT, BrokersConfig
from qts.brokers.config import require_live_consent_kis, require_live_consent_upbit
from qts.domain import RefusedError, Secret
from qts.venues import KisConfig, UpbitConfig, is_loopback

LIVE: dict[str, Any] = {
    "broker": "kis",
    "mode": "live",
    "live_acknowledgement": ACKNOWLEDGEMENT,
}
KEY: dict[str, Any] = {
    "app_key": Secret("k"),
    "app_secret": Secret("s"),
    "account": Secret("5012345601"),
}


def test_trading_is_on_paper_by_default() -> None:
    assert (BrokersConfig().broker, BrokersConfig().mode) == ("paper", "paper")


def is_allowed(
    require_consent: Callable[[BrokersConfig, Any], None], config: BrokersConfig, venue: Any
) -> bool:
    """Whether orders may go to this venue with these settings."""
    try:
        require_consent(config, venue)
    except RefusedError:
        return False
    return True


def test_all_three_open_the_real_venue_and_no_other() -> None:
    kis, upbit = BrokersConfig(**LIVE), BrokersConfig(**{**LIVE, "broker": "upbit"})
    real = UpbitConfig(access_key=Secret("a"), secret_key=Secret("b"))
    assert is_allowed(require_live_consent_kis, kis, KisConfig(**KEY))
    assert is_allowed(require_live_consent_upbit, upbit, real)
    assert not is_allowed(require_live_consent_kis, upbit, KisConfig(**KEY))
    assert not is_allowed(require_live_consent_upbit, kis, real)


@pytest.mark.parametrize(
    ("settings", "key", "named"),
    [
        ({"mode": "paper"}, {}, "brokers.mode"),
        ({"live_acknowledgement": ""}, {}, "brokers.live_acknowledgement"),
        ({"live_acknowledgement": "yes"}, {}, "brokers.live_acknowledgement"),
        ({"broker": "upbit"}, {}, "brokers.broker"),
        ({}, {"app_key": None}, "venues.kis.app_key"),
        ({}, {"account": None}, "account"),
        ({}, {"paper": True, "url": "https://openapi.koreainvestment.com:9443"}, "real key"),
    ],
)
def test_each_missing_setting_is_named(
    settings: dict[str, Any], key: dict[str, Any], named: str
) -> None:
    with pytest.raises(RefusedError, match=named):
        require_live_consent_kis(BrokersConfig(**{**LIVE, **settings}), KisConfig(**{**KEY, **key}))


def test_upbit_without_a_key_is_refused() -> None:
    with pytest.raises(RefusedError, match="access_key"):
        require_live_consent_upbit(BrokersConfig(**{**LIVE, "broker": "upbit"}), UpbitConfig())


def test_a_paper_key_at_its_own_host_needs_no_consent_and_a_real_one_does() -> None:
    config = BrokersConfig(broker="kis")
    assert is_allowed(require_live_consent_kis, config, KisConfig(paper=True, **KEY))
    assert not is_allowed(require_live_consent_kis, config, KisConfig(paper=False, **KEY))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_simulator_on_this_machine_needs_no_consent(host: str) -> None:
    url = f"http://{host}:9000"
    assert is_allowed(
        require_live_consent_kis, BrokersConfig(broker="kis"), KisConfig(url=url, **KEY)
    )
    assert is_allowed(
        require_live_consent_upbit, BrokersConfig(broker="upbit"), UpbitConfig(url=url)
    )


def test_a_simulator_on_another_machine_needs_it() -> None:
    url = "http://192.0.2.7:9000"
    assert not is_allowed(
        require_live_consent_kis, BrokersConfig(broker="kis"), KisConfig(url=url, **KEY)
    )
    assert not is_allowed(
        require_live_consent_upbit, BrokersConfig(broker="upbit"), UpbitConfig(url=url)
    )


@pytest.mark.parametrize(
    "url",
    [
        "https://api.upbit.com",
        "http://127.0.0.1.example.com",
        "http://localhost.example.com",
        "http://127.0.0.1@example.com",
        "http://10.0.0.1",
        "",
    ],
)
def test_only_this_machine_is_this_machine(url: str) -> None:
    assert not is_loopback(url)


def test_live_mode_on_paper_is_refused() -> None:
    with pytest.raises(ValueError, match="expected broker"):
        BrokersConfig(mode="live")


def test_the_paper_broker_imports_no_client() -> None:
    """Its modules import nothing that could send: of qts.venues only an error."""
    folder = Path(qts.brokers.paper.__file__).parent
    imported: set[str] = set()
    for name in ("paper.py", "paper_matching.py", "paper_account.py"):
        for node in ast.walk(ast.parse((folder / name).read_text())):
            if isinstance(node, ast.ImportFrom):
                imported |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
    assert {each for each in imported if "venues" in each} == {"qts.venues.VenueRejectedError"}
    assert not any(each.startswith(("aiohttp", "socket", "http", "urllib")) for each in imported)
