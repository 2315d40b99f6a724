"""Web push from the page to the notification; only the push service is simulated.

page ─▶ subscription ─▶ table ─▶ WebPushChannel ─▶ push service (test) ─▶ worker ─▶ notification
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from qts.dashboard import DashboardConfig, Role
from qts.database import Database
from qts.domain import Secret, SystemClock
from qts.notify import Message, address_hash, new_key, public_key, read_key
from qts.notify.channels import WebPushChannel
from tests.dashboard.certificates import make_pair
from tests.dashboard.chromium import Chromium
from tests.dashboard.conftest import Site, opened
from tests.dashboard.test_actions import action_rows
from tests.dashboard.test_pages import shoot, visit
from tests.notify.conftest import a_message
from tests.notify.receiver import Receiver

KEY = new_key()

# A headless browser has no push service: this replaces its subscription.
PUSH_MANAGER = """(subscription) => {
  let current = null;
  PushManager.prototype.getSubscription = async () => current;
  PushManager.prototype.subscribe = async (options) => {
    window.serverKey = [...options.applicationServerKey];
    const unsubscribe = async () => { current = null; };
    current = { endpoint: subscription.endpoint, toJSON: () => subscription, unsubscribe };
    return current;
  };
}"""
# Records what the worker shows; a browser that cannot show it records it all the same.
RECORDER = """() => {
  const registration = ServiceWorkerRegistration.prototype, show = registration.showNotification;
  self.recorded = [];
  registration.showNotification = async function (title, { body, tag, data, ...more }) {
    if (Notification.permission === "granted")
      await show.call(this, title, { body, tag, data, ...more });
    self.recorded.push({ title, body, tag, data });
  };
}"""
SHOWN = """async () => {
  const found = await (await navigator.serviceWorker.ready).getNotifications();
  return found.map(({ title, body, tag, data }) => ({ title, body, tag, data }));
}"""


class Browser:
    """Keys of a browser's subscription, which decrypt its messages."""

    def __init__(self, endpoint: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._auth = os.urandom(16)
        self._point = self._key.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )
        self.subscription: dict[str, Any] = {
            "endpoint": endpoint,
            "expirationTime": None,
            "keys": {"p256dh": text_of(self._point), "auth": text_of(self._auth)},
        }

    def read(self, sealed: bytes) -> bytes:
        """Decrypt a message (RFC 8291, receiver)."""
        salt, length = sealed[:16], sealed[20]
        theirs, body = sealed[21 : 21 + length], sealed[21 + length :]
        point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), theirs)
        shared = self._key.exchange(ec.ECDH(), point)
        secret = derive(shared, self._auth, b"WebPush: info\0" + self._point + theirs, 32)
        key = derive(secret, salt, b"Content-Encoding: aes128gcm\0", 16)
        nonce = derive(secret, salt, b"Content-Encoding: nonce\0", 12)
        plain = AESGCM(key).decrypt(nonce, body, None)
        assert plain[-1] == 2
        return plain[:-1]


def derive(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(secret)


def text_of(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@pytest.fixture
async def pushing(database: Database, valkey_url: Secret, tmp_path: Path) -> AsyncIterator[Site]:
    """A dashboard whose settings have a key for web push."""
    config, key = DashboardConfig(port=0), public_key(read_key(KEY))
    async with opened(database, valkey_url, tmp_path, config, "qts-push:", key) as site:
        yield site


async def test_a_browser_subscribes_and_shows_a_push_message(
    pushing: Site, chromium: Chromium, browser: Any, tmp_path: Path
) -> None:
    pair, receiver = make_pair(tmp_path), Receiver()
    trusting = aiohttp.TCPConnector(ssl=pair.trusted())
    link = pushing.tokens.link(pushing.address)
    async with (
        receiver.serving(tls=pair.served()),
        aiohttp.ClientSession(connector=trusting) as session,
        visit(browser, link, permissions=["notifications"]) as tab,
    ):
        page, ours = tab.page, Browser(f"{receiver.url}/send/1")
        await tab.open("settings")
        await page.evaluate(PUSH_MANAGER, ours.subscription)
        await page.click("#subscribe")
        await tab.wait_text("#toast", "receives orders")
        server_key = bytes(await page.evaluate("window.serverKey"))
        assert text_of(server_key) == public_key(read_key(KEY))
        await tab.wait_text("main", address_hash(ours.subscription["endpoint"]))
        await page.wait_for_selector("#unsubscribe")
        await shoot(page, "push.png")

        message = a_message("Order UNKNOWN: BUY 1 005930", "critical", deep_link="/orders/7")
        push = WebPushChannel(
            session, pushing.database, KEY, "mailto:me@example.com", SystemClock()
        )
        await push.send([message])
        ((path, headers, sealed),) = receiver.requests
        assert path == "/send/1"
        assert f"k={public_key(read_key(KEY))}" in headers["Authorization"]
        plain = ours.read(sealed)
        assert msgspec.json.decode(plain, type=Message) == message

        (worker,) = page.context.service_workers
        await worker.evaluate(RECORDER)
        await deliver(page, pushing.address, plain)
        await deliver(page, pushing.address, plain)  # once more, with the same tag
        expected = {
            "title": message.title,
            "body": message.body,
            "tag": str(message.event_id),
            "data": {"link": "/orders/7"},
        }
        while len(recorded := await worker.evaluate("self.recorded")) < 2:
            await page.wait_for_timeout(20)
        assert recorded == [expected, expected]
        if chromium.shows_notifications:
            # The second takes the place of the first: for a moment there is none.
            while not (shown := await page.evaluate(SHOWN)):
                await page.wait_for_timeout(20)
            assert shown == [expected]
        await page.click("#unsubscribe")
        await tab.wait_text("#toast", "is unsubscribed")
        await push.send([message])
        assert len(receiver.requests) == 1
    done = await action_rows(pushing.database)
    assert [(row["action"], row["outcome"]) for row in done] == [
        ("subscribe", "DONE"),
        ("unsubscribe", "DONE"),
    ]
    assert "send/1" not in json.dumps(done)  # the address is a credential


async def deliver(page: Any, address: str, plain: bytes) -> None:
    """Deliver a push message to the service worker."""
    session = await page.context.new_cdp_session(page)
    known: list[str] = []
    session.on(
        "ServiceWorker.workerRegistrationUpdated",
        lambda event: known.extend(each["registrationId"] for each in event["registrations"]),
    )
    await session.send("ServiceWorker.enable")
    while not known:
        await page.wait_for_timeout(20)
    await session.send(
        "ServiceWorker.deliverPushMessage",
        {"origin": address, "registrationId": known[-1], "data": plain.decode()},
    )
    await session.detach()


async def test_an_invalid_subscription_is_refused(pushing: Site) -> None:
    good = Browser("https://push.example/1").subscription
    async with pushing.connect(Role.TRADE) as trader:
        for bad in (
            {},
            {**good, "endpoint": "http://push.example/1"},
            {**good, "keys": {}},
            {**good, "keys": {"p256dh": "AAAA", "auth": "AAAA"}},
        ):
            status, answer = await trader.act(action="subscribe", subscription=bad)
            assert (status, "invalid push subscription" in answer["error"]) == (422, True)
    assert await pushing.database.fetchval("SELECT count(*) FROM push_subscription") == 0


async def test_the_read_role_cannot_subscribe(pushing: Site) -> None:
    async with pushing.connect(Role.READ) as reader:
        status, _ = await reader.act(
            action="subscribe", subscription=Browser("https://push.example/1").subscription
        )
        assert status == 403


async def test_addresses_of_browsers_are_not_disclosed(pushing: Site) -> None:
    ours = Browser("https://push.example/secret-name").subscription
    async with pushing.connect(Role.TRADE) as trader:
        status, _ = await trader.act(action="subscribe", subscription=ours)
        assert status == 200
        answer = json.dumps([await trader.get(f"/api/{name}") for name in ("browsers", "overview")])
    assert address_hash(ours["endpoint"]) in answer
    for secret in (ours["endpoint"], ours["keys"]["auth"]):
        assert secret not in answer


async def test_without_a_key_the_page_shows_how_to_create_one(site: Site, browser: Any) -> None:
    async with visit(browser, site.tokens.link(site.address)) as tab:
        assert "qts ops notify key" in await tab.open("settings")
        assert await tab.page.locator("#subscribe").count() == 0
