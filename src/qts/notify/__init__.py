"""Messages to the owner: trade events and alerts, once per event, on the channels he chose."""

from qts.notify.book import Book, Channel, Waiting
from qts.notify.config import (
    NotifyConfig,
    PushConfig,
    SlackConfig,
    TelegramConfig,
    WebhookConfig,
)
from qts.notify.grafana import grafana_dashboard
from qts.notify.message import Message, Severity
from qts.notify.notifications import Notifications
from qts.notify.notifier import Declined, Gone, Later, Notifier, hash_of
from qts.notify.push import new_key, public_key, read_key, subscribe, unsubscribe
from qts.notify.rules import RULES, Rule, prometheus_rules

__all__ = [
    "RULES",
    "Book",
    "Channel",
    "Declined",
    "Gone",
    "Later",
    "Message",
    "Notifications",
    "Notifier",
    "NotifyConfig",
    "PushConfig",
    "Rule",
    "Severity",
    "SlackConfig",
    "TelegramConfig",
    "Waiting",
    "WebhookConfig",
    "grafana_dashboard",
    "hash_of",
    "new_key",
    "prometheus_rules",
    "public_key",
    "read_key",
    "subscribe",
    "unsubscribe",
]
