"""Broker for Upbit, whose orders carry our client order id and whose trades carry a uuid."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from qts.brokers.config import BrokersConfig, require_live_consent_upbit, upbit_account
from qts.brokers.error_boundary import (
    UNREADABLE,
    priority_of,
    send_before_deadline,
    translate_decode_errors,
    translate_order_errors,
)
from qts.brokers.upbit_codec import (
    OrderLists,
    UpbitFillReader,
    fill_event,
    order_event,
    order_of,
    place_values,
    read_applied,
    units,
)
from qts.brokers.venue import ExecutionReport, OrderMatches, StreamGap, VenueBlockedError
from qts.database import Database
from qts.domain import (
    TICK_TABLES,
    Account,
    BrokerOrder,
    Clock,
    Fill,
    Holding,
    OrderRequest,
    OrderState,
    OrderType,
    OutcomeUnknownError,
    Side,
)
from qts.venues import (
    BeforeSend,
    RateLimitedError,
    RequestPriority,
    UpbitClient,
    UpbitStream,
    VenueRejectedError,
)

_WEEK = timedelta(days=7)  # longest span of one request for closed orders
_LATE = timedelta(days=1)  # that a reconciliation may be
_RECENT = timedelta(minutes=2)  # of fills that the next reconciliation asks for
_SECOND_SEARCH = timedelta(hours=1)  # before an order was sent
_OPEN_PAGE = 100
_CLOSED_PAGE = 1000

Json = dict[str, Any]


class UpbitBroker:
    name = "upbit"

    def __init__(
        self,
        client: UpbitClient,
        config: BrokersConfig,
        clock: Clock,
        database: Database | None = None,  # with the ledger; None: every fill is requested
    ) -> None:
        require_live_consent_upbit(config, client.config)
        self.key = upbit_account(client.config)
        self._client = client
        self._config = config
        self._clock = clock
        self._blocked: VenueBlockedError | None = None
        self._fills = UpbitFillReader(
            OrderLists(self._open_rows, self._closed_rows, self._order_row),
            config.costs.upbit,
            None if database is None else read_applied(database, self.key),
        )

    async def place(self, request: OrderRequest) -> str:
        async def send(before_send: BeforeSend) -> Any:
            values = place_values(request, await self._collar_price(request))
            return await self._call(
                "POST", "/v1/orders", values, "order", priority_of(request), before_send
            )

        with translate_order_errors():
            reply = await send_before_deadline(
                self._clock, self._config.send_timeout_s, request, send
            )
        broker_order_id = reply.get("uuid") if isinstance(reply, dict) else None
        if not isinstance(broker_order_id, str) or not broker_order_id:
            raise OutcomeUnknownError("Upbit accepted an order without a uuid")
        return broker_order_id

    async def cancel(self, broker_order_id: str) -> None:
        values = [("uuid", broker_order_id)]
        with translate_order_errors():
            await self._call("DELETE", "/v1/order", values, "default", RequestPriority.EXIT)

    async def find_order(
        self, request: OrderRequest, sent_at: datetime, known: frozenset[str]
    ) -> OrderMatches:
        """Search by client order id, then in the lists of orders as a second witness."""
        try:
            row = await self._get("/v1/order", ("identifier", request.client_order_id))
        except VenueRejectedError as error:
            if error.code != "order_not_found":
                raise
        else:
            with translate_decode_errors("Upbit"):
                order = order_of(row)
            return OrderMatches((order,) if order.broker_order_id not in known else ())
        rows = await self._rows(sent_at - _SECOND_SEARCH)
        with translate_decode_errors("Upbit"):
            orders = [each for each in map(order_of, rows) if each.broker_order_id not in known]
        # An immediate-or-cancel limit order reads like a market order, so types are not compared.
        fits = (request.symbol, request.side, request.quantity)
        if ours := [each for each in orders if each.client_order_id == request.client_order_id]:
            return OrderMatches(tuple(ours))
        unnamed = [each for each in orders if not each.client_order_id]
        return OrderMatches(
            (), tuple(each for each in unnamed if (each.symbol, each.side, each.quantity) == fits)
        )

    async def orders(self, since: datetime) -> Sequence[BrokerOrder]:
        rows = await self._rows(since)
        first = since - self._client.skew.margin
        with translate_decode_errors("Upbit"):
            return [
                order
                for order in map(order_of, rows)
                if order.state is OrderState.OPEN or order.placed_at >= first
            ]

    async def fills(self, since: datetime) -> Sequence[Fill]:
        """Return fills, of orders placed up to a week before."""
        with translate_decode_errors("Upbit"):
            first = since - self._client.skew.margin
            return await self._fills.read(since - _WEEK, first, self._clock.now())

    async def warm_up(self) -> None:
        """Read what the first reconciliation would request, but the fills of the last seconds."""
        now = self._clock.now()
        with translate_decode_errors("Upbit"):
            await self._fills.read(now - _WEEK - _LATE, now - _RECENT, now)

    async def account(self) -> Account:
        cash, holdings = Decimal(0), []
        rows = await self._get("/v1/accounts")
        with translate_decode_errors("Upbit"):
            for row in rows:
                quantity = Decimal(row["balance"]) + Decimal(row["locked"])
                if row["currency"] == "KRW":
                    cash = quantity
                elif quantity:
                    symbol = f"{row['unit_currency']}-{row['currency']}"
                    average = Decimal(row["avg_buy_price"])
                    holdings.append(
                        Holding(symbol=symbol, quantity=quantity, average_price=average)
                    )
        return Account(cash=cash, holdings=tuple(holdings))

    async def execution_reports(self) -> AsyncIterator[ExecutionReport]:
        queue: asyncio.Queue[ExecutionReport] = asyncio.Queue()

        def on_event(event: Json) -> None:
            queue.put_nowait(_parse_event(event))

        def on_connected() -> None:
            queue.put_nowait(StreamGap("stream opened"))

        stream = UpbitStream(self._client, self._clock, lambda _quote: None, on_event, on_connected)
        task = asyncio.create_task(stream.run(), name="upbit order stream")
        try:
            while True:
                yield await queue.get()
        finally:
            task.cancel()
            await asyncio.wait({task})

    # -- requests

    async def _collar_price(self, request: OrderRequest) -> Decimal | None:
        """Return the limit of a market buy, `market_collar` above the best ask; else None."""
        if request.type is not OrderType.MARKET or request.side is not Side.BUY:
            return None
        values = [("markets", request.symbol)]
        book = await self._call("GET", "/v1/orderbook", values, "quotes", priority_of(request))
        with translate_decode_errors("Upbit"):
            ask = units(book[0]["orderbook_units"][0]["ask_price"])
        worst = ask * (1 + Decimal(repr(self._config.market_collar)))
        return max(ask, TICK_TABLES["upbit-krw"].round(worst, Side.BUY))

    async def _order_row(self, uuid: str) -> Json:
        row: Json = await self._get("/v1/order", ("uuid", uuid))
        return row

    async def _rows(self, since: datetime) -> list[Json]:
        """Return every order once. Open ones are read first: an order that closes in between is
        then in both lists; in the other order it would be in neither."""
        with translate_decode_errors("Upbit"):
            rows = await self._open_rows() + await self._closed_rows(since)
            return list({row["uuid"]: row for row in rows}.values())

    async def _open_rows(self) -> list[Json]:
        rows: list[Json] = []
        for page in range(1, 1000):
            found = await self._get(
                "/v1/orders/open",
                ("states[]", "wait"),
                ("states[]", "watch"),
                ("page", str(page)),
                ("limit", str(_OPEN_PAGE)),
                ("order_by", "asc"),
            )
            rows += found
            if len(found) < _OPEN_PAGE:
                break
        return rows

    async def _closed_rows(self, since: datetime) -> list[Json]:
        """Return the closed orders placed since then, oldest first."""
        rows: dict[str, Json] = {}
        skew = self._client.skew
        start = since - skew.margin
        now = self._clock.now() + skew.margin + timedelta(minutes=1)
        while start < now:
            end = min(start + _WEEK, now)
            found = await self._get(
                "/v1/orders/closed",
                ("states[]", "done"),
                ("states[]", "cancel"),
                ("start_time", _milliseconds(start)),
                ("end_time", _milliseconds(end)),
                ("limit", str(_CLOSED_PAGE)),
                ("order_by", "asc"),
            )
            new = [row for row in found if row["uuid"] not in rows]
            rows.update((row["uuid"], row) for row in new)
            if len(found) < _CLOSED_PAGE or not new:
                start = end
            else:
                start = datetime.fromisoformat(found[-1]["created_at"])
        return list(rows.values())

    async def _get(self, path: str, *values: tuple[str, str]) -> Any:
        return await self._call("GET", path, values, "default", RequestPriority.ACCOUNT)

    async def _call(
        self,
        method: Any,
        path: str,
        values: Any,
        group: Any,
        priority: Any,
        before_send: BeforeSend | None = None,
    ) -> Any:
        """Send a request, but none while the venue has banned us: each would extend the ban."""
        now, blocked = self._clock.now(), self._blocked
        if blocked is not None and (blocked.until is None or now < blocked.until):
            raise VenueBlockedError(str(blocked), blocked.until)
        try:
            return await self._client.call(method, path, values, group, priority, before_send)
        except RateLimitedError as error:
            if not error.blocked:
                raise
            pause_s = error.retry_after_s
            until = None if pause_s is None else self._clock.now() + timedelta(seconds=pause_s)
            self._blocked = VenueBlockedError(str(error), until)
            raise self._blocked from None


def _parse_event(event: Json) -> ExecutionReport:
    """Parse an event of the stream; return a StreamGap for one that cannot be read exactly."""
    try:
        return fill_event(event) if event["state"] == "trade" else order_event(event)
    except UNREADABLE as error:
        return StreamGap(f"unreadable event of Upbit: {error!r}")


def _milliseconds(moment: datetime) -> str:
    return str(round(moment.timestamp() * 1000))


class UpbitOrderPreview:
    """Preview at Upbit, which also checks a whole order (`/v1/orders/test`)."""

    can_test = True

    def __init__(self, client: UpbitClient) -> None:
        self._client = client

    async def buying_power(self, request: OrderRequest) -> Decimal:
        found = await self._client.call(
            "GET",
            "/v1/orders/chance",
            [("market", request.symbol)],
            "default",
            RequestPriority.ACCOUNT,
        )
        with translate_decode_errors("Upbit"):
            return Decimal(found["bid_account"]["balance"])

    async def test(self, request: OrderRequest) -> None:
        values = place_values(request, None)
        await self._client.call(
            "POST", "/v1/orders/test", values, "default", RequestPriority.ACCOUNT
        )
