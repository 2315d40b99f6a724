"""The KIS WebSocket: one session a key, 41 registrations, trades, books and fill notices."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from qts.domain import Clock
from qts.simulators.faults import FaultInjector
from qts.simulators.kis.frames import (
    BOOK,
    NOTICE,
    PAPER_NOTICE,
    TRADE,
    Records,
    encrypted,
    frame,
    widened,
)
from qts.simulators.kis.gateway import KisCustomer, KisGateway
from qts.simulators.kis.orders import KisOrderNotice
from qts.simulators.market.sessions import hhmmss, yyyymmdd
from qts.simulators.market.stocks import StockMarket

REGISTRATIONS = 41
_QUEUE = 10_000  # frames behind which a client that does not read is cut off

# msg_cd: (rt_cd, text)
_ANSWERS = {
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
    registered: dict[tuple[str, str], int] = field(default_factory=dict)
    """(tr_id, tr_key) to the symbol's index, -1 for the notice."""
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
        self._paper = paper
        self.sessions: dict[KisCustomer, KisStreamClient] = {}
        self._unnamed: set[KisStreamClient] = set()
        self._kept_back: list[KisOrderNotice] = []
        self.frames = 0
        self.pings = 0
        self.pongs = 0

    # A connection

    async def connect(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoping=True)
        await socket.prepare(request)
        session = KisStreamClient(socket, request.transport, asyncio.Queue(_QUEUE))
        self._unnamed.add(session)
        writer = asyncio.create_task(_write(session))
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT and not await self._hear(session, message.data):
                    break
        except ConnectionError:
            pass  # gone before it heard the answer
        finally:
            writer.cancel()
            self._forget(session)
            await socket.close()
        return socket

    async def _hear(self, session: KisStreamClient, text: str) -> bool:
        """Answer one message; False ends the session."""
        try:
            message = msgspec.json.decode(text)
            header = message["header"]
            if header.get("tr_id") == "PINGPONG":
                session.unanswered = 0
                self.pongs += 1
                return True
            asked = message["body"]["input"]
            tr_id, tr_key = str(asked["tr_id"]), str(asked["tr_key"])
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
            await _answer(session, "", "", "OPSP9991")
            return True
        code = self._admit(session, str(header.get("approval_key", "")))
        if code is None:
            code = self._register(session, str(header.get("tr_type")), tr_id, tr_key)
        await _answer(session, tr_id, tr_key, code)
        wrong_id = code == "OPSP8992" and tr_id == self._notice_id
        return code not in ("OPSP0011", "OPSP8996") and not wrong_id

    def _admit(self, session: KisStreamClient, approval: str) -> str | None:
        customer = self._gateway.approved(approval)
        if customer is None:
            return "OPSP0011"
        if self.sessions.get(customer, session) is not session:
            return "OPSP8996"
        self._unnamed.discard(session)
        session.customer = customer
        self.sessions[customer] = session
        return None

    def _register(self, session: KisStreamClient, kind: str, tr_id: str, tr_key: str) -> str:
        if tr_id not in (TRADE, BOOK, self._notice_id):
            return "OPSP8991"
        registration = (tr_id, tr_key)
        if kind == "2":
            return (
                "OPSP0001"
                if session.registered.pop(registration, None) is not None
                else ("OPSP0003")
            )
        if registration in session.registered:
            return "OPSP0002"
        if tr_id == self._notice_id:
            known = session.customer is not None and tr_key == session.customer.key.hts_id
            index = -1 if known else None
        else:
            index = self._market.index.get(tr_key)
        if index is None:
            return "OPSP8992"
        if len(session.registered) >= REGISTRATIONS:
            return "OPSP0008"
        session.registered[registration] = index
        return "OPSP0000"

    def _forget(self, session: KisStreamClient) -> None:
        self._unnamed.discard(session)
        if session.customer and self.sessions.get(session.customer) is session:
            del self.sessions[session.customer]

    # What goes out

    def second(self) -> None:
        """After each second of the market: what its subscribers see of it."""
        for session in list(self.sessions.values()):
            for (tr_id, _), i in session.registered.items():
                if i < 0:
                    continue
                if tr_id == TRADE and self._market.traded[i]:
                    self._send(session, TRADE, self._records.trades(i))
                elif tr_id == BOOK and self._market.phase.kind != "closed":
                    self._send(session, BOOK, [self._records.book(i)])

    def _send(self, session: KisStreamClient, tr_id: str, records: list[list[str]]) -> None:
        fault = self._faults.take(frozenset({"width"}), tr_id)
        if fault is not None:
            records = [widened(record, fault.fields) for record in records]
        self._put(session, frame(tr_id, records))

    def notify(self, notice: KisOrderNotice) -> None:
        """A receipt or a fill, to whoever registered for it; missed ones are never repeated."""
        if notice.fill is not None:
            if self._faults.take(frozenset({"lose_fills"}), self._notice_id):
                return
            if self._faults.take(frozenset({"reorder_fills"}), self._notice_id):
                self._kept_back.append(notice)  # comes after the next one, or with flush
                return
        self._send_notice(notice)
        if notice.fill and self._faults.take(frozenset({"duplicate_fills"}), self._notice_id):
            self._send_notice(notice)
        self.flush()

    def flush(self) -> None:
        while self._kept_back:
            self._send_notice(self._kept_back.pop())

    def _send_notice(self, notice: KisOrderNotice) -> None:
        customer = notice.entry.customer
        session = self.sessions.get(customer)
        if session is None or (self._notice_id, customer.key.hts_id) not in session.registered:
            return
        record = self._records.notice(notice, self._paper)
        fault = self._faults.take(frozenset({"width"}), self._notice_id)
        if fault is not None:
            record = widened(record, fault.fields)
        text = encrypted("^".join(record), session.key, session.iv)
        self._put(session, frame(self._notice_id, [record], encrypt=text))

    def _put(self, session: KisStreamClient, text: str) -> None:
        self.frames += 1
        try:
            session.queue.put_nowait(text)
        except asyncio.QueueFull:
            _cut(session)

    async def ping(self, clock: Clock, interval_s: float, drop_after: int) -> None:
        """PINGPONG to every session, for ever."""
        while True:
            await clock.sleep(interval_s)
            now = self._market.time
            text = msgspec.json.encode(
                {"header": {"tr_id": "PINGPONG", "datetime": yyyymmdd(now) + hhmmss(now)}}
            ).decode()
            for session in list(self.sessions.values()):
                if drop_after and session.unanswered >= drop_after:
                    _cut(session)
                    continue
                session.unanswered += 1
                self.pings += 1
                self._put(session, text)

    def drop(self) -> int:
        """Cut every connection without a word."""
        everybody = [*self.sessions.values(), *self._unnamed]
        for session in everybody:
            _cut(session)
            self._forget(session)
        return len(everybody)

    def stats(self) -> dict[str, Any]:
        return {
            "sessions": len(self.sessions),
            "registrations": {
                customer.key.app_key: len(session.registered)
                for customer, session in self.sessions.items()
            },
            "frames": self.frames,
            "pings": self.pings,
            "pongs": self.pongs,
        }


async def _write(session: KisStreamClient) -> None:
    while True:
        text = await session.queue.get()
        try:
            await session.socket.send_str(text)
        except ConnectionError:
            return


async def _answer(session: KisStreamClient, tr_id: str, tr_key: str, code: str) -> None:
    rt_cd, text = _ANSWERS[code]
    body: dict[str, Any] = {"rt_cd": rt_cd, "msg_cd": code, "msg1": text}
    if code == "OPSP0000":
        body["output"] = {"iv": session.iv, "key": session.key}
    header = {"tr_id": tr_id, "tr_key": tr_key, "encrypt": "N"}
    await session.socket.send_str(msgspec.json.encode({"header": header, "body": body}).decode())


def _cut(session: KisStreamClient) -> None:
    if session.transport is not None:
        session.transport.abort()
