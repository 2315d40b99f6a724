"""KIS WebSocket server: one connection per key, 41 subscriptions; trades, books, fill notices."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from qts.domain import Clock
from qts.simulators.control import FaultInjector
from qts.simulators.kis.frames import (
    BOOK,
    NOTICE,
    OVERSEAS_NOTICE,
    OVERSEAS_PAPER_NOTICE,
    PAPER_NOTICE,
    TRADE,
    Records,
    encrypted,
    frame,
    widened,
)
from qts.simulators.kis.gateway import KisCustomer, KisGateway
from qts.simulators.kis.orders import KisOrderNotice
from qts.simulators.market.markets import StockMarket
from qts.simulators.market.rules import hhmmss, yyyymmdd

MAX_SUBSCRIPTIONS = 41
_ENCRYPTED = (NOTICE, PAPER_NOTICE, OVERSEAS_NOTICE, OVERSEAS_PAPER_NOTICE)
_QUEUE = 10_000  # unread frames after which a client is disconnected

# msg_cd: (rt_cd, text)
_REPLIES = {
    "OPSP0000": ("0", "SUBSCRIBE SUCCESS"),
    "OPSP0001": ("0", "UNSUBSCRIBE SUCCESS"),
    "OPSP0002": ("1", "ALREADY IN SUBSCRIBE"),
    "OPSP0003": ("1", "UNSUBSCRIBE ERROR(not found!)"),
    "OPSP0008": ("1", "MAX SUBSCRIBE OVER"),
    "OPSP0011": ("1", "invalid approval : NOT FOUND"),
    "OPSP8991": ("1", "invalid tr_id"),
    "OPSP8992": ("1", "invalid tr_key"),
    "OPSP8996": ("1", "ALREADY IN USE appkey"),
    "OPSP9991": ("1", "JSON PARSING ERROR : header not found"),
}


@dataclass(eq=False)
class KisStreamClient:
    socket: web.WebSocketResponse
    transport: asyncio.WriteTransport | None
    queue: asyncio.Queue[str]
    customer: KisCustomer | None = None
    subscriptions: dict[tuple[str, str], int] = field(default_factory=dict)
    """(tr_id, tr_key) to the index of the symbol, -1 for fill notices."""
    key: str = field(default_factory=lambda: secrets.token_hex(16))
    iv: str = field(default_factory=lambda: secrets.token_hex(8))
    unanswered: int = 0


class KisStreamServer:
    def __init__(
        self,
        market: StockMarket,
        gateway: KisGateway,
        records: Records,
        faults: FaultInjector,
        paper: bool,
    ) -> None:
        self._market = market
        self._gateway = gateway
        self._records = records
        self._faults = faults
        self._notice_id = PAPER_NOTICE if paper else NOTICE
        overseas = OVERSEAS_PAPER_NOTICE if paper else OVERSEAS_NOTICE
        self._notice_ids = (self._notice_id, overseas)  # nothing is ever sent by the latter
        self._paper = paper
        self.clients: dict[KisCustomer, KisStreamClient] = {}
        self._unauthenticated: set[KisStreamClient] = set()
        self._delayed: list[KisOrderNotice] = []
        self.frames = 0
        self.pings = 0
        self.pongs = 0

    # Connections

    async def connect(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoping=True)
        await socket.prepare(request)
        client = KisStreamClient(socket, request.transport, asyncio.Queue(_QUEUE))
        self._unauthenticated.add(client)
        writer = asyncio.create_task(_write(client))
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT and not await self._handle(client, message.data):
                    break
        except ConnectionError:
            pass  # the client disconnected before the reply
        finally:
            writer.cancel()
            self._remove(client)
            await socket.close()
        return socket

    async def _handle(self, client: KisStreamClient, text: str) -> bool:
        """Reply to one message; return False to close the connection."""
        try:
            message = msgspec.json.decode(text)
            header = message["header"]
            if header.get("tr_id") == "PINGPONG":
                client.unanswered = 0
                self.pongs += 1
                return True
            request = message["body"]["input"]
            tr_id, tr_key = str(request["tr_id"]), str(request["tr_key"])
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
            await _reply(client, "", "", "OPSP9991")
            return True
        code = self._admit(client, str(header.get("approval_key", "")))
        if code is None:
            code = self._subscribe(client, str(header.get("tr_type")), tr_id, tr_key)
        await _reply(client, tr_id, tr_key, code)
        wrong_id = code == "OPSP8992" and tr_id in self._notice_ids
        return code not in ("OPSP0011", "OPSP8996") and not wrong_id

    def _admit(self, client: KisStreamClient, approval: str) -> str | None:
        customer = self._gateway.approved(approval)
        if customer is None:
            return "OPSP0011"
        if self.clients.get(customer, client) is not client:
            return "OPSP8996"
        self._unauthenticated.discard(client)
        client.customer = customer
        self.clients[customer] = client
        return None

    def _subscribe(self, client: KisStreamClient, kind: str, tr_id: str, tr_key: str) -> str:
        if tr_id not in (TRADE, BOOK, *self._notice_ids):
            return "OPSP8991"
        subscription = (tr_id, tr_key)
        if kind == "2":
            removed = client.subscriptions.pop(subscription, None)
            return "OPSP0003" if removed is None else "OPSP0001"
        if subscription in client.subscriptions:
            return "OPSP0002"
        if tr_id in self._notice_ids:
            known = client.customer is not None and tr_key == client.customer.key.hts_id
            index = -1 if known else None
        else:
            index = self._market.index.get(tr_key)
        if index is None:
            return "OPSP8992"
        if len(client.subscriptions) >= MAX_SUBSCRIPTIONS:
            return "OPSP0008"
        client.subscriptions[subscription] = index
        return "OPSP0000"

    def _remove(self, client: KisStreamClient) -> None:
        self._unauthenticated.discard(client)
        if client.customer and self.clients.get(client.customer) is client:
            del self.clients[client.customer]

    # Messages

    def on_second(self) -> None:
        """Send trades and order books after a second of the market."""
        for client in list(self.clients.values()):
            for (tr_id, _), i in client.subscriptions.items():
                if i < 0:
                    continue
                if tr_id == TRADE and self._market.traded[i]:
                    self._send(client, TRADE, self._records.trades(i))
                elif tr_id == BOOK and self._market.phase.kind != "closed":
                    self._send(client, BOOK, [self._records.book(i)])

    def _send(self, client: KisStreamClient, tr_id: str, records: list[list[str]]) -> None:
        fault = self._faults.take(frozenset({"width"}), tr_id)
        if fault is not None:
            records = [widened(record, fault.fields) for record in records]
        self._put(client, frame(tr_id, records))

    def notify(self, notice: KisOrderNotice) -> None:
        """Send a notice to its subscriber; missed ones are never repeated."""
        if notice.fill is not None:
            if self._faults.take(frozenset({"lose_fills"}), self._notice_id):
                return
            if self._faults.take(frozenset({"reorder_fills"}), self._notice_id):
                self._delayed.append(notice)  # sent after the next one, or by flush
                return
        self._send_notice(notice)
        if notice.fill and self._faults.take(frozenset({"duplicate_fills"}), self._notice_id):
            self._send_notice(notice)
        self.flush()

    def flush(self) -> None:
        while self._delayed:
            self._send_notice(self._delayed.pop())

    def _send_notice(self, notice: KisOrderNotice) -> None:
        customer = notice.entry.customer
        client = self.clients.get(customer)
        if client is None or (self._notice_id, customer.key.hts_id) not in client.subscriptions:
            return
        record = self._records.notice(notice, self._paper)
        fault = self._faults.take(frozenset({"width"}), self._notice_id)
        if fault is not None:
            record = widened(record, fault.fields)
        text = encrypted("^".join(record), client.key, client.iv)
        self._put(client, frame(self._notice_id, [record], encrypt=text))

    def _put(self, client: KisStreamClient, text: str) -> None:
        self.frames += 1
        try:
            client.queue.put_nowait(text)
        except asyncio.QueueFull:
            _abort(client)

    async def ping(self, clock: Clock, interval_s: float, drop_after: int) -> None:
        """Send PINGPONG to every client until cancelled."""
        while True:
            await clock.sleep(interval_s)
            now = self._market.time
            text = msgspec.json.encode(
                {"header": {"tr_id": "PINGPONG", "datetime": yyyymmdd(now) + hhmmss(now)}}
            ).decode()
            for client in list(self.clients.values()):
                if drop_after and client.unanswered >= drop_after:
                    _abort(client)
                    continue
                client.unanswered += 1
                self.pings += 1
                self._put(client, text)

    def drop(self) -> int:
        """Abort every connection and return their number."""
        clients = [*self.clients.values(), *self._unauthenticated]
        for client in clients:
            _abort(client)
            self._remove(client)
        return len(clients)

    def stats(self) -> dict[str, Any]:
        return {
            "sessions": len(self.clients),
            "registrations": {
                customer.key.app_key: len(client.subscriptions)
                for customer, client in self.clients.items()
            },
            "frames": self.frames,
            "pings": self.pings,
            "pongs": self.pongs,
        }


async def _write(client: KisStreamClient) -> None:
    while True:
        text = await client.queue.get()
        try:
            await client.socket.send_str(text)
        except ConnectionError:
            return


async def _reply(client: KisStreamClient, tr_id: str, tr_key: str, code: str) -> None:
    rt_cd, text = _REPLIES[code]
    body: dict[str, Any] = {"rt_cd": rt_cd, "msg_cd": code, "msg1": text}
    if code == "OPSP0000":
        body["output"] = {"iv": client.iv, "key": client.key}
    encrypt = "Y" if tr_id in _ENCRYPTED else "N"
    header = {"tr_id": tr_id, "tr_key": tr_key, "encrypt": encrypt}
    await client.socket.send_str(msgspec.json.encode({"header": header, "body": body}).decode())


def _abort(client: KisStreamClient) -> None:
    if client.transport is not None:
        client.transport.abort()
