"""Settings of the venues: keys, hosts and rate limits."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from qts.domain import RefusedError, Secret
from qts.venues.ratelimit.limits import RateLimitConfig

KIS_REAL = "https://openapi.koreainvestment.com:9443"
KIS_PAPER = "https://openapivts.koreainvestment.com:29443"
KIS_REAL_STREAM = "ws://ops.koreainvestment.com:21000"
KIS_PAPER_STREAM = "ws://ops.koreainvestment.com:31000"
KIS_MASTER = "https://new.real.download.dws.co.kr/common/master"
UPBIT = "https://api.upbit.com"
UPBIT_STREAM = "wss://api.upbit.com/websocket/v1"
PAPER_PER_SECOND = 1
_ACCOUNT_NUMBER = re.compile(r"[0-9]{10}", re.ASCII)


class KisConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key of the KIS Open API."""

    app_key: Annotated[
        Secret | None, msgspec.Meta(description="app key, 36 characters; unset: no KIS")
    ] = None
    app_secret: Annotated[
        Secret | None, msgspec.Meta(description="app secret of the key, 180 characters")
    ] = None
    account: Annotated[
        Secret | None, msgspec.Meta(description="account number, 10 digits; orders need it")
    ] = None
    hts_id: Annotated[
        Secret | None, msgspec.Meta(description="HTS user name; fill notices need it")
    ] = None
    paper: Annotated[
        bool,
        msgspec.Meta(description="the key is for paper trading: at most one request a second"),
    ] = False
    url: Annotated[
        str | None, msgspec.Meta(description="REST host; unset: KIS itself, real or paper")
    ] = None
    stream_url: Annotated[
        str | None, msgspec.Meta(description="WebSocket host; unset: that of url, or KIS itself")
    ] = None
    master_url: Annotated[
        str | None,
        msgspec.Meta(
            description="folder of the master files (kospi_code.mst.zip, ...); unset: that of KIS,"
            " or /common/master of url"
        ),
    ] = None
    timeout_s: Annotated[
        float, msgspec.Meta(ge=0.1, le=60, description="longest wait for a reply")
    ] = 5.0
    limits: Annotated[RateLimitConfig, msgspec.Meta(description="requests of this key")] = (
        RateLimitConfig()
    )

    def __post_init__(self) -> None:
        if self.account is not None and not _ACCOUNT_NUMBER.fullmatch(self.account.reveal()):
            raise ValueError(
                "account is not ten digits; expected the number and its product code without a"
                " dash, as in 1234567801"
            )

    @property
    def rest(self) -> str:
        return (self.url or (KIS_PAPER if self.paper else KIS_REAL)).rstrip("/")

    @property
    def stream(self) -> str:
        default = KIS_PAPER_STREAM if self.paper else KIS_REAL_STREAM
        if self.url is not None:  # a simulator's quotes must not be mixed with real ticks
            default = self.url.replace("http", "ws", 1)
        return (self.stream_url or default).rstrip("/")

    @property
    def master(self) -> str:
        default = KIS_MASTER if self.url is None else f"{self.url.rstrip('/')}/common/master"
        return (self.master_url or default).rstrip("/")

    @property
    def key_limits(self) -> RateLimitConfig:
        """`limits`, capped at one request a second for a paper key."""
        if not self.paper:
            return self.limits
        return msgspec.structs.replace(
            self.limits, per_second=min(self.limits.per_second, PAPER_PER_SECOND)
        )

    def credentials(self) -> tuple[Secret, Secret]:
        if not self.app_key or not self.app_secret:
            raise RefusedError(
                "venues.kis.app_key and venues.kis.app_secret are not set; get them from the KIS "
                "Open API portal and set QTS_VENUES__KIS__APP_KEY and ..._APP_SECRET"
            )
        return self.app_key, self.app_secret


class UpbitConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key of the Upbit Open API; quotes need none."""

    access_key: Annotated[
        Secret | None, msgspec.Meta(description="access key; unset: quotes only")
    ] = None
    secret_key: Annotated[Secret | None, msgspec.Meta(description="secret of the key")] = None
    account: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=64,
            description="name of the account; a second one on the same database needs its own",
        ),
    ] = "upbit"
    url: Annotated[str, msgspec.Meta(description="REST host")] = UPBIT
    stream_url: Annotated[str, msgspec.Meta(description="WebSocket address")] = UPBIT_STREAM
    timeout_s: Annotated[
        float, msgspec.Meta(ge=0.1, le=60, description="longest wait for a reply")
    ] = 5.0
    orders_per_second: Annotated[
        int, msgspec.Meta(ge=1, le=100, description="orders the key may send in a second")
    ] = 12
    requests_per_second: Annotated[
        int, msgspec.Meta(ge=1, le=100, description="other requests of the key in a second")
    ] = 30
    quotes_per_second: Annotated[
        int, msgspec.Meta(ge=1, le=100, description="quote requests of this address in a second")
    ] = 10


class VenuesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of our venues; the loader adds the tables of others that are chosen."""

    kis: Annotated[KisConfig, msgspec.Meta(description="KIS Open API")] = KisConfig()
    upbit: Annotated[UpbitConfig, msgspec.Meta(description="Upbit Open API")] = UpbitConfig()
    max_skew_s: Annotated[
        float,
        msgspec.Meta(
            gt=0, le=60, description="no entries while the venue's clock differs by more than this"
        ),
    ] = 1.0


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
