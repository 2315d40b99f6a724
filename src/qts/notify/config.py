"""Settings of the messages to the owner."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from qts.domain import Secret

TradeEvent = Literal[
    "OrderAccepted",
    "OrderRejected",
    "OrderThrottled",
    "OrderUnknown",
    "OrderAbsent",
    "OrderSuspended",
    "FillReceived",
    "MarketSuspended",
    "MarketResumed",
]


def _both(one: str, first: object, other: str, second: object) -> None:
    if bool(first) != bool(second):
        given, missing = (one, other) if first else (other, one)
        raise ValueError(f"{missing} is missing; {given} needs it")


def _web_address(name: str, url: str | None) -> None:
    if url is not None and not url.startswith(("https://", "http://")):
        raise ValueError(f"{name} must begin with https:// or http://")


class TelegramConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bot that writes to one chat."""

    token: Annotated[Secret | None, Meta(description="of the bot, as BotFather gave it")] = None
    chat: Annotated[str | None, Meta(description="id of the chat, or @channel")] = None
    url: Annotated[str, Meta(description="where the bot API is")] = "https://api.telegram.org"

    def __post_init__(self) -> None:
        _both("token", self.token, "chat", self.chat)
        _web_address("url", self.url)


class SlackConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An incoming webhook of Slack."""

    url: Annotated[Secret | None, Meta(description="of the incoming webhook")] = None

    def __post_init__(self) -> None:
        _web_address("url", self.url.reveal() if self.url else None)


class WebhookConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Your own server: JSON, signed."""

    url: Annotated[Secret | None, Meta(description="that takes the messages by POST")] = None
    key: Annotated[
        Secret | None, Meta(description="that both sides know; signs each request (HMAC-SHA256)")
    ] = None

    def __post_init__(self) -> None:
        _both("url", self.url, "key", self.key)
        _web_address("url", self.url.reveal() if self.url else None)


class PushConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Web push: to browsers that have subscribed."""

    key: Annotated[
        Secret | None, Meta(description="VAPID private key; qts notify key makes one")
    ] = None
    contact: Annotated[
        str | None, Meta(description="mailto: or https: address a push service may write to")
    ] = None

    def __post_init__(self) -> None:
        _both("key", self.key, "contact", self.contact)
        if self.contact and not self.contact.startswith(("mailto:", "https://")):
            raise ValueError(f"contact ({self.contact}) must begin with mailto: or https://")


class NotifyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which channels there are, what they are told of, and how often."""

    telegram: Annotated[TelegramConfig, Meta(description="Telegram")] = TelegramConfig()
    slack: Annotated[SlackConfig, Meta(description="Slack")] = SlackConfig()
    webhook: Annotated[WebhookConfig, Meta(description="A server of your own")] = WebhookConfig()
    push: Annotated[PushConfig, Meta(description="Browsers, by web push")] = PushConfig()
    log: Annotated[bool, Meta(description="write messages to the log as well")] = False
    events: Annotated[
        tuple[TradeEvent, ...],
        Meta(description="trade events to tell of; alerts are always told"),
    ] = ("OrderAccepted", "OrderRejected", "OrderUnknown", "MarketSuspended", "MarketResumed")
    per_minute: Annotated[
        int, Meta(ge=1, le=600, description="requests a channel gets in a minute; the rest waits")
    ] = 20
    group_s: Annotated[
        float,
        Meta(ge=0, le=600, description="how long messages wait for others to go with; alerts none"),
    ] = 2.0
    timeout_s: Annotated[float, Meta(ge=0.1, le=60, description="longest one request may take")] = (
        10.0
    )
    keep_hours: Annotated[
        float, Meta(gt=0, le=720, description="how long an undelivered message is tried")
    ] = 24.0

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of those that are set."""
        given = {
            "telegram": self.telegram.token,
            "slack": self.slack.url,
            "webhook": self.webhook.url,
            "push": self.push.key,
            "log": self.log,
        }
        return tuple(name for name, setting in given.items() if setting)
