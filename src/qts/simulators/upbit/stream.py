"""Upbit WebSocket server: public tickers, trades and order books; private orders and assets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from qts.simulators.config import RequestLimits
from qts.simulators.control import FaultInjector
from qts.simulators.market.markets import CoinMarket
from qts.simulators.market.rules import utc_ms
from qts.simulators.matching import SimulatedFill, SimulatedHolding
from qts.simulators.server import Meter
from qts.simulators.upbit.gateway import UpbitCustomer, number
from qts.simulators.upbit.messages import (
    PUBLIC,
    SubscriptionError,
    UpbitMessages,
    UpbitSubscription,
    my_order,
    simplified,
    subscription,
)
from qts.simulators.upbit.orders import Event, UpbitOrderEntry

FORMATS = ("DEFAULT", "SIMPLE", "JSON_LIST", "SIMPLE_LIST")
MESSAGES = RequestLimits(second=5, minute=100, day=0)
_QUEUE = 10_000


@dataclass(eq=False)
class UpbitStreamClient:
    socket: web.WebSocketResponse
    transport: asyncio.BaseTransport | None
    customer: UpbitCustomer | None
    queue: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(_QUEUE))
    meter: Meter = field(default_factory=lambda: Meter(MESSAGES))
    subscriptions: list[UpbitSubscription] = field(default_factory=list)
    ticket: str = ""
    form: str = "DEFAULT"


class UpbitStreamServer:
    def __init__(
        self,
        market: CoinMarket,
        messages: UpbitMessages,
        faults: FaultInjector,
        now_ns: Callable[[], int],
    ) -> None:
        self._market = market
        self._messages = messages
        self._faults = faults
        self._now_ns = now_ns
        self.clients: set[UpbitStreamClient] = set()
        self._delayed: list[tuple[UpbitCustomer, dict[str, Any]]] = []
        self.frames = 0

    # Connections

    async def serve(
        self, request: web.Request, customer: UpbitCustomer | None, idle_s: float
    ) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(receive_timeout=idle_s)
        await socket.prepare(request)
        client = UpbitStreamClient(socket, request.transport, customer)
        self.clients.add(client)
        writer = asyncio.create_task(_write(client))
        try:
            async for message in socket:
                if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                    self._handle(client, message.data)
        except TimeoutError:
            pass  # idle for too long: closed below, as by the venue
        finally:
            writer.cancel()
            self.clients.discard(client)
            await socket.close()
        return socket

    def _handle(self, client: UpbitStreamClient, data: str | bytes) -> None:
        if data in ("PING", b"PING"):
            self._put(client, {"status": "UP"})
            return
        try:
            if not client.meter.admit(self._now_ns()):
                raise SubscriptionError("TOO_MANY_REQUEST")
            self._subscribe(client, data)
        except SubscriptionError as error:
            self._put(client, {"error": {"name": str(error), "message": str(error)}})

    def _subscribe(self, client: UpbitStreamClient, data: str | bytes) -> None:
        try:
            parts = msgspec.json.decode(data, type=list[dict[str, Any]])
        except msgspec.DecodeError:
            raise SubscriptionError("WRONG_FORMAT") from None
        tickets = [part["ticket"] for part in parts if "ticket" in part]
        if not tickets:
            raise SubscriptionError("NO_TICKET")
        form = next((part["format"] for part in parts if "format" in part), None)
        if form is not None and form not in FORMATS:
            raise SubscriptionError("WRONG_FORMAT")
        if any(part.get("method") == "LIST_SUBSCRIPTIONS" for part in parts):
            client.form = form or client.form
            self._put(client, self._list(client))
            return
        subscriptions = [subscription(part, client.customer) for part in parts if "type" in part]
        if not subscriptions:
            raise SubscriptionError("NO_TYPE")
        for each in subscriptions:
            if any(code not in self._market.index for code in each.codes):
                raise SubscriptionError("INVALID_PARAM")
        client.ticket, client.form = str(tickets[0]), form or "DEFAULT"
        client.subscriptions = subscriptions
        for each in subscriptions:
            if each.snapshot and each.kind in PUBLIC:
                self._publish(client, each, "SNAPSHOT")

    def _list(self, client: UpbitStreamClient) -> dict[str, Any]:
        kinds = [{"type": each.kind, "codes": each.codes} for each in client.subscriptions]
        return {"method": "LIST_SUBSCRIPTIONS", "result": kinds, "ticket": client.ticket}

    # Public messages

    def on_second(self) -> None:
        """Send public messages after a second of the market."""
        for client in list(self.clients):
            for each in client.subscriptions:
                if each.realtime and each.kind in PUBLIC:
                    self._publish(client, each, "REALTIME")

    def _publish(
        self, client: UpbitStreamClient, subscribed: UpbitSubscription, stream_type: str
    ) -> None:
        for code in subscribed.codes:
            i = self._market.index[code]
            if stream_type == "REALTIME" and not (
                self._market.traded[i] or subscribed.kind == "orderbook"
            ):
                continue
            values = self._messages.public(subscribed, i)
            if values is not None:
                self._put(client, {**values, "stream_type": stream_type})

    # Private messages

    def notify(self, entry: UpbitOrderEntry, event: Event, fill: SimulatedFill | None) -> None:
        """Send an order event to its customer; missed ones are never repeated."""
        message = my_order(entry, event, fill, self._market)
        customer = entry.customer
        if event == "trade":
            if self._faults.take(frozenset({"lose_fills"}), "myOrder"):
                return
            if self._faults.take(frozenset({"reorder_fills"}), "myOrder"):
                self._delayed.append((customer, message))
                return
        self._private(customer, "myOrder", message)
        if event == "trade" and self._faults.take(frozenset({"duplicate_fills"}), "myOrder"):
            self._private(customer, "myOrder", message)
        self.flush()
        self._private(customer, "myAsset", self._assets(customer, entry.order.index))

    def flush(self) -> None:
        while self._delayed:
            customer, message = self._delayed.pop()
            self._private(customer, "myOrder", message)

    def _private(self, customer: UpbitCustomer, kind: str, message: dict[str, Any]) -> None:
        for client in self.clients:
            if client.customer is customer:
                for each in client.subscriptions:
                    if each.kind == kind and (not each.codes or message.get("code") in each.codes):
                        self._put(client, message)

    def _assets(self, customer: UpbitCustomer, index: int) -> dict[str, Any]:
        account, now = customer.account, utc_ms(self._market.time)
        holding = account.holdings.get(index, SimulatedHolding())
        assets = [
            ("KRW", account.available, account.locked),
            (self._market.universe.names[index], holding.quantity - holding.locked, holding.locked),
        ]
        return {
            "type": "myAsset",
            "asset_uuid": "00000000-0000-4000-8000-000000000000",
            "assets": [
                {"currency": name, "balance": number(free), "locked": number(locked)}
                for name, free, locked in assets
            ],
            "asset_timestamp": now,
            "timestamp": now,
            "stream_type": "REALTIME",
        }

    def _put(self, client: UpbitStreamClient, message: dict[str, Any]) -> None:
        self.frames += 1
        values: Any = simplified(message) if client.form.startswith("SIMPLE") else message
        if client.form.endswith("_LIST") and "error" not in message:
            values = [values]
        try:
            client.queue.put_nowait(msgspec.json.encode(values))
        except asyncio.QueueFull:
            _abort(client)

    def drop(self) -> int:
        clients = list(self.clients)
        for client in clients:
            _abort(client)
        self.clients.clear()
        return len(clients)


async def _write(client: UpbitStreamClient) -> None:
    while True:
        data = await client.queue.get()
        try:
            await client.socket.send_bytes(data)
        except ConnectionError:
            return


def _abort(client: UpbitStreamClient) -> None:
    if isinstance(client.transport, asyncio.WriteTransport):
        client.transport.abort()
