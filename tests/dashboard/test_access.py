"""Access to the dashboard: sessions, origins, hosts and tokens."""

from __future__ import annotations

import asyncio
import stat
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.cache import CacheConfig
from qts.dashboard import ACKNOWLEDGEMENT, DashboardConfig, Role, Tokens
from qts.dashboard.guard import PUBLIC_PATHS
from qts.dashboard.session import MAX_FAILURES, LoginSessions, LoginThrottle
from qts.database import Database
from qts.domain import ManualClock, RefusedError, Secret
from tests.dashboard.conftest import Site, opened


def routes(site: Site) -> list[tuple[str, str]]:
    return sorted(
        {
            (route.method, str(route.resource.canonical))
            for route in site.dashboard.app.router.routes()
            if route.resource is not None and route.method in ("GET", "POST")
        }
    )


async def test_without_a_session_every_route_refuses(site: Site) -> None:
    found = routes(site)
    assert len(found) > 15
    async with site.connect(None) as anonymous:
        for method, path in found:
            if path in PUBLIC_PATHS:
                continue
            status = await anonymous.status(path, method, Origin=site.address)
            assert status == (303 if path == "/" else 401), f"{method} {path}"


async def test_the_scripts_are_sent_compressed(site: Site) -> None:
    async with site.connect() as operator:
        async with operator.client.get("/page/app.js") as reply:
            assert reply.headers["Content-Encoding"] in ("deflate", "gzip")
            assert "WebSocket" in await reply.text()
        async with operator.client.get("/page/app.js", headers={"Accept-Encoding": ""}) as reply:
            assert "Content-Encoding" not in reply.headers


async def test_without_a_session_the_socket_refuses(site: Site) -> None:
    async with site.connect(None) as anonymous:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await anonymous.socket()
        assert refused.value.status == 401


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
async def test_the_socket_of_another_origin_is_refused(site: Site, origin: str) -> None:
    async with site.connect() as operator:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await operator.socket(Origin=origin)
        assert refused.value.status == 403


async def test_a_socket_without_an_origin_is_refused(site: Site) -> None:
    async with site.connect() as operator:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await operator.client.ws_connect("/api/live")
        assert refused.value.status == 403


async def test_another_host_name_is_refused_everywhere(site: Site) -> None:
    port = site.address.rpartition(":")[2]
    async with site.connect() as operator:
        for method, path in routes(site):
            for host in (f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""):
                status = await operator.status(path, method, Host=host, Origin=site.address)
                assert status in (400, 421), f"{method} {path} {host}"
        assert await operator.status("/api/me", Host=f"localhost:{port}") == 200


async def test_an_action_of_another_origin_is_refused(site: Site) -> None:
    async with site.connect() as operator:
        good = {"Origin": site.address, "X-QTS-CSRF": operator.csrf}
        for bad in (
            {"Origin": "http://evil.example", "X-QTS-CSRF": operator.csrf},
            {"X-QTS-CSRF": operator.csrf},  # browsers always send an origin with a POST
            {"Origin": site.address},
            {"Origin": site.address, "X-QTS-CSRF": ""},
            {"Origin": site.address, "X-QTS-CSRF": operator.csrf[:-1]},
            {**good, "Sec-Fetch-Site": "cross-site"},
        ):
            assert await operator.status("/api/action", "POST", **bad) == 403, bad
        assert (
            await operator.status("/api/action", "POST", **good) == 422
        )  # accepted, but not a valid action


async def test_what_must_be_posted_cannot_be_visited(site: Site) -> None:
    async with site.connect() as operator:
        assert await operator.status("/api/action") == 405
        assert await operator.status("/logout") == 405


async def test_one_sessions_csrf_token_does_not_serve_another(site: Site) -> None:
    async with site.connect() as operator, site.connect() as other:
        status = await operator.status(
            "/api/action", "POST", **{"Origin": site.address, "X-QTS-CSRF": other.csrf}
        )
        assert status == 403


async def test_the_cookie_is_kept_from_scripts_and_from_other_sites(site: Site) -> None:
    async with site.connect(None) as operator:
        token = site.tokens.token(Role.READ).reveal()
        async with operator.client.post(
            "/login", json={"token": token}, headers={"Origin": site.address}
        ) as reply:
            cookie = reply.headers["Set-Cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            assert token not in cookie
            assert token not in await reply.text()


async def test_every_answer_forbids_foreign_scripts_and_frames(site: Site) -> None:
    async with site.connect() as operator:
        for path in ("/", "/login", "/api/me", "/page/app.js", "/api/nowhere"):
            async with operator.client.get(path) as reply:
                policy = reply.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert reply.headers["X-Frame-Options"] == "DENY"


async def test_logins_are_limited(site: Site) -> None:
    async with site.connect(None) as guesser:
        for _ in range(MAX_FAILURES):
            assert await guesser.login("guess") == 401
        assert await guesser.login("guess") == 429
        assert await guesser.login(site.tokens.token(Role.ADMIN).reveal()) == 429
    rows = await site.database.fetch("SELECT outcome FROM dashboard_action WHERE action = 'login'")
    assert [row[0] for row in rows] == ["REFUSED"] * MAX_FAILURES


async def test_a_login_is_possible_again_after_a_minute() -> None:
    clock = ManualClock()
    throttle = LoginThrottle(clock)
    for _ in range(MAX_FAILURES):
        throttle.record_failure("1.2.3.4")
    assert not throttle.is_allowed("1.2.3.4")
    assert throttle.is_allowed("1.2.3.5")
    await clock.advance(61)
    assert throttle.is_allowed("1.2.3.4")


def test_a_guesser_with_many_addresses_fills_no_memory() -> None:
    throttle = LoginThrottle(ManualClock())
    for number in range(5000):
        throttle.record_failure(f"10.0.{number // 250}.{number % 250}")
    assert len(throttle._failed) <= 1000


async def test_logging_out_ends_the_session_and_its_socket(site: Site) -> None:
    site.run()
    async with site.connect() as operator, operator.socket() as socket:
        await socket.send_str("next")
        await socket.receive_json(timeout=30)
        headers = {"Origin": site.address, "X-QTS-CSRF": operator.csrf}
        cookie = operator.cookie
        assert await operator.status("/logout", "POST", **headers) == 200
        async with operator.client.get("/api/me", cookies=cookie) as reply:
            assert reply.status == 401
        await socket.send_str("next")
        while (message := await socket.receive(timeout=30)).type != aiohttp.WSMsgType.CLOSE:
            assert message.type == aiohttp.WSMsgType.TEXT
        assert message.data == 4401


async def test_a_session_outlives_the_server_and_not_its_tokens(
    database: Database, valkey_url: Secret, tmp_path: Path
) -> None:
    config = DashboardConfig(port=0)
    async with (
        opened(database, valkey_url, tmp_path, config, "qts-again:") as first,
        first.connect() as operator,
    ):
        cookie = operator.cookie
    async with (
        opened(database, valkey_url, tmp_path, config, "qts-again:") as second,
        aiohttp.ClientSession(second.address, cookies=cookie) as client,
    ):
        async with client.get("/api/me", cookies=cookie) as reply:
            assert reply.status == 200
        Tokens.of(tmp_path, renew=True)
        async with client.get("/api/me", cookies=cookie) as reply:
            assert reply.status == 401


@given(change=st.integers(min_value=0), to=st.characters(min_codepoint=33, max_codepoint=126))
def test_a_changed_cookie_is_invalid(change: int, to: str) -> None:
    sessions = LoginSessions(lambda: b"key", ManualClock(), 3600)
    _, cookie = sessions.begin(Role.READ)
    at = change % len(cookie)
    forged = cookie[:at] + to + cookie[at + 1 :]
    assert (sessions.find(forged) is not None) == (forged == cookie)


async def test_a_cookie_that_is_not_utf_8_is_a_bad_cookie(
    site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    host, _, port = site.address.removeprefix("http://").rpartition(":")
    for path, status in (("/api/me", 401), ("/", 303), ("/login", 200)):
        for cookie in (b"\xff\xfe", b"3.1.name.\xff", b"\xff.1.name.sign"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n".encode()
                + b"Connection: close\r\nCookie: qts_session=%b\r\n\r\n" % cookie
            )
            async with asyncio.timeout(30):
                answer = await reader.read()
            writer.close()
            assert answer.startswith(b"HTTP/1.1 %d " % status), (path, cookie, answer)
    assert "Traceback" not in capfd.readouterr().err


@given(text=st.one_of(st.text(), st.text(st.sampled_from(".1a\udcff"))))
def test_no_text_is_a_session_or_an_error(text: str) -> None:
    assert LoginSessions(lambda: b"key", ManualClock(), 3600).find(text) is None


async def test_a_session_ends_with_its_time() -> None:
    clock = ManualClock()
    sessions = LoginSessions(lambda: b"key", clock, 3600)
    _, cookie = sessions.begin(Role.ADMIN)
    await clock.advance(3599)
    assert sessions.find(cookie) is not None
    await clock.advance(2)
    assert sessions.find(cookie) is None
    clock.set_wall(clock.now() - timedelta(days=2))  # a clock set back does not revive it
    assert sessions.find(cookie) is None


def test_tokens_are_created_once_and_private(tmp_path: Path) -> None:
    first, second = Tokens.of(tmp_path), Tokens.of(tmp_path)
    assert first.is_new
    assert not second.is_new
    file = tmp_path / "dashboard.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for role in Role:
        token = first.token(role)
        assert token == second.token(role)
        assert len(token.reveal()) >= 43  # 256 bits
        assert second.role_of(token.reveal()) is role
    assert second.role_of("") is None


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    Tokens.of(tmp_path)
    (tmp_path / "dashboard.json").chmod(0o644)
    with pytest.raises(RefusedError, match="is readable by others"):
        Tokens.of(tmp_path)


def test_a_damaged_token_file_is_refused(tmp_path: Path) -> None:
    Tokens.of(tmp_path)
    (tmp_path / "dashboard.json").write_text("{}")
    with pytest.raises(RefusedError, match="damaged"):
        Tokens.of(tmp_path)


@pytest.mark.parametrize("host", ["10.0.0.0", "192.168.0.7", "::", "trader.example"])
def test_an_address_beyond_this_machine_needs_tls_or_consent(host: str) -> None:
    with pytest.raises(ValueError, match="reachable by others"):
        DashboardConfig(host=host)
    assert DashboardConfig(host=host, acknowledge=ACKNOWLEDGEMENT).host == host
    with_tls = DashboardConfig(host=host, certificate=Path("c.pem"), key=Path("k.pem"))
    assert with_tls.scheme == "https"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.3.4.5"])
def test_this_machine_needs_neither(host: str) -> None:
    assert DashboardConfig(host=host).is_local


def test_half_a_certificate_is_refused() -> None:
    with pytest.raises(ValueError, match="must both be set"):
        DashboardConfig(certificate=Path("c.pem"))


async def test_a_name_of_the_settings_is_served(
    database: Database, valkey_url: Secret, tmp_path: Path
) -> None:
    config = DashboardConfig(port=0, names=("trader.lan",))
    async with opened(database, valkey_url, tmp_path, config, CacheConfig().prefix) as site:
        port = site.address.rpartition(":")[2]
        async with site.connect() as operator:
            assert await operator.status("/api/me", Host=f"trader.lan:{port}") == 200
            assert await operator.status("/api/me", Host=f"other.lan:{port}") == 421
