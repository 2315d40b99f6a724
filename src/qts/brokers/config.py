"""Settings of the brokers, and the consent that live trading requires."""

from __future__ import annotations

from decimal import Decimal
from ipaddress import ip_address
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from qts.domain import AccountKey, FeeSchedule, Market, RefusedError
from qts.venues import KisConfig, UpbitConfig, VenuesConfig

ACKNOWLEDGEMENT = "I_UNDERSTAND_LIVE_TRADING"


class FeesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fees and taxes as fractions of a trade's amount."""

    krx_fee: Annotated[
        float, msgspec.Meta(ge=0, le=0.1, description="fee of a trade at the KRX")
    ] = 0.00015
    krx_sale_tax: Annotated[
        float, msgspec.Meta(ge=0, le=0.1, description="tax on a sale at the KRX")
    ] = 0.0020
    upbit_fee: Annotated[
        float, msgspec.Meta(ge=0, le=0.1, description="fee of a trade at Upbit")
    ] = 0.0005

    def of(self, market: Market) -> FeeSchedule:
        if market is Market.UPBIT:
            return FeeSchedule(Decimal(repr(self.upbit_fee)), Decimal(0))
        return FeeSchedule(Decimal(repr(self.krx_fee)), Decimal(repr(self.krx_sale_tax)))


class PaperConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Account and fill model of the paper venue."""

    account: Annotated[
        str, msgspec.Meta(max_length=64, description="name of the paper account")
    ] = "paper"
    cash: Annotated[
        int, msgspec.Meta(ge=0, le=10**15, description="won in a new paper account")
    ] = 100_000_000
    slippage_ticks: Annotated[
        int, msgspec.Meta(ge=0, le=100, description="ticks by which a taker pays more")
    ] = 0
    slippage_bps: Annotated[
        float, msgspec.Meta(ge=0, le=1000, description="1/100 % by which a taker pays more")
    ] = 0.0
    volume_share: Annotated[
        float,
        msgspec.Meta(
            ge=0, le=1, description="share of a tick's volume that orders may fill; 0: no limit"
        ),
    ] = 0.0
    latency_ms: Annotated[
        float, msgspec.Meta(ge=0, le=60_000, description="delay before a new order can fill")
    ] = 0.0
    latency_jitter_ms: Annotated[
        float, msgspec.Meta(ge=0, le=60_000, description="largest random addition to it")
    ] = 0.0
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32, description="seed of the random latency")] = 1


class BrokersConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Venue of the orders, and how they are sent."""

    broker: Annotated[
        Literal["paper", "kis", "upbit"], msgspec.Meta(description="venue that receives orders")
    ] = "paper"
    mode: Annotated[
        Literal["paper", "live"], msgspec.Meta(description="live: orders use real money")
    ] = "paper"
    live_acknowledgement: Annotated[
        str, msgspec.Meta(description=f"{ACKNOWLEDGEMENT}, required for live")
    ] = ""
    find_window_s: Annotated[
        float,
        msgspec.Meta(ge=1, le=3600, description="how long after sending KIS may date an order"),
    ] = 60.0
    market_collar: Annotated[
        float,
        msgspec.Meta(
            gt=0, le=0.1, description="how far above the best ask a market buy at Upbit may fill"
        ),
    ] = 0.01
    send_timeout_s: Annotated[
        float,
        msgspec.Meta(
            gt=0, le=60, description="time to send an order; after it, the order is not sent"
        ),
    ] = 3.0
    costs: Annotated[FeesConfig, msgspec.Meta(description="Fees and taxes")] = FeesConfig()
    paper: Annotated[PaperConfig, msgspec.Meta(description="The paper venue")] = PaperConfig()

    def __post_init__(self) -> None:
        if self.mode == "live" and self.broker == "paper":
            raise ValueError(
                'mode is "live" and broker is "paper"; expected broker "kis" or "upbit"'
            )


def account_key(brokers: BrokersConfig, venues: VenuesConfig) -> AccountKey:
    """Return the account that the settings name; it needs no connection."""
    match brokers.broker:
        case "kis":
            return kis_account(venues.kis)
        case "upbit":
            return upbit_account(venues.upbit)
        case _:
            return paper_account(brokers.paper)


def paper_account(config: PaperConfig) -> AccountKey:
    return AccountKey.of("paper", config.account)


def kis_account(venue: KisConfig) -> AccountKey:
    if venue.account is None:
        raise RefusedError("venues.kis.account is not set; orders need it")
    return AccountKey.of("kis", _environment(venue.rest, venue.paper), venue.account.reveal())


def upbit_account(venue: UpbitConfig) -> AccountKey:
    """Keys are replaced every year and the account stays: its name identifies it, not its key."""
    return AccountKey.of("upbit", _environment(venue.url), venue.account)


def _environment(url: str, is_paper_key: bool = False) -> str:
    """Separate the real account from one of a simulator or of KIS's paper trading."""
    if is_loopback(url):
        return "simulator"
    return "paper" if is_paper_key else "real"


def require_live_consent_kis(config: BrokersConfig, venue: KisConfig) -> None:
    """Raise RefusedError for a real KIS account unless the settings consent to live trading."""
    real_key = bool(venue.app_key and venue.app_secret and venue.account) and not venue.paper
    simulated = is_loopback(venue.rest) or (venue.paper and venue.url is None)
    if not simulated:
        _require_consent(
            config, "kis", real_key, "venues.kis.app_key, app_secret and account of a real key"
        )


def require_live_consent_upbit(config: BrokersConfig, venue: UpbitConfig) -> None:
    """Raise RefusedError for the real Upbit unless the settings consent to live trading."""
    if not is_loopback(venue.url):
        real_key = bool(venue.access_key and venue.secret_key)
        _require_consent(config, "upbit", real_key, "venues.upbit.access_key and secret_key")


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _require_consent(config: BrokersConfig, broker: str, has_key: bool, key_names: str) -> None:
    missing = []
    if config.broker != broker:
        missing.append(f'brokers.broker = "{broker}"')
    if config.mode != "live":
        missing.append('brokers.mode = "live"')
    if config.live_acknowledgement != ACKNOWLEDGEMENT:
        missing.append(f'brokers.live_acknowledgement = "{ACKNOWLEDGEMENT}"')
    if not has_key:
        missing.append(key_names)
    if missing:
        raise RefusedError(f"orders to {broker} move real money; missing: {'; '.join(missing)}")
