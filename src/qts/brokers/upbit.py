"""Upbit as a broker: every order carries our identifier, every trade a name of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from qts.brokers.broker import ExecutionReport, OrderMatches, StreamGap, VenueBlockedError
from qts.brokers.config import BrokersConfig, require_live_consent_upbit
from qts.brokers.error_boundary import (
    UNREADABLE,
    send_before_deadline,
    translate_decode_errors,
    translate_order_errors,
)
from qts.brokers.upbit_codec import fill_event, fills_of, order_event, order_of, place_values, units
from qts.domain import (
    Account,
    BrokerOrder,
    Clock,
    Fill,
    Holding,
    Market,
    OrderRequest,
    OrderState,
    OrderType,
    OutcomeUnknownError,
    Side,
    round_to_tick,
)
from qts.venues import (
    BeforeSend,
    RateLimitedError,
    RequestPriority,
    UpbitClient,
    UpbitStream,
    VenueRejectedError,
)

_WEEK = timedelta(days=7)  # the longest span of closed orders that Upbit shows at once
_OPEN_PAGE = 100
_CLOSED_PAGE = 1000

Json = dict[str, Any]


class UpbitBroker:
    name = "upbit"

    def __init__(self, client: UpbitClient, config: BrokersConfig, clock: Clock) -> None:
        require_live_consent_upbit(config, client.config)
        self._client = client
        self._config = config
        self._clock = clock
        self._costs = config.costs.of(Market.UPBIT)
        self._blocked: VenueBlockedError | None = None
        self._closed: dict[str, list[Fill]] = {}  # orders that are done: their fills are final

    async def place(self, request: OrderRequest) -> str:
        async def send(leaving: BeforeSend) -> Any:
            values = place_values(request, await self._worst(request))
            return await self._call(
                "POST", "/v1/orders", values, "order", RequestPriority.ORDER, leaving
            )

        with translate_order_errors():
            reply = await send_before_deadline(self._clock, self._config.send_timeout_s, send)
        name = reply.get("uuid") if isinstance(reply, dict) else None
        if not isinstance(name, str) or not name:
            raise OutcomeUnknownError("Upbit took an order and did not name it")
        return name

    async def cancel(self, order_id: str) -> None:
        values = [("uuid", order_id)]
        with translate_order_errors():
            await self._call("DELETE", "/v1/order", values, "default", RequestPriority.ORDER)

    async def find_order(
        self,
        request: OrderRequest,
        sent_at: datetime,  # noqa: ARG002 - the identifier is enough
        known: frozenset[str],
    ) -> OrderMatches:
        try:
            row = await self._get("/v1/order", ("identifier", request.client_order_id))
        except VenueRejectedError as error:
            if error.code == "order_not_found":
                return OrderMatches(())
            raise
        with translate_decode_errors("Upbit"):
            order = order_of(row)
        return OrderMatches((order,) if order.broker_order_id not in known else ())

    async def orders(self, since: datetime) -> Sequence[BrokerOrder]:
        first = since.replace(microsecond=0)
        with translate_decode_errors("Upbit"):
            return [
                order
                for order in map(order_of, await self._rows(since))
                if order.state is OrderState.OPEN or order.placed_at >= first
            ]

    async def fills(self, since: datetime) -> Sequence[Fill]:
        """Closed orders are listed by when they were placed: a week further back is looked at."""
        first = since.replace(microsecond=0)
        with translate_decode_errors("Upbit"):
            rows = await self._rows(since - _WEEK)
            names = [row["uuid"] for row in rows if Decimal(row["executed_volume"]) > 0]
            self._closed = {name: self._closed[name] for name in names if name in self._closed}
            fills = [fill for name in names for fill in await self._fills_of(name)]
        return sorted((fill for fill in fills if fill.at >= first), key=lambda fill: fill.at)

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
        line: asyncio.Queue[ExecutionReport] = asyncio.Queue()

        def heard(event: Json) -> None:
            line.put_nowait(_notice(event))

        def live() -> None:
            line.put_nowait(StreamGap("listening from now on"))

        stream = UpbitStream(self._client, self._clock, lambda _quote: None, heard, live)
        running = asyncio.create_task(stream.run(), name="upbit notices")
        try:
            while True:
                yield await line.get()
        finally:
            running.cancel()
            await asyncio.wait({running})

    # -- asking

    async def _worst(self, request: OrderRequest) -> Decimal | None:
        """The price a market buy may go up to: a little above the best ask."""
        if request.type is not OrderType.MARKET or request.side is not Side.BUY:
            return None
        values = [("markets", request.symbol)]
        book = await self._call("GET", "/v1/orderbook", values, "quotes", RequestPriority.ORDER)
        with translate_decode_errors("Upbit"):
            ask = units(book[0]["orderbook_units"][0]["ask_price"])
        worst = ask * (1 + Decimal(repr(self._config.market_collar)))
        return max(ask, round_to_tick(Market.UPBIT, worst, Side.BUY))

    async def _fills_of(self, name: str) -> list[Fill]:
        if (known := self._closed.get(name)) is not None:
            return known
        row = await self._get("/v1/order", ("uuid", name))
        fills = fills_of(row, self._costs)
        if row["state"] in ("done", "cancel"):
            self._closed[name] = fills
        return fills

    async def _rows(self, since: datetime) -> list[Json]:
        """Every order once. The open ones first: one that closes meanwhile is then seen twice,
        and not, as the other way round, never."""
        rows = await self._open() + await self._done(since)
        return list({row["uuid"]: row for row in rows}.values())

    async def _open(self) -> list[Json]:
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

    async def _done(self, since: datetime) -> list[Json]:
        """Closed orders placed since then, oldest first."""
        rows: dict[str, Json] = {}
        start, now = since, self._clock.now() + timedelta(minutes=1)
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
        leaving: BeforeSend | None = None,
    ) -> Any:
        """One request; none at all while we are shut out, since asking makes it longer."""
        now, blocked = self._clock.now(), self._blocked
        if blocked is not None and (blocked.until is None or now < blocked.until):
            raise VenueBlockedError(str(blocked), blocked.until)
        try:
            return await self._client.call(method, path, values, group, priority, leaving)
        except RateLimitedError as error:
            if not error.blocked:
                raise
            pause_s = error.retry_after_s
            until = None if pause_s is None else self._clock.now() + timedelta(seconds=pause_s)
            self._blocked = VenueBlockedError(str(error), until)
            raise self._blocked from None


def _notice(event: Json) -> ExecutionReport:
    """An event that cannot be read exactly has to be asked for."""
    try:
        return fill_event(event) if event["state"] == "trade" else order_event(event)
    except UNREADABLE as error:
        return StreamGap(f"an event of Upbit could not be read: {error!r}")


def _milliseconds(moment: datetime) -> str:
    return str(round(moment.timestamp() * 1000))
