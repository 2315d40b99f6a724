"""Settings of the messages to the owner."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from qts.domain import ConfigError, Secret

TradeEvent = Literal[
    "OrderAccepted",
    "OrderRejected",
    "OrderThrottled",
    "OrderAbsent",
    "OrderSuspended",
    "FillReceived",
    "MarketResumed",
]
ALWAYS = ("OrderUnknown", "MarketSuspended")  # not to be left out


class TelegramConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bot that writes to one chat."""

    token: Annotated[Secret | None, Meta(description="of the bot, as BotFather gave it")] = None
    chat: Annotated[str | None, Meta(description="id of the chat, or @channel")] = None
    url: Annotated[str, Meta(description="where the bot API is")] = "https://api.telegram.org"


class SlackConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An incoming webhook of Slack."""

    url: Annotated[Secret | None, Meta(description="of the incoming webhook")] = None


class WebhookConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Your own server: JSON, signed."""

    url: Annotated[Secret | None, Meta(description="that takes the messages by POST")] = None
    key: Annotated[
        Secret | None, Meta(description="that both sides know; signs each request (HMAC-SHA256)")
    ] = None


class PushConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Web push: to browsers that have subscribed."""

    key: Annotated[
        Secret | None, Meta(description="VAPID private key; qts notify key makes one")
    ] = None
    contact: Annotated[
        str | None, Meta(description="mailto: or https: address a push service may write to")
    ] = None


class NotifyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which channels there are, what they are told of, and how often."""

    telegram: Annotated[TelegramConfig, Meta(description="Telegram")] = TelegramConfig()
    slack: Annotated[SlackConfig, Meta(description="Slack")] = SlackConfig()
    webhook: Annotated[WebhookConfig, Meta(description="A server of your own")] = WebhookConfig()
    push: Annotated[PushConfig, Meta(description="Browsers, by web push")] = PushConfig()
    log: Annotated[bool, Meta(description="write messages to the log as well")] = False
    events: Annotated[
        tuple[TradeEvent, ...],
        Meta(description="trade events to tell of; unknown orders and alerts always are"),
    ] = ("OrderAccepted", "OrderRejected", "MarketResumed")
    per_minute: Annotated[
        int, Meta(ge=1, le=600, description="requests a channel gets in a minute; the rest waits")
    ] = 20
    batch_window_s: Annotated[
        float,
        Meta(ge=0, le=600, description="how long messages wait for others to go with; alerts none"),
    ] = 2.0
    timeout_s: Annotated[float, Meta(ge=0.1, le=60, description="longest one request may take")] = (
        10.0
    )
    keep_hours: Annotated[
        float, Meta(ge=0.1, le=720, description="how long an undelivered message is tried")
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

    def check(self) -> None:
        """What one setting needs of another; refused with the full name of what is wrong."""
        telegram, webhook, push = self.telegram, self.webhook, self.push
        pairs = {
            ("telegram.token", "telegram.chat"): (telegram.token, telegram.chat),
            ("webhook.url", "webhook.key"): (webhook.url, webhook.key),
            ("push.key", "push.contact"): (push.key, push.contact),
        }
        for names, values in pairs.items():
            if bool(values[0]) != bool(values[1]):
                given, missing = names if values[0] else names[::-1]
                raise ConfigError(f"notify.{missing} is not set; notify.{given} needs it")
        addresses = {"slack.url": self.slack.url, "webhook.url": webhook.url}
        for name, secret in addresses.items():
            if secret and not secret.reveal().startswith(("https://", "http://")):
                raise ConfigError(f"notify.{name}: expected https://... or http://...")
        if not telegram.url.startswith(("https://", "http://")):
            raise ConfigError(f"notify.telegram.url = {telegram.url}: expected https://...")
        if push.contact and not push.contact.startswith(("mailto:", "https://")):
            raise ConfigError(f"notify.push.contact = {push.contact}: expected mailto: or https://")
