"""The dashboard over TLS."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from qts.dashboard import DashboardConfig, Role
from qts.database import Database
from qts.domain import RefusedError, Secret
from tests.dashboard.certificates import Pair, make_pair
from tests.dashboard.conftest import Site, opened
from tests.dashboard.test_pages import visit


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return make_pair(tmp_path)


@pytest.fixture
async def tls_site(
    database: Database, valkey_url: Secret, tmp_path: Path, pair: Pair
) -> AsyncIterator[Site]:
    config = DashboardConfig(port=0, certificate=pair.certificate, key=pair.key)
    async with opened(database, valkey_url, tmp_path, config, "qts-tls:") as site:
        yield site


async def test_pages_and_socket_are_served_to_a_trusting_client(tls_site: Site, pair: Pair) -> None:
    assert tls_site.address.startswith("https://127.0.0.1:")
    tls_site.run()
    async with tls_site.connect(Role.ADMIN, pair.trusted()) as operator:
        assert operator.csrf
        async with operator.client.get("/api/me") as reply:
            assert reply.headers["Strict-Transport-Security"] == "max-age=31536000"
        async with operator.socket() as socket:
            await socket.send_str("next")
            assert "history" in await socket.receive_json(timeout=30)
        token = tls_site.tokens.token(Role.READ).reveal()
        headers = {"Origin": tls_site.address}
        async with operator.client.post("/login", json={"token": token}, headers=headers) as reply:
            assert "Secure" in reply.headers["Set-Cookie"]


async def test_the_same_address_without_tls_is_another_origin(tls_site: Site, pair: Pair) -> None:
    async with tls_site.connect(Role.ADMIN, pair.trusted()) as operator:
        plain = tls_site.address.replace("https", "http")
        headers = {"X-QTS-CSRF": operator.csrf}
        assert await operator.status("/api/action", "POST", Origin=plain, **headers) == 403
        assert (
            await operator.status("/api/action", "POST", Origin=tls_site.address, **headers) == 422
        )


async def test_a_client_that_does_not_trust_it_fails(tls_site: Site, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = make_pair(tmp_path / "other").trusted()
    for trust in (other, None):  # another certificate; the system's certificates
        async with tls_site.connect(None, trust) as anonymous:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await anonymous.status("/login")


async def test_plain_http_gets_no_answer(tls_site: Site) -> None:
    port = int(tls_site.address.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /login HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    assert b"HTTP" not in answer


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
async def test_old_tls_is_refused(tls_site: Site, pair: Pair) -> None:
    old = pair.trusted()
    old.minimum_version = ssl.TLSVersion.TLSv1_1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with tls_site.connect(None, old) as anonymous:
        with pytest.raises(aiohttp.ClientConnectorError):
            await anonymous.status("/login")


async def test_a_browser_is_served(tls_site: Site, browser: Any) -> None:
    tls_site.run()
    link = tls_site.tokens.link(tls_site.address)
    async with visit(browser, link, ignore_https_errors=True) as tab:
        await tab.wait_text("#top", "PAPER")  # over the WebSocket, wss
        assert await tab.page.evaluate("isSecureContext")


async def test_an_invalid_certificate_is_refused(
    database: Database, valkey_url: Secret, tmp_path: Path, pair: Pair
) -> None:
    pair.certificate.write_text("no certificate")
    config = DashboardConfig(port=0, certificate=pair.certificate, key=pair.key)
    with pytest.raises(
        RefusedError, match=r"dashboard\.certificate, dashboard\.key: cannot be used"
    ):
        async with opened(database, valkey_url, tmp_path, config, "qts-tls:"):
            pytest.fail("it was opened")


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({}, 2),
        ({"QTS_DASHBOARD__CERTIFICATE": "c.pem", "QTS_DASHBOARD__KEY": "k.pem"}, 0),
    ],
)
async def test_config_check_requires_tls_beyond_this_machine(
    tmp_path: Path, more: dict[str, str], code: int
) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("QTS_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "qts", "config", "check",
        env={**clean, "QTS_DASHBOARD__HOST": "0.0.0.0", **more},  # noqa: S104 - it is refused
        cwd=tmp_path,
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == code, errors
    assert (b"reachable by others" in errors) == (code == 2)
