"""A server of the owner's: the messages as JSON, signed with a key both sides know.

The header `X-QTS-Signature: t=<unix seconds>,v1=<hex>` holds HMAC-SHA256 of `<t>.<body>`. The
receiver computes the same, compares in constant time, and refuses a `t` that is minutes old.
A message may come twice when we died after sending: its `eventId` is the same then.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

import aiohttp
import msgspec

from qts.domain import Clock, Secret
from qts.notify.http import post
from qts.notify.message import SCHEMA_VERSION, Message
from qts.notify.notifier import hash_of

SIGNATURE = "X-QTS-Signature"


class Webhook:
    name = "webhook"

    def __init__(
        self, session: aiohttp.ClientSession, url: Secret, key: Secret, clock: Clock
    ) -> None:
        self._session = session
        self._url = url
        self._key = key
        self._clock = clock
        self.address_hash = hash_of(url.reveal())

    async def send(self, messages: Sequence[Message]) -> None:
        body = msgspec.json.encode({"schemaVersion": SCHEMA_VERSION, "messages": messages})
        headers = {
            "Content-Type": "application/json",
            SIGNATURE: signature(self._key, body, int(self._clock.now().timestamp())),
        }
        who = f"webhook {self.address_hash}"
        await post(self._session, self._url.reveal(), body, headers, who)


def signature(key: Secret, body: bytes, at: int) -> str:
    signed = hmac.new(key.reveal().encode(), b"%d." % at + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={signed}"
