"""The log as a channel: for a desktop, and for a machine whose log is watched."""

from __future__ import annotations

from collections.abc import Sequence

from qts import telemetry
from qts.notify.message import Message

log = telemetry.logger("notify")


class Log:
    name = "log"
    address_hash = "log"

    async def send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            level = log.info if message.severity == "info" else log.warning
            level(
                message.title,
                about=message.body,
                severity=message.severity,
                eventId=str(message.event_id),
            )
