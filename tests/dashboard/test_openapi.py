"""The OpenAPI document: valid, complete, and what the server answers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from openapi_spec_validator.validation.exceptions import OpenAPIValidationError

from qts.dashboard import openapi_document
from qts.dashboard.api.openapi import ACTIONS, QUERIES
from tests.dashboard.conftest import Site
from tests.dashboard.programs import program


def document() -> Any:
    return json.loads(json.dumps(openapi_document()))


def test_it_is_valid() -> None:
    OpenAPIV31SpecValidator(document()).validate()


def test_the_validator_finds_what_is_wrong() -> None:
    wrong = document()
    del wrong["paths"]["/api/v1/status"]["get"]["responses"]["200"]["description"]
    with pytest.raises(OpenAPIValidationError):
        OpenAPIV31SpecValidator(wrong).validate()


async def test_it_has_every_path_of_the_server_and_no_other(site: Site) -> None:
    served = {
        (route.method.lower(), str(route.resource.canonical))
        for route in site.dashboard.app.router.routes()
        if route.resource is not None
        and str(route.resource.canonical).startswith("/api/v1/")
        and route.method != "HEAD"
    }
    paths = document()["paths"]
    assert served == {(method, path) for path, item in paths.items() for method in item}
    async with program(site) as bot:
        assert await bot.get("/openapi.json") == document()


def test_an_action_asks_for_a_reason_and_for_no_id() -> None:
    paths = document()["paths"]
    for name in ACTIONS:
        operation = paths[f"/api/v1/actions/{name}"]["post"]
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        assert "reason" in body["required"]
        assert not {"id", "action"} & set(body["properties"])
        assert body["properties"]["reason"]["minLength"] == 1
        (header,) = operation["parameters"]
        assert (header["name"], header["required"]) == ("Idempotency-Key", True)
    closing = paths["/api/v1/actions/close"]["post"]["requestBody"]["content"]["application/json"]
    assert closing["schema"]["properties"]["symbol"]["type"] == "string"


def test_operations_have_a_name_of_their_own_and_a_summary() -> None:
    operations = [each for item in document()["paths"].values() for each in item.values()]
    names = [each["operationId"] for each in operations]
    assert len(names) == len(set(names)) == len(QUERIES) + len(ACTIONS) + 2
    assert all(each["summary"].endswith(".") for each in operations)


def test_the_command_prints_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "qts", "dashboard", "openapi"], capture_output=True, check=True
    )
    assert json.loads(done.stdout) == document()
