"""Requests made from the OpenAPI document, valid and nearly valid, and the judge of the answers."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import UUID

import aiohttp
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

WORKERS = 6
ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**63,
    1.5,
    1e308,
    "",
    " ",
    "\0",
    "ö",
    "'",
    "%",
    "x" * 3000,
    [],
    {},
)
ODD_TEXTS = ("", "\0", "'; DROP TABLE fill; --", "../../etc/passwd", "%s", "종목", "٣", "-1", "1e9")
ODD_BODIES = (b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"reason": "\\ud800"}', b"[" * 20_000)


class FuzzRequest(NamedTuple):
    method: str
    path: str
    operation: dict[str, Any]
    params: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes | None


class RequestMaker:
    """Random requests; `symbols` are those that exist."""

    def __init__(self, document: dict[str, Any], seed: int, symbols: tuple[str, ...]) -> None:
        self._schemas = document["components"]["schemas"]
        self._random = random.Random(seed)  # noqa: S311
        self._symbols = symbols
        self._keys = ["first"]
        self._operations = [
            (method, path, operation)
            for path, item in document["paths"].items()
            for method, operation in item.items()
        ]

    def request(self) -> FuzzRequest:
        method, path, operation = self._random.choice(self._operations)
        params, headers = [], {}
        for each in operation.get("parameters", ()):
            value = self._text(each["schema"], each["name"])
            if each["in"] == "path":
                path = path.replace(f"{{{each['name']}}}", quote(value, safe="") or "-")
            elif each["in"] == "query" and self._is(0.6):
                params.append((each["name"], value))
        if self._is(0.05):
            params.append(("unknown", "1"))
        body = None
        if "requestBody" in operation:
            headers = self._headers()
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            body = json.dumps(self._broken(self._value(schema, ""))).encode()
            if self._is(0.05):
                body = self._random.choice(ODD_BODIES)
        return FuzzRequest(method, path, operation, params, headers, body)

    def authorization(self, token: str) -> str | None:
        """Return a header that must not open anything."""
        wrong = (None, "", "Bearer", "Bearer ", f"Bearer {token}x", f"Bearer {token[:-1]}")
        return self._random.choice(
            (*wrong, token, f"Basic {token}", "Bearer \u00e9", "Bearer null")
        )

    def is_authorised(self) -> bool:
        return self._is(0.8)

    def _headers(self) -> dict[str, str]:
        if self._is(0.8):
            self._keys.append(f"{self._random.getrandbits(64):x}")
        headers = {"Idempotency-Key": self._random.choice(self._keys[-3:])}
        if self._is(0.05):
            headers = {"Idempotency-Key": self._random.choice(("", " ", "x" * 201, "a b"))}
        kind = "application/json" if self._is(0.97) else "text/plain"
        return {**headers, "Content-Type": kind}

    def _is(self, share: float) -> bool:
        return self._random.random() < share

    def _text(self, schema: dict[str, Any], name: str) -> str:
        if self._is(0.2):
            return self._random.choice(ODD_TEXTS)
        value = self._value(schema, name)
        return value if isinstance(value, str) else json.dumps(value)

    def _broken(self, value: dict[str, Any]) -> Any:
        if not self._is(0.25):
            return value
        odd = self._random.choice(ODD_VALUES)
        kind = self._random.randrange(3)
        if kind == 0:
            return odd
        if kind == 1 or not value:
            return {**value, "unknown": odd}
        return {**value, self._random.choice(list(value)): odd}

    def _value(self, schema: dict[str, Any], name: str) -> Any:
        """Return a value of a schema."""
        draw = self._random
        if "$ref" in schema:
            return self._value(self._schemas[schema["$ref"].rpartition("/")[2]], name)
        if "anyOf" in schema:
            return self._value(draw.choice(schema["anyOf"]), name)
        if "enum" in schema:
            return draw.choice(schema["enum"])
        match schema.get("type"):
            case "object":
                fields = schema.get("properties", {"length": {"type": "integer"}})
                needed = schema.get("required", ())
                chosen = [each for each in fields if each in needed or self._is(0.5)]
                return {each: self._value(fields[each], each) for each in chosen}
            case "array":
                return [self._value(schema["items"], "") for _ in range(draw.randrange(1, 4))]
            case "integer":
                low, high = schema.get("minimum", -5), schema.get("maximum", 2**31)
                return draw.choice((low, high, draw.randint(low, min(high, low + 50))))
            case "boolean":
                return self._is(0.5)
            case "string":
                return self._string(schema, name)
        return None

    def _string(self, schema: dict[str, Any], name: str) -> str:
        draw = self._random
        if schema.get("format") == "uuid":
            return str(UUID(int=draw.getrandbits(128)))
        if schema.get("format") == "decimal":
            return draw.choice(("1", "2", "0", "-1", "0.5", "70000", "NaN", "Infinity", "1e400"))
        if "symbol" in name:
            return draw.choice((*self._symbols, "NONE"))
        if name == "strategy":
            return draw.choice(("idler", "nobody"))
        length = draw.randint(schema.get("minLength", 0), min(schema.get("maxLength", 8), 8))
        return "".join(draw.choice("abcXYZ01-_") for _ in range(length))


class Judge:
    """Checks that answers are those of the document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._components = document["components"]
        self.seen: Counter[int] = Counter()

    def check(self, request: FuzzRequest, status: int, kind: str, body: bytes) -> None:
        self.seen[status] += 1
        told = f"{request}: {status} {kind} {body[:500]!r}"
        assert status < 500, told
        expected = request.operation["responses"].get(str(status))
        answer = (expected or request.operation["responses"]["default"])["content"]
        assert kind in answer, told
        if (schema := answer[kind].get("schema")) is not None:
            value = json.loads(body)
            whole = {**schema, "components": self._components}
            errors = [error.message for error in Draft202012Validator(whole).iter_errors(value)]
            assert not errors, f"{told}: {errors}"
            assert status == 200 or value["status"] == status, told


async def fuzz(
    address: str, token: str, made: tuple[RequestMaker, Judge], seconds: float
) -> Counter[int]:
    """Send requests for some seconds; return how many had which status."""
    maker, judge = made
    end = asyncio.get_running_loop().time() + seconds

    async def work(session: aiohttp.ClientSession) -> None:
        while asyncio.get_running_loop().time() < end:
            request = maker.request()
            allowed = maker.is_authorised()
            given = f"Bearer {token}" if allowed else maker.authorization(token)
            headers = request.headers | ({} if given is None else {"Authorization": given})
            async with session.request(
                request.method,
                f"{address}{request.path}",
                params=request.params,
                headers=headers,
                data=request.body,
            ) as reply:
                body = await reply.read()
            assert allowed or reply.status == 401, f"{given!r} got {reply.status} of {request}"
            judge.check(request, reply.status, reply.content_type, body)

    timeout = aiohttp.ClientTimeout(total=90)
    async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(work(session))
    return judge.seen
