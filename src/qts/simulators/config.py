"""Settings of the simulators, including every behaviour that the venues leave undocumented."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Shape = Literal["sliding", "fixed"]


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests allowed in any second, minute and day; 0 is no limit."""

    second: Annotated[int, Meta(ge=0, description="requests in a second")] = 18
    minute: Annotated[int, Meta(ge=0, description="requests in a minute")] = 1_000
    day: Annotated[int, Meta(ge=0, description="requests in a day")] = 100_000


REAL_LIMITS = RequestLimits()
PAPER_LIMITS = RequestLimits(second=1, minute=60, day=86_400)


class KisKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Customer of the simulated KIS."""

    app_key: Annotated[str, Meta(min_length=1, description="36 characters at the venue")] = (
        "PSQTSsimulatedAppKey0123456789abcdef"
    )
    app_secret: Annotated[str, Meta(min_length=1, description="180 characters at the venue")] = (
        "simulated-app-secret" * 9
    )
    account: Annotated[
        str, Meta(pattern=r"^\d{10}$", description="CANO and ACNT_PRDT_CD in one")
    ] = "5012345601"
    hts_id: Annotated[str, Meta(min_length=1, description="tr_key of the fill notice")] = "qtsuser"
    cash: Annotated[int, Meta(ge=0, description="won at the start")] = 100_000_000


class MarketConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Market of a simulator."""

    seed: Annotated[int, Meta(ge=0, description="same seed, same market")] = 1
    symbols: Annotated[int, Meta(ge=1, le=4000, description="symbols that are listed")] = 2500
    speed: Annotated[
        float, Meta(ge=1, le=1000, description="seconds of the market in a second")
    ] = 1.0
    start: Annotated[
        datetime | None,
        Meta(description="start of the market, Korean time; unset: the next opening"),
    ] = None
    always_open: Annotated[
        bool,
        Meta(description="stocks trade at any hour of any day; their clock starts at this moment"),
    ] = False
    skew_s: Annotated[
        float,
        Meta(
            ge=-86_400,
            le=86_400,
            description="how far the venue's clock is ahead: Date header, orders and streams",
        ),
    ] = 0.0
    surges_per_hour: Annotated[
        float, Meta(ge=0, le=3600, description="random surges of 3 to 8 %, over all symbols")
    ] = 12.0
    suspended: Annotated[
        int, Meta(ge=0, description="symbols, the last ones, that do not trade")
    ] = 2


class KisSimulatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One simulated KIS host: the real one or the paper one."""

    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="0: any free one")] = 0
    paper: Annotated[bool, Meta(description="the paper host: V tr_ids, no multi-quote")] = False
    keys: Annotated[tuple[KisKey, ...], Meta(min_length=1, description="accepted keys")] = (
        KisKey(),
    )
    limits: Annotated[
        RequestLimits | None, Meta(description="for each key; unset: 18/s real, 1/s paper")
    ] = None
    window: Annotated[
        Shape, Meta(description="whether the second slides or is aligned to the clock")
    ] = "sliding"
    limits_clock: Annotated[
        Literal["wall", "market"], Meta(description="clock of limits and tokens")
    ] = "wall"
    market: Annotated[MarketConfig, Meta(description="what is traded")] = MarketConfig()
    token_interval_s: Annotated[float, Meta(ge=0, description="between two token issues")] = 60.0
    unknown_in_batch: Annotated[
        Literal["zeros", "missing"], Meta(description="a multi-quote's row for an unknown code")
    ] = "zeros"
    unsigned_change: Annotated[
        bool, Meta(description="prdy_ctrt without its sign in the multi-quote")
    ] = False
    visible_after_ms: Annotated[
        int, Meta(ge=0, description="before a new order shows in inquire-daily-ccld")
    ] = 0
    random_refusals: Annotated[
        float, Meta(ge=0, le=1, description="share of requests rejected below the limit")
    ] = 0.0
    ping_interval_s: Annotated[float, Meta(gt=0, description="between PINGPONGs")] = 10.0
    drop_after_pings: Annotated[
        int, Meta(ge=0, description="unanswered PINGPONGs that close a connection; 0: none do")
    ] = 0


class UpbitKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Customer of the simulated Upbit."""

    access_key: Annotated[str, Meta(min_length=1, description="of the JWT")] = (
        "qts-simulated-access-key"
    )
    secret_key: Annotated[str, Meta(min_length=32, description="signs the JWT")] = (
        "qts-simulated-key-" * 4
    )
    krw: Annotated[int, Meta(ge=0, description="won at the start")] = 100_000_000


class UpbitSimulatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One simulated Upbit."""

    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="0: any free one")] = 0
    keys: Annotated[tuple[UpbitKey, ...], Meta(min_length=1, description="accepted keys")] = (
        UpbitKey(),
    )
    limits_clock: Annotated[Literal["wall", "market"], Meta(description="clock of the limits")] = (
        "wall"
    )
    market: Annotated[MarketConfig, Meta(description="what is traded")] = MarketConfig(
        symbols=200, suspended=0
    )
    order_second: Annotated[int, Meta(ge=1, description="orders a second")] = 12
    default_second: Annotated[int, Meta(ge=1, description="other exchange requests a second")] = 30
    quotation_second: Annotated[
        int, Meta(ge=1, description="requests a second in each quotation group")
    ] = 10
    block_after: Annotated[
        int, Meta(ge=1, description="429s within ten seconds that lead to a 418 block")
    ] = 30
    block_s: Annotated[float, Meta(gt=0, description="length of the first block; doubles")] = 10.0
    duplicate_identifier: Annotated[
        str, Meta(min_length=1, description="name of the error for an identifier used before")
    ] = "identifier_already_exists"
    idle_s: Annotated[float, Meta(gt=0, description="a silent WebSocket is closed after")] = 120.0
    random_refusals: Annotated[
        float, Meta(ge=0, le=1, description="share of requests rejected below the limit")
    ] = 0.0
