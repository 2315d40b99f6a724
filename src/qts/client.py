"""Client of the REST API of a running QTS.

    with Client("http://127.0.0.1:8420", token) as qts:
        print(qts.status().verdict.en)
        qts.place("005930", "BUY", 10, price=70_000, reason="rebalance")

A lost reply is asked for again under the same Idempotency-Key, which orders nothing twice.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit
from uuid import UUID, uuid4

import msgspec

from qts.dashboard import (
    ActionResult,
    ActionRow,
    ActionsPage,
    AlertsPage,
    DeadLettersPage,
    EquityPage,
    FillRow,
    FillsPage,
    OrderPage,
    OrdersPage,
    OutboxPage,
    PositionsPage,
    RiskPage,
    RunsPage,
    StatusPage,
    StrategiesPage,
)
from qts.domain import RefusedError
from qts.orders import OrderRow

T = TypeVar("T")
PREFIX = "/api/v1"
PAGE = 500  # rows that an iterator fetches at once
_LOST = (ConnectionError, http.client.HTTPException)
_DECIMAL = Decimal | int | str


class RequestError(Exception):
    """Request that QTS refused or could not carry out; its text is one sentence."""

    def __init__(self, status: int, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.retry_after_s = retry_after_s


class Client:
    """One connection, for one thread at a time; it reconnects by itself."""

    def __init__(
        self,
        address: str,
        token: str,
        *,
        timeout_s: float = 60.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        url = urlsplit(address)
        if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/"):
            raise RefusedError(f"address is {address!r}; expected one like http://127.0.0.1:8420")
        if url.scheme == "https":
            context = tls or ssl.create_default_context()
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                url.hostname, url.port, timeout=timeout_s, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(url.hostname, url.port, timeout=timeout_s)
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    # --- reading -------------------------------------------------------------------------------

    def status(self, account: str = "") -> StatusPage:
        """Return the state of the run, with the sentence that says whether it trades.

        `account` is of another run, as `runs` lists it.
        """
        return self.get("/status", StatusPage, {"account": account} if account else None)

    def runs(self) -> RunsPage:
        """Return all runs on the database, and sums of what is known now."""
        return self.get("/runs", RunsPage)

    def positions(self, account: str = "") -> PositionsPage:
        """Return the positions of the ledger, with prices while a run reports."""
        return self.get("/positions", PositionsPage, {"account": account} if account else None)

    def orders(self, **params: Any) -> OrdersPage:
        """Return a page of orders; parameters: account, state, symbol, open, limit, cursor."""
        return self.get("/orders", OrdersPage, params)

    def iter_orders(self, **params: Any) -> Iterator[OrderRow]:
        """Yield all orders, newest first, page by page."""
        cursor: str | None = ""
        while cursor is not None:
            page = self.orders(**{"limit": PAGE, **params, "cursor": cursor})
            yield from page.orders
            cursor = page.next_cursor

    def order(self, intent_id: UUID | str) -> OrderPage:
        """Return one order from its signal to its last fill."""
        return self.get(f"/orders/{quote(str(intent_id), safe='')}", OrderPage)

    def fills(self, **params: Any) -> FillsPage:
        """Return a page of fills; parameters: account, symbol, limit, cursor."""
        return self.get("/fills", FillsPage, params)

    def iter_fills(self, **params: Any) -> Iterator[FillRow]:
        """Yield all fills, newest first, page by page."""
        cursor: str | None = ""
        while cursor is not None:
            page = self.fills(**{"limit": PAGE, **params, "cursor": cursor})
            yield from page.fills
            cursor = page.next_cursor

    def strategies(self) -> StrategiesPage:
        """Return the strategies of the run."""
        return self.get("/strategies", StrategiesPage)

    def equity(self, span: str = "1d") -> EquityPage:
        """Return the equity curve of a span: 1d, 1w, 1m or all."""
        return self.get("/equity", EquityPage, {"span": span})

    def alerts(self, *, acknowledged: bool = False, limit: int = 100) -> AlertsPage:
        """Return the alerts that are open, or also the acknowledged ones."""
        return self.get("/alerts", AlertsPage, {"acknowledged": acknowledged, "limit": limit})

    def risk(self) -> RiskPage:
        """Return the fail-safe, the switches, the limits and the refusals."""
        return self.get("/risk", RiskPage)

    def outbox(self) -> OutboxPage:
        """Return the depths of the outbox and its dead events."""
        return self.get("/outbox", OutboxPage)

    def dead_letters(self, **params: Any) -> DeadLettersPage:
        """Return a page of dead letters; parameters: limit, cursor."""
        return self.get("/dead-letters", DeadLettersPage, params)

    def actions(self, **params: Any) -> ActionsPage:
        """Return a page of what operators did; parameters: limit, cursor."""
        return self.get("/actions", ActionsPage, params)

    def iter_actions(self) -> Iterator[ActionRow]:
        """Yield all that operators did, newest first, page by page."""
        cursor: str | None = ""
        while cursor is not None:
            page = self.actions(limit=PAGE, cursor=cursor)
            yield from page.actions
            cursor = page.next_cursor

    # --- acting --------------------------------------------------------------------------------

    def stop_trading(self, reason: str, strategy: str | None = None) -> ActionResult:
        """Turn the kill switch on, of the account or of one strategy."""
        return self.act("kill", enabled=False, strategy=strategy, reason=reason)

    def allow_trading(self, reason: str, strategy: str | None = None) -> ActionResult:
        """Turn the kill switch off, of the account or of one strategy."""
        return self.act("kill", enabled=True, strategy=strategy, reason=reason)

    def release_fail_safe(self, reason: str) -> ActionResult:
        """Release the fail-safe, which needs the role admin."""
        return self.act("release", reason=reason)

    def place(
        self,
        symbol: str,
        side: str,
        quantity: _DECIMAL,
        *,
        reason: str,
        price: _DECIMAL | None = None,
        account: str | None = None,
        key: str | None = None,
    ) -> ActionResult:
        """Place an order, at the market without a price, and wait for its outcome."""
        return self.act(
            "place",
            key,
            symbol=symbol,
            side=side,
            quantity=str(quantity),
            price=None if price is None else str(price),
            account=account,
            reason=reason,
        )

    def close_position(self, symbol: str, reason: str, key: str | None = None) -> ActionResult:
        """Cancel the open orders of a symbol and sell what is held."""
        return self.act("close", key, symbol=symbol, reason=reason)

    def flatten(self, reason: str, key: str | None = None) -> ActionResult:
        """Cancel all open orders and sell all that is held."""
        return self.act("flatten", key, reason=reason)

    def cancel(self, intent_id: UUID | str, reason: str) -> ActionResult:
        """Cancel what is left of an order."""
        return self.act("cancel", intent_id=str(intent_id), reason=reason)

    def acknowledge(self, reason: str, ids: list[int] | None = None) -> ActionResult:
        """Acknowledge alerts, all that are open without `ids`."""
        return self.act("acknowledge", ids=ids, reason=reason)

    def set_params(self, strategy: str, params: Mapping[str, Any], reason: str) -> ActionResult:
        """Set parameters of a running strategy."""
        return self.act("params", strategy=strategy, params=params, reason=reason)

    def act(self, action: str, key: str | None = None, /, **fields: Any) -> ActionResult:
        """Perform any action of the API, under a new Idempotency-Key or a given one."""
        body = msgspec.json.encode({name: v for name, v in fields.items() if v is not None})
        text = self._request(
            "POST", f"/actions/{quote(action, safe='')}", body, key or str(uuid4())
        )
        return msgspec.json.decode(text, type=ActionResult)

    # --- requests ------------------------------------------------------------------------------

    def get(self, path: str, kind: type[T], params: Mapping[str, Any] | None = None) -> T:
        """Return the document of any path below /api/v1 as a struct, or as dict with type dict."""
        given = {name: _text(value) for name, value in (params or {}).items() if value is not None}
        return msgspec.json.decode(
            self._request("GET", f"{path}?{urlencode(given)}" if given else path), type=kind
        )

    def _request(self, method: str, path: str, body: bytes = b"", key: str = "") -> bytes:
        headers = dict(self._headers)
        if method == "POST":
            headers |= {"Content-Type": "application/json", "Idempotency-Key": key}
        for is_last in (False, True):
            try:
                self._connection.request(method, PREFIX + path, body or None, headers)
                reply = self._connection.getresponse()
                text = reply.read()
                break
            except _LOST:  # the server closed an idle connection, or restarted
                self._connection.close()
                if is_last:
                    raise
            except BaseException:  # the rest of this reply must not answer the next request
                self._connection.close()
                raise
        if reply.status == 200:
            return text
        wait = reply.headers.get("Retry-After", "")
        raise RequestError(reply.status, _detail(text), float(wait) if wait.isdigit() else None)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _detail(text: bytes) -> str:
    try:
        return str(msgspec.json.decode(text, type=dict[str, Any])["detail"])
    except (msgspec.DecodeError, KeyError):
        return text[:200].decode(errors="replace")
