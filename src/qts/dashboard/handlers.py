"""Reading and acting, as the pages and the API do it: decoded, in the view of a run, cached."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from qts import telemetry
from qts.dashboard.action_service import ActionResult, ActionService
from qts.dashboard.actions import Action, AnyAction
from qts.dashboard.hub import DashboardSources, Hub
from qts.dashboard.pages import TradesParams
from qts.dashboard.queries import DashboardQueries
from qts.dashboard.runs import accounts_of_run, status_prefix
from qts.dashboard.session import Operator
from qts.domain import Clock, RefusedError

log = telemetry.logger("dashboard")

TTL_S = 0.5  # of a result
MAX_ENTRIES = 64  # results
IDLE_S = 30.0  # until a view ends
CHECK_INTERVAL_S = 5.0
MAX_VIEWS = 16
READ_TIMEOUT_S = 3.0

T = TypeVar("T")
_BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "above {}",
    "exclusiveMaximum": "below {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {}",
    "maxItems": "at most {}",
    "minProperties": "at least {}",
    "maxProperties": "at most {}",
}


class DashboardHandlers:
    """What requests of pages and programs do."""

    def __init__(self, views: RunViews, clock: Clock) -> None:
        self._views = views
        self._cache = QueryCache(clock)

    async def read(
        self,
        query: Callable[[DashboardQueries, Any], Awaitable[Any]],
        kind: type[Any],
        given: Mapping[str, str],
    ) -> bytes:
        """Return the document of a query as JSON; concurrent requests share one result."""
        params = decode_params(given, kind)
        view = await self._views.get(getattr(params, "account", ""))

        async def run() -> bytes:
            return msgspec.json.encode(await query(view.queries, params))

        return await self._cache.get(f"{query.__name__} {params!r}", run)

    async def trades_csv(self, given: Mapping[str, str]) -> str:
        """Return the round trips as CSV."""
        params = decode_params(given, TradesParams)
        return await (await self._views.get(params.account)).queries.trades_csv(params)

    async def act(self, action: Action, operator: Operator, account: str = "") -> ActionResult:
        """Perform an action on a run, its own without an account; what is read next includes it."""
        view = await self._views.get(account)
        try:
            return await view.actions.perform(action, operator)
        finally:
            view.hub.refresh()
            self._cache.clear()


class RunView:
    """One run: its state, its queries and its actions."""

    def __init__(self, sources: DashboardSources, clock: Clock, acts_on: str = "") -> None:
        self._clock = clock
        self.accounts = sources.accounts
        self.hub = Hub(sources.store, sources.cache.prefix, sources.database, self.accounts, clock)
        self.queries = DashboardQueries(sources, self.hub, clock)
        self.actions = ActionService(
            sources.database, self.accounts, sources.streams, self.hub.live, acts_on
        )
        self.used_ns = clock.monotonic_ns()
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to read, and wait for the first state."""
        self._running = asyncio.create_task(self.hub.run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_TIMEOUT_S):
                await self.hub.wait_read()

    @property
    def has_failed(self) -> bool:
        return self._running is not None and self._running.done()

    @property
    def idle_s(self) -> float:
        return (self._clock.monotonic_ns() - self.used_ns) / 1e9

    async def stop(self) -> None:
        if self._running is None:
            return
        self._running.cancel()
        await asyncio.wait({self._running})
        if not self._running.cancelled() and (error := self._running.exception()) is not None:
            log.error("status reader of another run failed", exc_info=error)


class RunViews:
    """The views in use; `get` opens one for a run that is asked for.

    The view of another run reads its live status where both runs share a cache; where they do not,
    what the database has of it. It ends when no page or program has used it for a while.
    """

    def __init__(self, sources: DashboardSources, clock: Clock) -> None:
        self._sources = sources
        self._clock = clock
        self._others: dict[str, RunView] = {}
        self._opening = asyncio.Lock()
        self.own = RunView(sources, clock)

    async def get(self, account: str) -> RunView:
        """Return the view of an account's run, the own one without an account.

        Raise RefusedError for an account that the database does not know.
        """
        if not account or account in map(str, self._sources.accounts):
            return self.own
        async with self._opening:
            found = self._others.get(account)
            if found is None or found.has_failed:
                found = await self._open(account)
            found.used_ns = self._clock.monotonic_ns()
            return found

    async def _open(self, account: str) -> RunView:
        keys = await accounts_of_run(self._sources.database, account)
        while len(self._others) >= MAX_VIEWS:
            await self._close(min(self._others, key=lambda name: self._others[name].used_ns))
        await self._close(account)
        own, cache = self._sources.account, self._sources.cache
        sources = replace(
            self._sources,
            account=keys[0],
            others=tuple(keys[1:]),
            cache=replace(cache, prefix=status_prefix(cache.prefix, own, keys[0])),
        )
        view = RunView(sources, self._clock, acts_on=", ".join(map(str, keys)))
        self._others[account] = view
        await view.start()
        return view

    async def _close(self, account: str) -> None:
        if (view := self._others.pop(account, None)) is not None:
            await view.stop()

    @contextlib.asynccontextmanager
    async def closing(self) -> AsyncIterator[None]:
        """Close views that nobody uses, and all of them at the end."""
        task = asyncio.create_task(self._close_idle())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            for account in list(self._others):
                await self._close(account)

    async def _close_idle(self) -> None:
        while True:
            await self._clock.sleep(CHECK_INTERVAL_S)
            for account, view in list(self._others.items()):
                if view.idle_s > IDLE_S or view.has_failed:
                    await self._close(account)


class QueryCache:
    """Short-lived results by request; concurrent requests share one query in flight."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, tuple[int, asyncio.Task[bytes]]] = {}

    async def get(self, key: str, query: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        now = self._clock.monotonic_ns()
        entry = self._entries.get(key)
        if entry is None or now - entry[0] > TTL_S * 1e9:
            self._entries.pop(key, None)  # so that the oldest is first
            while len(self._entries) >= MAX_ENTRIES:
                del self._entries[next(iter(self._entries))]
            entry = (now, asyncio.create_task(query()))
            self._entries[key] = entry
        try:
            return await asyncio.shield(entry[1])
        except Exception:
            self._entries.pop(key, None)  # the next request runs the query again
            raise

    def clear(self) -> None:
        """Drop all results, after an action changed something."""
        self._entries.clear()


def decode_params(query: Mapping[str, str], kind: type[T]) -> T:
    """Return the parameters of a query string; raise RefusedError naming the one that is wrong."""
    names = [name for name, _ in query.items()]  # a MultiDict repeats names only here
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise RefusedError(f"{repeated} is given more than once")
    for name, value in query.items():
        if "\0" in value:
            raise RefusedError(f"{name} contains a zero byte")
    try:
        return msgspec.convert(dict(query), kind, strict=False)
    except msgspec.ValidationError as error:
        raise RefusedError(explain(error, kind)) from None


def decode_body(body: bytes, kind: Any) -> Any:
    """Return the value of a JSON body; raise RefusedError naming the field that is wrong."""
    if b"\\u0000" in body:
        raise RefusedError("the body contains a zero byte (\\u0000)")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise RefusedError(explain(error, kind)) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise RefusedError(f"the body is not JSON: {error}") from None


def decode_action(body: bytes) -> Action:
    action: Action = decode_body(body, AnyAction)
    return action


def explain(error: msgspec.ValidationError, kind: Any) -> str:
    """Return the sentence of an error: the field, what is wrong and what is allowed."""
    text = str(error).replace("`", "")
    fields = _fields(kind)
    if (unknown := re.match(r"Object contains unknown field (.*)", text)) and " - at" not in text:
        return f"unknown field {unknown[1]}; expected one of {', '.join(fields) or 'none'}"
    if missing := re.match(r"Object missing required field (\w+)$", text):
        name = missing[1]
        return f"{name} is missing; expected {_allowed(fields.get(name, {}))}"
    problem, _, path = text.partition(" - at ")
    if name := re.match(r"\$\.(\w+)", path):
        allowed = _allowed(fields.get(name[1], {}))
        return f"{path.removeprefix('$.')}: {problem[:1].lower()}{problem[1:]}; allowed: {allowed}"
    return text[:1].lower() + text[1:]


@cache
def _fields(kind: Any) -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each field, with references resolved."""
    try:
        (found,), parts = msgspec.json.schema_components([kind], ref_template="{name}")
    except TypeError:
        return {}
    fields = parts.get(found.get("$ref", ""), {}).get("properties", {})
    return {name: _resolved(field, parts) for name, field in fields.items()}


def _resolved(field: dict[str, Any], parts: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    found = {**parts.get(field.get("$ref", ""), {}), **field}
    if "anyOf" in found:
        found["anyOf"] = [_resolved(each, parts) for each in found["anyOf"]]
    return found


def _allowed(field: Mapping[str, Any]) -> str:
    """Return what a field may be, from its JSON schema."""
    if "enum" in field:
        return "one of " + ", ".join(map(str, field["enum"]))
    if "anyOf" in field:
        return " or ".join(_allowed(each) for each in field["anyOf"])
    words = [field.get("format", "") or field.get("type", "any value")]
    words += [text.format(field[name]) for name, text in _BOUNDS.items() if name in field]
    return ", ".join(words)
