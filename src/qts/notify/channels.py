"""Notification channels: log, Slack, Telegram, signed webhook and web push to browsers.

A webhook request contains the messages as JSON and the header
`X-QTS-Signature: t=<unix seconds>,v1=<hex>` with the HMAC-SHA256 of `<t>.<body>` under a shared
key. The receiver computes the same, compares in constant time, and refuses a `t` that is minutes
old. After a crash a webhook may get a message twice, with the same `eventId`; the other channels
get it at most once.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import aiohttp
import msgspec
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from qts import telemetry
from qts.database import Database
from qts.domain import Clock, RefusedError, Secret
from qts.notify.message import (
    SCHEMA_VERSION,
    ChannelGoneError,
    Message,
    MessageDeclinedError,
    RetryLaterError,
    address_hash,
    as_text,
    check_status,
    retry_seconds,
)
from qts.notify.telegram_api import MAX_CHARS, TelegramApi

log = telemetry.logger("notify")


async def post(
    session: aiohttp.ClientSession, url: str, body: bytes, headers: Mapping[str, str], who: str
) -> None:
    """Send one POST request and translate its status into a channel error.

    Errors name `who`, never the address, which may contain a token.
    """
    try:
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            status, retry_after = response.status, response.headers.get("Retry-After", "")
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        # Not chained: the text of the cause may contain the address.
        raise RetryLaterError(f"{who} is unreachable ({type(error).__name__})") from None
    check_status(status, retry_seconds(retry_after), who)


class LogChannel:
    name = "log"
    address_hash = "log"

    async def send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            level = log.info if message.severity == "info" else log.warning
            level(
                message.title,
                body=message.body,
                severity=message.severity,
                eventId=str(message.event_id),
            )


SLACK_MAX_CHARS = 3500
# Slack interprets these as the start of a link or an entity.
_ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class SlackChannel:
    name = "slack"

    def __init__(self, session: aiohttp.ClientSession, url: Secret) -> None:
        self._session = session
        self._url = url
        self.address_hash = address_hash(url.reveal())

    async def send(self, messages: Sequence[Message]) -> None:
        text = as_text(messages, SLACK_MAX_CHARS).translate(_ESCAPED)
        await post(
            self._session,
            self._url.reveal(),
            msgspec.json.encode({"text": text}),
            {"Content-Type": "application/json"},
            f"slack {self.address_hash}",
        )


class TelegramChannel:
    name = "telegram"

    def __init__(self, session: aiohttp.ClientSession, token: Secret, chat: str, url: str) -> None:
        self._chat = chat
        self._api = TelegramApi(session, token, url)
        self.address_hash = address_hash(url, token.reveal(), chat)

    async def send(self, messages: Sequence[Message]) -> None:
        body = {
            "chat_id": self._chat,
            "text": as_text(messages, MAX_CHARS),
            "link_preview_options": {"is_disabled": True},
            "disable_notification": all(each.severity == "info" for each in messages),
        }
        await self._api.call("sendMessage", body)


SIGNATURE = "X-QTS-Signature"


class WebhookChannel:
    name = "webhook"

    def __init__(
        self, session: aiohttp.ClientSession, url: Secret, key: Secret, clock: Clock
    ) -> None:
        self._session = session
        self._url = url
        self._key = key
        self._clock = clock
        self.address_hash = address_hash(url.reveal())

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


RECORD_SIZE = 4096
MAX_BODY = 1000
TTL_S = 12 * 3600  # of a signature, and of a message at the push service
_CURVE = ec.SECP256R1()


class PushSubscription(msgspec.Struct, frozen=True):
    """Subscription as a browser's PushManager returns it."""

    endpoint: str
    p256dh: str
    auth: str


class WebPushChannel:
    """Web push to browsers: encrypted by RFC 8291, signed by RFC 8292 (VAPID).

        message ─▶ AES-128-GCM, key from ECDH(browser's key, ephemeral key) ─▶ POST

    Best effort: a push that the browser's push service rejects is logged and not retried. Only
    accepted orders and critical alerts are pushed.
    """

    name = "push"
    address_hash = "push"

    def __init__(
        self,
        session: aiohttp.ClientSession,
        database: Database,
        key: Secret,
        contact: str,
        clock: Clock,
    ) -> None:
        self._session = session
        self._database = database
        self._key = read_key(key)
        self._contact = contact
        self._clock = clock

    async def send(self, messages: Sequence[Message]) -> None:
        chosen = [m for m in messages if m.type == "ORDER_ACCEPTED" or m.severity == "critical"]
        if not chosen:
            return
        body = _payload(chosen)
        rows = await self._database.fetch(
            "SELECT endpoint, p256dh, auth FROM push_subscription WHERE disabled_at IS NULL"
        )
        # Concurrently, so that a hanging push service does not delay the others.
        await asyncio.gather(*(self._send_one(PushSubscription(*row), body) for row in rows))

    async def _send_one(self, to: PushSubscription, body: bytes) -> None:
        who = f"push {address_hash(to.endpoint)}"
        headers = {
            "Content-Encoding": "aes128gcm",
            "Content-Type": "application/octet-stream",
            "TTL": str(TTL_S),
            "Urgency": "high",
            "Authorization": self._authorization(to.endpoint),
        }
        try:
            await post(self._session, to.endpoint, encrypt(body, to), headers, who)
        except ChannelGoneError:
            await self._database.execute(
                "UPDATE push_subscription SET disabled_at = clock_timestamp()"
                " WHERE endpoint_hash = $1",
                address_hash(to.endpoint),
            )
            log.warning("push subscription gone; disabled", address=address_hash(to.endpoint))
        except (RetryLaterError, MessageDeclinedError) as error:
            log.warning("push failed; not retried", error=str(error))

    def _authorization(self, endpoint: str) -> str:
        parts = urlsplit(endpoint)
        claims = {
            "aud": f"{parts.scheme}://{parts.netloc}",
            "exp": int(self._clock.now().timestamp()) + TTL_S,
            "sub": self._contact,
        }
        return f"vapid t={sign(self._key, claims)}, k={public_key(self._key)}"


async def subscribe(database: Database, text: bytes) -> str:
    """Store a subscription, given as JSON from a browser; return its hash."""
    try:
        given = msgspec.json.decode(text)
        to = PushSubscription(given["endpoint"], given["keys"]["p256dh"], given["keys"]["auth"])
        _point(_decode(to.p256dh))
        if urlsplit(to.endpoint).scheme != "https" or len(_decode(to.auth)) != 16:
            raise ValueError
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        raise RefusedError(
            "invalid push subscription; expected JSON with endpoint (https) and keys.p256dh, "
            "keys.auth, as PushSubscription.toJSON() returns it"
        ) from None
    name = address_hash(to.endpoint)
    await database.execute(
        "INSERT INTO push_subscription (endpoint_hash, endpoint, p256dh, auth)"
        " VALUES ($1, $2, $3, $4) ON CONFLICT (endpoint_hash) DO UPDATE"
        " SET p256dh = $3, auth = $4, disabled_at = NULL",
        name,
        to.endpoint,
        to.p256dh,
        to.auth,
    )
    return name


async def unsubscribe(database: Database, endpoint: str) -> bool:
    """Disable a browser's subscription; return False if it has none."""
    ended = await database.execute(
        "UPDATE push_subscription SET disabled_at = clock_timestamp()"
        " WHERE endpoint_hash = $1 AND disabled_at IS NULL",
        address_hash(endpoint),
    )
    return ended == "UPDATE 1"


def encrypt(
    body: bytes,
    to: PushSubscription,
    salt: bytes | None = None,
    private: ec.EllipticCurvePrivateKey | None = None,
) -> bytes:
    """Encrypt one aes128gcm record (RFC 8188) by RFC 8291; salt and key default to new ones."""
    salt = salt or os.urandom(16)
    private = private or ec.generate_private_key(_CURVE)
    receiver, sender = _decode(to.p256dh), _raw(private)
    shared = private.exchange(ec.ECDH(), _point(receiver))
    secret = _derive(shared, _decode(to.auth), b"WebPush: info\0" + receiver + sender, 32)
    key = _derive(secret, salt, b"Content-Encoding: aes128gcm\0", 16)
    nonce = _derive(secret, salt, b"Content-Encoding: nonce\0", 12)
    header = salt + RECORD_SIZE.to_bytes(4, "big") + bytes([len(sender)]) + sender
    return header + AESGCM(key).encrypt(nonce, body + b"\x02", None)


def sign(key: ec.EllipticCurvePrivateKey, claims: dict[str, object]) -> str:
    """Return a JSON web token signed with ES256."""
    head = _encode(msgspec.json.encode({"typ": "JWT", "alg": "ES256"}))
    text = f"{head}.{_encode(msgspec.json.encode(claims))}"
    r, s = utils.decode_dss_signature(key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{text}.{_encode(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def new_key() -> Secret:
    number = ec.generate_private_key(_CURVE).private_numbers().private_value
    return Secret(_encode(number.to_bytes(32, "big")))


def read_key(key: Secret) -> ec.EllipticCurvePrivateKey:
    try:
        return ec.derive_private_key(int.from_bytes(_decode(key.reveal()), "big"), _CURVE)
    except ValueError:
        raise RefusedError(
            "notify.push.key is not a VAPID key; create one with qts ops notify key"
        ) from None


def public_key(key: ec.EllipticCurvePrivateKey) -> str:
    """Return the public key in the format of `applicationServerKey`."""
    return _encode(_raw(key))


def _payload(messages: Sequence[Message]) -> bytes:
    first = messages[0]
    if len(messages) > 1:
        text = as_text(messages, MAX_BODY)
        title, _, body = text.partition("\n")
        first = msgspec.structs.replace(first, title=title, body=body, deep_link="/orders")
    return msgspec.json.encode(first)


def _derive(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(secret)


def _raw(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )


def _point(raw: bytes) -> ec.EllipticCurvePublicKey:
    return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, raw)


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as error:
        raise ValueError(str(error)) from None
