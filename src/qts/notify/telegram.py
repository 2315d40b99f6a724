"""Telegram: a bot writes to one chat."""

from __future__ import annotations

from collections.abc import Sequence

import aiohttp
import msgspec

from qts.domain import Secret
from qts.notify.http import post
from qts.notify.message import Message, as_text
from qts.notify.notifier import hash_of

LONGEST = 4000  # Telegram takes 4096


class Telegram:
    name = "telegram"

    def __init__(self, session: aiohttp.ClientSession, token: Secret, chat: str, url: str) -> None:
        self._session = session
        self._token = token
        self._chat = chat
        self._url = url.rstrip("/")
        self.address_hash = hash_of(url, token.reveal(), chat)

    async def send(self, messages: Sequence[Message]) -> None:
        body = {
            "chat_id": self._chat,
            "text": as_text(messages, LONGEST),
            "link_preview_options": {"is_disabled": True},
            "disable_notification": all(each.severity == "info" for each in messages),
        }
        await post(
            self._session,
            f"{self._url}/bot{self._token.reveal()}/sendMessage",
            msgspec.json.encode(body),
            {"Content-Type": "application/json"},
            f"telegram {self.address_hash}",
        )
