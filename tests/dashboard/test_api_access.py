"""Access to the API: tokens, roles, hosts, origins and the number of requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from qts.dashboard import ApiTokens, DashboardConfig, Role
from qts.dashboard.api.openapi import ACTIONS, QUERIES
from qts.dashboard.api.server import BURST_S, RequestQuota
from qts.dashboard.api.tokens import InvalidTokenError
from qts.database import Database
from qts.domain import ManualClock, RefusedError, Secret
from qts.risk import FailSafe, KillSwitch
from tests.accounts import PAPER
from tests.dashboard.conftest import Site, opened
from tests.dashboard.programs import CLI, program
from tests.dashboard.test_actions import action_rows

ID = "0198c0de-0000-7000-8000-000000000001"
PATHS = [path.replace("{id}", ID) for path in QUERIES]
BODIES: dict[str, dict[str, Any]] = {
    "kill": {"enabled": False, "reason": "x"},
    "release": {"reason": "x"},
    "cancel": {"intent_id": ID, "reason": "x"},
    "place": {"symbol": "005930", "side": "BUY", "quantity": "1", "reason": "x"},
    "close": {"symbol": "005930", "reason": "x"},
    "flatten": {"reason": "x"},
    "acknowledge": {"reason": "x"},
    "reconcile": {"reason": "x"},
    "requeue": {"event_id": ID, "reason": "x"},
    "replay": {"number": 1, "reason": "x"},
    "params": {"strategy": "rsi_scalper", "params": {"length": 3}, "reason": "x"},
}


def test_every_action_has_a_body_here() -> None:
    assert set(BODIES) == set(ACTIONS)


NO_TOKENS = (
    "",
    "Bearer",
    "Bearer ",
    f"Bearer qts_{'0' * 16}_{'A' * 43}",
    "Bearer \udcff",
    "Basic YWRtaW46YWRtaW4=",
)


async def test_no_path_lets_in_without_a_token(site: Site) -> None:
    async with program(site) as bot:
        for value in NO_TOKENS:
            header = {"Authorization": value}
            for path in (*PATHS, "", "/", "/nowhere", "/openapi.json", "/me"):
                status, answer = await bot.request("GET", path, header)
                assert (status, "token" in answer["detail"].lower()) == (401, True), path
                assert bot.headers["WWW-Authenticate"].startswith("Bearer")
            for name, body in BODIES.items():
                assert (await bot.request("POST", f"/actions/{name}", header, json=body))[0] == 401
    assert await KillSwitch(site.database, PAPER).all() == {}


async def test_a_login_of_the_page_does_not_let_in(site: Site) -> None:
    async with site.connect() as operator:
        assert await operator.status("/api/v1/status") == 401
        own = site.tokens.token(Role.ADMIN).reveal()
        assert await operator.status("/api/v1/status", Authorization=f"Bearer {own}") == 401
    async with program(site) as bot:  # and a token of a program opens no page
        headers = {"Authorization": f"Bearer {bot.token}"}
        reply = await bot.session.get("/api/overview", headers=headers)
        assert reply.status == 401


async def test_a_wrong_secret_a_revoked_and_an_expired_token_are_refused(site: Site) -> None:
    tokens = ApiTokens(site.database)
    token, secret = await tokens.create("bot", "trade", 30, CLI)
    text = secret.reveal()
    assert (await tokens.find(text)).name == "bot"
    for wrong in (text[:-1] + ("A" if text[-1] != "A" else "B"), text[:-1], text + "A", ""):
        with pytest.raises(InvalidTokenError, match="unknown token"):
            await tokens.find(wrong)
    await site.database.execute("UPDATE api_token SET expires_at = clock_timestamp()")
    with pytest.raises(InvalidTokenError, match="the token expired at"):
        await tokens.find(text)
    await tokens.revoke("bot", CLI)
    with pytest.raises(InvalidTokenError, match="revoked"):
        await tokens.find(text)
    assert await tokens.rows() == []
    assert [each.id for each in await tokens.rows(revoked=True)] == [token.id]


async def test_only_a_digest_is_stored(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    async with program(site, name="canary") as bot:
        await bot.get("/me")
        await bot.request("GET", "/orders?limit=0")
        secret = bot.token[-20:]
        tables = "SELECT row_to_json(t)::text FROM {} t"
        for table in ("api_token", "api_request", "dashboard_action"):
            rows = await site.database.fetch(tables.format(table))
            assert not any(secret in row[0] for row in rows)
    assert secret not in "".join(capfd.readouterr())


async def test_a_token_that_cannot_be_is_refused(database: Database) -> None:
    for name, role, days, problem in (
        ("", "read", 1, "name is ''"),
        ("a b", "read", 1, "name is 'a b'"),
        ("a" * 64, "read", 1, "expected up to 63"),
        ("a", "root", 1, "role 'root' is unknown; expected one of read, trade, admin"),
        ("a", "read", 0, "days is 0; expected 1 to 3650"),
        ("a", "read", 3651, "days is 3651"),
    ):
        with pytest.raises(RefusedError, match=problem):
            await ApiTokens(database).create(name, role, days, CLI)


async def test_a_name_belongs_to_one_token_until_it_is_revoked(database: Database) -> None:
    tokens = ApiTokens(database)
    await tokens.create("bot", "read", 1, CLI)
    with pytest.raises(RefusedError, match="token bot exists; revoke it first"):
        await tokens.create("bot", "admin", 1, CLI)
    await tokens.revoke("bot", CLI)
    with pytest.raises(RefusedError, match="token 'bot' is unknown"):
        await tokens.revoke("bot", CLI)
    assert (await tokens.create("bot", "admin", 1, CLI))[0].role == "admin"
    rows = await action_rows(database)
    assert [(row["action"], row["outcome"]) for row in rows] == [
        ("token_create", "DONE"),
        ("token_create", "REFUSED"),
        ("token_revoke", "DONE"),
        ("token_create", "DONE"),
    ]


async def test_the_read_role_reads_everything_and_cannot_act(site: Site) -> None:
    async with program(site, Role.READ) as reader:
        for path in PATHS:
            status, _ = await reader.request("GET", path)
            assert status == (404 if ID in path else 200), path
        for name, body in BODIES.items():
            status, answer = await reader.act(name, **body)
            assert status == 403, name
            assert "needs the role" in answer["detail"]
    rows = [row for row in await action_rows(site.database) if row["action"] in BODIES]
    assert {row["outcome"] for row in rows} == {"REFUSED"}
    assert len(rows) == len(BODIES)
    assert await KillSwitch(site.database, PAPER).all() == {}
    assert await site.database.fetchval("SELECT count(*) FROM api_request") == 0


async def test_only_an_admin_releases_the_fail_safe(site: Site) -> None:
    await FailSafe(site.database, PAPER).trip("FS070", "positions differ")
    async with program(site, Role.TRADE) as trader, program(site, Role.ADMIN) as admin:
        assert (await trader.act("release", reason="checked"))[0] == 403
        assert (await trader.act("kill", enabled=False, reason="checked"))[0] == 200
        assert (await admin.act("release", reason="checked"))[0] == 200


async def test_another_host_and_another_origin_are_refused(site: Site) -> None:
    async with program(site) as bot:
        port = site.address.rpartition(":")[2]
        assert (await bot.request("GET", "/me", {"Host": f"evil.example:{port}"}))[0] == 421
        foreign = {"Origin": "http://evil.example", "Idempotency-Key": "1"}
        body = {"enabled": False, "reason": "x"}
        assert (await bot.request("POST", "/actions/kill", foreign, json=body))[0] == 403
        cross = {"Sec-Fetch-Site": "cross-site", "Idempotency-Key": "1"}
        assert (await bot.request("POST", "/actions/kill", cross, json=body))[0] == 403
        assert (await bot.request("GET", "/me", {"Origin": site.address}))[0] == 200


async def test_a_token_has_a_number_of_requests(
    database: Database, valkey_url: Secret, tmp_path: Path
) -> None:
    config = DashboardConfig(port=0, api_requests_per_minute=30)
    async with (
        opened(database, valkey_url, tmp_path, config, f"qts-{uuid4().hex[:8]}:") as site,
        program(site) as bot,
        program(site) as other,
    ):
        statuses = [(await bot.request("GET", "/me"))[0] for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        assert 1 <= int(bot.headers["Retry-After"]) <= 2
        assert (await other.request("GET", "/me"))[0] == 200


async def test_requests_come_back_with_time() -> None:
    clock = ManualClock()
    quota = RequestQuota(60, clock)
    assert [quota.take("a") for _ in range(int(BURST_S))] == [0.0] * int(BURST_S)
    assert quota.take("a") == pytest.approx(1.0)
    assert quota.take("b") == 0.0
    await clock.advance(1.0)
    assert quota.take("a") == 0.0
    assert quota.take("a") > 0
