"""The API of a whole run against requests from its OpenAPI document: no 5xx, no way in."""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path

import pytest

from qts.dashboard import openapi_document
from tests.acceptance.runs import running
from tests.acceptance.test_manual_orders import SETTINGS, STOCKS, Line
from tests.dashboard.api_fuzz import Judge, RequestMaker, fuzz

SECONDS = 300


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path.resolve() / "home"


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_random_requests_get_documented_answers_and_no_entry(home: Path) -> None:
    enabled = {
        "QTS_DASHBOARD__ENABLED": "true",
        "QTS_DASHBOARD__PORT": "0",
        "QTS_DASHBOARD__API_REQUESTS_PER_MINUTE": "100000",
    }
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    document = json.loads(json.dumps(openapi_document()))
    with running(home, **SETTINGS, **enabled) as run:
        await asyncio.to_thread(run.until, "Ready")
        create = ("dashboard", "token", "create", "--name", "fuzz", "--role", "admin", "--json")
        code, printed = await asyncio.to_thread(Line(home), *create)
        assert code == 0, printed
        address = (home / "dashboard.address").read_text().strip()
        made = RequestMaker(document, seed, STOCKS), Judge(document)
        seen = await fuzz(address, json.loads(printed)["token"], made, SECONDS)
        print(dict(seen))
        assert seen[200] > SECONDS
        assert seen[401] > SECONDS
        assert run.process.poll() is None
