"""Settings of the brokers, and the consent that live trading requires."""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal
from typing import Annotated, Literal

import msgspec

from qts.domain import (
    AccountKey,
    FeeSchedule,
    Instrument,
    Market,
    RefusedError,
    Side,
    exact_decimal,
    split_names,
)
from qts.venues import KisConfig, UpbitConfig, check_venue_names, is_loopback, venue_names

ACKNOWLEDGEMENT = "I_UNDERSTAND_LIVE_TRADING"
_COIN_UNIT = Decimal("0.00000001")
_NO_TAX = Decimal(0)
# Fees round down to it.
_FEE_UNIT = {Market.KRX: Decimal(1), Market.UPBIT: _COIN_UNIT, Market.OTHER: _COIN_UNIT}


class FeesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fees and taxes as fractions of a trade's amount."""

    krx_fee: Annotated[
        float, msgspec.Meta(ge=0, le=0.1, description="fee of a trade at the KRX")
    ] = 0.00015
    krx_sale_tax: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=0.1)] | None,
        msgspec.Meta(
            description="tax on a sale of a taxed KRX instrument; unset: that of its class, 0.0020"
            " for stocks, none for ETF, ETN and ELW"
        ),
    ] = None
    upbit_fee: Annotated[
        float, msgspec.Meta(ge=0, le=0.1, description="fee of a trade at Upbit")
    ] = 0.0005
    other_fee: Annotated[
        float, msgspec.Meta(ge=0, le=0.1, description="fee of a trade at a venue of a package")
    ] = 0.0005

    def of(self, instrument: Instrument) -> FeeSchedule:
        """Return what a fill of the instrument costs."""
        if instrument.market is Market.UPBIT:
            return self.upbit
        tax = instrument.sale_tax
        if instrument.market is Market.OTHER:
            return FeeSchedule(exact_decimal(self.other_fee), tax)
        if tax and self.krx_sale_tax is not None:
            tax = exact_decimal(self.krx_sale_tax)
        return FeeSchedule(exact_decimal(self.krx_fee), tax)

    def charge(self, instrument: Instrument, side: Side, amount: Decimal) -> Decimal:
        """Return the fee and tax of one fill, rounded down as its market does."""
        fee = self.of(instrument).of(side, amount)
        return fee.quantize(_FEE_UNIT[instrument.market], ROUND_FLOOR)

    @property
    def upbit(self) -> FeeSchedule:
        return FeeSchedule(exact_decimal(self.upbit_fee), _NO_TAX)


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
        str | tuple[str, ...],
        msgspec.Meta(
            description='where orders go: "paper", or the venue; in a run on several venues those'
            ' that take orders: "kis,upbit"; the others trade on paper'
        ),
    ] = "paper"
    mode: Annotated[
        Literal["paper", "live"], msgspec.Meta(description="live: orders use real money")
    ] = "paper"
    live_acknowledgement: Annotated[
        str, msgspec.Meta(description=f"{ACKNOWLEDGEMENT}, required for live")
    ] = ""
    live_unrehearsed: Annotated[
        bool,
        msgspec.Meta(description="trade live without `qts rehearse` of this key and version"),
    ] = False
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
        check_venue_names("broker", self.names, "paper")
        if self.mode == "live" and self.names == ("paper",):
            known = " or ".join(f'"{name}"' for name in venue_names())
            raise ValueError(f'mode is "live" and broker is "paper"; expected broker {known}')

    @property
    def names(self) -> tuple[str, ...]:
        return split_names(self.broker)


def paper_account(config: PaperConfig) -> AccountKey:
    return AccountKey.of("paper", config.account)


def kis_account(venue: KisConfig) -> AccountKey:
    if venue.account is None:
        raise RefusedError("venues.kis.account is not set; orders need it")
    return AccountKey.of("kis", kis_environment(venue), venue.account.reveal())


def upbit_account(venue: UpbitConfig) -> AccountKey:
    """Keys are replaced every year and the account stays: its name identifies it, not its key."""
    return AccountKey.of("upbit", upbit_environment(venue), venue.account)


def kis_environment(venue: KisConfig) -> str:
    """Separate the real account from one of a simulator or of KIS's paper trading."""
    if is_loopback(venue.rest):
        return "simulator"
    return "paper" if venue.paper else "real"


def upbit_environment(venue: UpbitConfig) -> str:
    return "simulator" if is_loopback(venue.url) else "real"


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


def require_live_consent(
    config: BrokersConfig, venue: str, environment: str, settings: object = None
) -> None:
    """Raise RefusedError for orders of real money unless the settings consent to live trading.

    `settings` are those of the venue: a key that is needed must be in them.
    """
    if isinstance(settings, KisConfig):
        require_live_consent_kis(config, settings)
    elif isinstance(settings, UpbitConfig):
        require_live_consent_upbit(config, settings)
    elif environment == "real":
        _require_consent(config, venue, True, "")


def _require_consent(config: BrokersConfig, broker: str, has_key: bool, key_names: str) -> None:
    missing = []
    if broker not in config.names:
        missing.append(f'brokers.broker = "{broker}"')
    if config.mode != "live":
        missing.append('brokers.mode = "live"')
    if config.live_acknowledgement != ACKNOWLEDGEMENT:
        missing.append(f'brokers.live_acknowledgement = "{ACKNOWLEDGEMENT}"')
    if not has_key:
        missing.append(key_names)
    if missing:
        raise RefusedError(f"orders to {broker} move real money; missing: {'; '.join(missing)}")
