"""Web push: the example of RFC 8291, and expired subscriptions."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime

import aiohttp
import msgspec
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

from qts.database import Database
from qts.domain import ManualClock, RefusedError, Secret, SystemClock
from qts.notify import NotifyConfig, new_key, public_key, read_key, subscribe
from qts.notify.channels import PushSubscription, WebPushChannel, encrypt
from qts.notify.message_store import MessageStore
from qts.notify.service import Sender
from tests.notify.conftest import a_message
from tests.notify.receiver import Receiver

# Appendix A of RFC 8291.
AUTH = "BTBZMqHH6r4Tts7J_aSIgg"
P256DH = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
PRIVATE = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"
SALT = "DGv6ra1nlYgDCS1FRnbzlw"
SEALED = (
    "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIg"
    "Dll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBW"
    "LVWGNWQexSgSxsj_Qulcy4a-fN"
)


def raw(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_the_example_of_the_rfc_comes_out_the_same() -> None:
    sealed = encrypt(
        b"When I grow up, I want to be a watermelon",
        PushSubscription(
            "https://push.example.net/push/JzLQ3raZJfFBR0aqvOMsLrt54w4rJUsV", P256DH, AUTH
        ),
        raw(SALT),
        read_key(Secret(PRIVATE)),
    )
    assert sealed == raw(SEALED)


def test_two_messages_never_share_a_key() -> None:
    to = PushSubscription("https://push.example.net/a", P256DH, AUTH)
    assert encrypt(b"same", to) != encrypt(b"same", to)


@pytest.mark.parametrize("text", ["", "short", "!!!!"])
def test_an_invalid_key_is_refused(text: str) -> None:
    with pytest.raises(RefusedError, match=r"notify\.push\.key"):
        read_key(Secret(text))


async def store(database: Database, endpoint: str) -> str:
    text = {"endpoint": endpoint, "keys": {"p256dh": P256DH, "auth": AUTH}}
    return await subscribe(database, msgspec.json.encode(text))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"endpoint": "https://a"}',
        b'{"endpoint": "http://a", "keys": {"p256dh": "%s", "auth": "%s"}}'
        % (P256DH.encode(), AUTH.encode()),
        b'{"endpoint": "https://a", "keys": {"p256dh": "AAAA", "auth": "%s"}}' % AUTH.encode(),
    ],
)
async def test_an_invalid_subscription_is_refused(database: Database, text: bytes) -> None:
    with pytest.raises(RefusedError, match="invalid push subscription"):
        await subscribe(database, text)


async def test_a_browser_gets_a_signed_message_and_one_that_is_gone_is_dropped(
    database: Database, receiver: Receiver
) -> None:
    for path in ("one", "two"):
        await store(database, f"https://push.example/{path}")
    await database.execute(
        "UPDATE push_subscription SET endpoint = replace(endpoint, 'https://push.example', $1)",
        receiver.url,
    )
    await database.execute(
        "UPDATE push_subscription SET endpoint_hash = left(encode(sha256(endpoint::bytea), 'hex'),"
        " 12)"
    )
    key, clock = new_key(), ManualClock(datetime(2026, 1, 5, tzinfo=UTC))
    receiver.answers.extend([410, 201])
    async with aiohttp.ClientSession() as session:
        push = WebPushChannel(session, database, key, "mailto:me@example.com", clock)
        await push.send([a_message("nothing for a phone", type="KILL_SWITCH")])
        assert receiver.requests == []
        await push.send([a_message()])
        await push.send([a_message(), a_message("bad", "critical", type="ALERT")])
    assert len(receiver.requests) == 3  # two browsers, then the one that is left
    _, headers, body = receiver.requests[0]
    assert headers["Content-Encoding"] == "aes128gcm"
    assert b"Order" not in body
    token = headers["Authorization"].removeprefix("vapid t=").split(",")[0]
    check_signature(key, token, receiver.url)


def check_signature(key: Secret, token: str, audience: str) -> None:
    text, _, signature = token.rpartition(".")
    r, s = (int.from_bytes(part, "big") for part in (raw(signature)[:32], raw(signature)[32:]))
    public = ec.EllipticCurvePublicKey.from_encoded_point(
        ec.SECP256R1(), raw(public_key(read_key(key)))
    )
    public.verify(utils.encode_dss_signature(r, s), text.encode(), ec.ECDSA(hashes.SHA256()))
    claims = msgspec.json.decode(raw(text.split(".")[1]))
    assert claims["aud"] == audience
    assert claims["sub"] == "mailto:me@example.com"
    assert claims["exp"] == int(datetime(2026, 1, 5, 12, tzinfo=UTC).timestamp())


async def test_a_hanging_push_service_delays_no_other_browser_and_repeats_nothing(
    database: Database,
) -> None:
    paths: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        paths.append(request.path)
        if request.path == "/hangs":
            await asyncio.sleep(60)
        return web.Response(status=201)

    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    for name in ("first", "hangs", "last"):
        await database.execute(
            "INSERT INTO push_subscription (endpoint_hash, endpoint, p256dh, auth)"
            " VALUES ($1, $2, $3, $4)",
            name,
            f"http://127.0.0.1:{runner.addresses[0][1]}/{name}",
            P256DH,
            AUTH,
        )
    config = NotifyConfig(timeout_s=1.0, batch_window_s=0)
    timeout = aiohttp.ClientTimeout(total=config.timeout_s)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        push = WebPushChannel(session, database, new_key(), "mailto:me@example.com", SystemClock())
        messages = MessageStore(database)
        await messages.open("push", "push")
        await messages.enqueue(a_message(), ["push"])
        sender = Sender(push, messages, config, SystemClock())
        assert await sender.send_due() == 1
        assert await sender.send_due() == 0
    await runner.cleanup()
    assert sorted(paths) == ["/first", "/hangs", "/last"]
