"""Settings of the notifications."""

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
ALWAYS = ("OrderUnknown", "MarketSuspended")  # cannot be turned off
JOB_RESULTS = ("BacktestCompleted", "BacktestFailed")  # of jobs that the operator submitted


UserId = Annotated[int, Meta(ge=1)]


class TelegramConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Telegram bot that posts to one chat and takes commands of allowed users."""

    token: Annotated[Secret | None, Meta(description="token of the bot, from BotFather")] = None
    chat: Annotated[str | None, Meta(description="id of the chat, or @channel")] = None
    url: Annotated[str, Meta(description="address of the bot API")] = "https://api.telegram.org"
    command_users: Annotated[
        tuple[UserId, ...],
        Meta(description="ids of the users whose commands are accepted; empty: no commands"),
    ] = ()
    command_chats: Annotated[
        tuple[int, ...],
        Meta(description="ids of the chats in which they are accepted; groups are negative"),
    ] = ()


class SlackConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Incoming webhook of Slack."""

    url: Annotated[Secret | None, Meta(description="address of the incoming webhook")] = None


class WebhookConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """HTTP server that receives signed JSON."""

    url: Annotated[
        Secret | None, Meta(description="address that receives the messages by POST")
    ] = None
    key: Annotated[
        Secret | None, Meta(description="shared key that signs each request (HMAC-SHA256)")
    ] = None


class PushConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Web push to subscribed browsers."""

    key: Annotated[
        Secret | None, Meta(description="VAPID private key; create one with qts ops notify key")
    ] = None
    contact: Annotated[
        str | None, Meta(description="mailto: or https: contact address for the push service")
    ] = None


class NotifyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Channels, the events they receive, and rate limits."""

    telegram: Annotated[TelegramConfig, Meta(description="Telegram")] = TelegramConfig()
    slack: Annotated[SlackConfig, Meta(description="Slack")] = SlackConfig()
    webhook: Annotated[WebhookConfig, Meta(description="Webhook")] = WebhookConfig()
    push: Annotated[PushConfig, Meta(description="Web push to browsers")] = PushConfig()
    log: Annotated[bool, Meta(description="write messages to the log as well")] = False
    events: Annotated[
        tuple[TradeEvent, ...],
        Meta(description="trade events to send; unknown orders and alerts are always sent"),
    ] = ("OrderAccepted", "OrderRejected", "MarketResumed")
    per_minute: Annotated[
        int, Meta(ge=1, le=600, description="requests per minute and channel; more are delayed")
    ] = 20
    batch_window_s: Annotated[
        float,
        Meta(
            ge=0, le=600, description="how long messages wait to be batched; critical ones do not"
        ),
    ] = 2.0
    timeout_s: Annotated[float, Meta(ge=0.1, le=60, description="timeout of a request")] = 10.0
    keep_hours: Annotated[
        float, Meta(ge=0.1, le=720, description="how long an undelivered message is retried")
    ] = 24.0

    @property
    def channels(self) -> tuple[str, ...]:
        """Return the names of the configured channels."""
        given = {
            "telegram": self.telegram.token,
            "slack": self.slack.url,
            "webhook": self.webhook.url,
            "push": self.push.key,
            "log": self.log,
        }
        return tuple(name for name, setting in given.items() if setting)

    def check(self) -> None:
        """Raise ConfigError if settings that need each other are incomplete or invalid."""
        telegram, webhook, push = self.telegram, self.webhook, self.push
        pairs = {
            ("telegram.token", "telegram.chat"): (telegram.token, telegram.chat),
            ("telegram.command_users", "telegram.command_chats"): (
                telegram.command_users,
                telegram.command_chats,
            ),
            ("webhook.url", "webhook.key"): (webhook.url, webhook.key),
            ("push.key", "push.contact"): (push.key, push.contact),
        }
        for names, values in pairs.items():
            if bool(values[0]) != bool(values[1]):
                given, missing = names if values[0] else names[::-1]
                raise ConfigError(f"notify.{missing} is not set; notify.{given} needs it")
        if telegram.command_users and not telegram.token:
            raise ConfigError(
                "notify.telegram.token is not set; notify.telegram.command_users needs it"
            )
        addresses = {"slack.url": self.slack.url, "webhook.url": webhook.url}
        for name, secret in addresses.items():
            if secret and not secret.reveal().startswith(("https://", "http://")):
                raise ConfigError(f"notify.{name}: expected https://... or http://...")
        if not telegram.url.startswith(("https://", "http://")):
            raise ConfigError(f"notify.telegram.url = {telegram.url}: expected https://...")
        if push.contact and not push.contact.startswith(("mailto:", "https://")):
            raise ConfigError(f"notify.push.contact = {push.contact}: expected mailto: or https://")
