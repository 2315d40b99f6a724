"""Slack: an incoming webhook."""

from __future__ import annotations

from collections.abc import Sequence

import aiohttp
import msgspec

from qts.domain import Secret
from qts.notify.http import post
from qts.notify.message import Message, as_text
from qts.notify.notifier import hash_of

LONGEST = 3500
# Slack reads these three as the beginning of a link or of an entity.
_ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class Slack:
    name = "slack"

    def __init__(self, session: aiohttp.ClientSession, url: Secret) -> None:
        self._session = session
        self._url = url
        self.address_hash = hash_of(url.reveal())

    async def send(self, messages: Sequence[Message]) -> None:
        text = as_text(messages, LONGEST).translate(_ESCAPED)
        await post(
            self._session,
            self._url.reveal(),
            msgspec.json.encode({"text": text}),
            {"Content-Type": "application/json"},
            f"slack {self.address_hash}",
        )
