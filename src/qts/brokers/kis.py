"""KIS as a broker: no names of ours on its orders, no numbers on its fills.

The day's list of orders decides everything. Notices of the stream only say where to look, so
that one that comes twice, late or out of order changes nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal

import msgspec

from qts.brokers.broker import ExecutionReport, OrderMatches
from qts.brokers.config import BrokersConfig, require_live_consent_kis
from qts.brokers.error_boundary import (
    send_before_deadline,
    translate_decode_errors,
    translate_order_errors,
)
from qts.brokers.kis_codec import (
    BALANCE,
    CHANGE,
    ORDERS,
    PLACE,
    SEOUL,
    KisOrderRow,
    Row,
    balance_query,
    cancel_body,
    number_of,
    order_id_of,
    orders_query,
    parse_holding,
    parse_order,
    place_body,
    split_order_id,
)
from qts.brokers.kis_fill_tracker import KisFillTracker
from qts.brokers.kis_fills import KisFillStore
from qts.database import Database
from qts.domain import (
    Account,
    BrokerOrder,
    Clock,
    Fill,
    Holding,
    Market,
    OperationError,
    OrderRequest,
    OrderState,
    OutcomeUnknownError,
    RefusedError,
    UnreachableError,
)
from qts.venues import KisClient, KisEndpoint, KisStream, RequestPriority, VenueRejectedError

_EARLY = timedelta(seconds=2)  # KIS dates to the second, by its own clock
_PAGES = 200


class _Placed(msgspec.Struct):
    ODNO: str
    KRX_FWDG_ORD_ORGNO: str = ""


class KisBroker:
    """`stream` is the key's one WebSocket, if somebody else runs it; without, notices run one."""

    name = "kis"

    def __init__(
        self,
        client: KisClient,
        database: Database,
        config: BrokersConfig,
        clock: Clock,
        stream: KisStream | None = None,
    ) -> None:
        require_live_consent_kis(config, client.config)
        if client.config.account is None:
            raise RefusedError("venues.kis.account is not set; orders need it")
        number = client.config.account.reveal()
        self._client = client
        self._config = config
        self._clock = clock
        self._stream = stream
        self._account = {"CANO": number[:8], "ACNT_PRDT_CD": number[8:]}
        digest = hashlib.sha256(number.encode()).hexdigest()[:16]
        self._steps = KisFillStore(database, digest, config.costs.of(Market.KRX))
        self._branches: dict[str, str] = {}

    async def place(self, request: OrderRequest) -> str:
        body = place_body(self._account, request)
        with translate_order_errors():
            reply = await send_before_deadline(
                self._clock,
                self._config.send_timeout_s,
                lambda leaving: self._client.call(
                    PLACE[request.side], body, RequestPriority.ORDER, leaving=leaving
                ),
            )
        try:
            placed = msgspec.json.decode(reply.output, type=_Placed)
        except msgspec.DecodeError as error:
            raise OutcomeUnknownError(f"KIS took an order and gave no number: {error}") from None
        order_id = order_id_of(self._today(), placed.ODNO)
        self._branches[order_id] = placed.KRX_FWDG_ORD_ORGNO
        return order_id

    async def cancel(self, order_id: str) -> None:
        branch = self._branches.get(order_id) or await self._branch(order_id)
        body = cancel_body(self._account, split_order_id(order_id)[1], branch)
        with translate_order_errors():
            await self._client.call(CHANGE, body, RequestPriority.ORDER)

    async def find_order(
        self, request: OrderRequest, sent_at: datetime, known: frozenset[str]
    ) -> OrderMatches:
        first, last = sent_at - _EARLY, sent_at + timedelta(seconds=self._config.find_window_s)
        rows = await self._rows(sent_at.astimezone(SEOUL).date())
        return OrderMatches(
            tuple(
                row.order
                for row in rows
                if first <= row.order.placed_at <= last
                and row.order.broker_order_id not in known
                and is_same(row.order, request)
            )
        )

    async def orders(self, since: datetime) -> Sequence[BrokerOrder]:
        rows = await self._rows(since.astimezone(SEOUL).date())
        return [
            row.order
            for row in rows
            if row.order.state is OrderState.OPEN
            or row.order.placed_at >= since.replace(microsecond=0)
        ]

    async def fills(self, since: datetime) -> Sequence[Fill]:
        rows = await self._rows(since.astimezone(SEOUL).date())
        await self._steps.take(rows, self._clock.now())
        return await self._steps.since(since)

    async def account(self) -> Account:
        cash, holdings = Decimal(0), list[Holding]()
        async for rows, totals in self._pages(BALANCE, balance_query(self._account)):
            with translate_decode_errors("KIS"):
                holdings += [holding for row in rows if (holding := parse_holding(row))]
                # The cash when today's trades have been paid for, two days on.
                cash = number_of(totals[0]["prvs_rcdl_excc_amt"])
        return Account(cash=cash, holdings=tuple(holdings))

    async def execution_reports(self) -> AsyncIterator[ExecutionReport]:
        shared = self._stream is not None
        stream = self._stream or KisStream(self._client, self._clock, lambda _quote: None)
        notices = KisFillTracker(self._look, self._clock)
        stream.subscribe_fills(notices.heard, notices.live)
        running = None if shared else asyncio.create_task(stream.run(), name="kis notices")
        try:
            while True:
                for notice in await notices.next():
                    yield notice
        finally:
            notices.close()
            if running is not None:
                running.cancel()
                await asyncio.wait({running})

    # -- looking

    async def _look(self, number: str) -> tuple[BrokerOrder | None, list[Fill]]:
        """One order of today, and those of its fills that we did not know."""
        rows = await self._rows(self._today(), number)
        fills = await self._steps.take(rows, self._clock.now())
        return (rows[0].order if rows else None), fills

    async def _branch(self, order_id: str) -> str:
        day, number = split_order_id(order_id)
        for row in await self._rows(day, number):
            if row.order.broker_order_id == order_id:
                return row.branch
        raise VenueRejectedError(f"KIS has no order {order_id}", "order_id")

    async def _rows(self, first: date, number: str = "") -> list[KisOrderRow]:
        today = self._today()
        query = orders_query(self._account, min(first, today), today, number)
        found: list[KisOrderRow] = []
        async for rows, _ in self._pages(ORDERS, query):
            with translate_decode_errors("KIS"):
                found += [order for row in rows if (order := parse_order(row, today))]
        return found

    async def _pages(
        self, service: KisEndpoint, query: dict[str, str]
    ) -> AsyncIterator[tuple[list[Row], list[Row]]]:
        """Rows and totals, page by page."""
        area = {"CTX_AREA_FK100": "", "CTX_AREA_NK100": ""}
        for page in range(_PAGES):
            reply = await self._client.call(
                service, query | area, RequestPriority.ACCOUNT, next_page=page > 0
            )
            yield _rows_of(reply.output1), _rows_of(reply.output2)
            if not reply.more:
                return
            area = {"CTX_AREA_FK100": reply.ctx_area_fk100, "CTX_AREA_NK100": reply.ctx_area_nk100}
        raise OperationError(f"KIS answered more than {_PAGES} pages of {service.path}")

    def _today(self) -> date:
        return self._clock.now().astimezone(SEOUL).date()


def is_same(order: BrokerOrder, request: OrderRequest) -> bool:
    """Whether the order could be what was asked for."""
    asked = (request.symbol, request.side, request.type, request.quantity, request.price)
    return asked == (order.symbol, order.side, order.type, order.quantity, order.price)


def _rows_of(output: msgspec.Raw) -> list[Row]:
    try:
        found = msgspec.json.decode(output, type=list[Row] | Row | None)
    except msgspec.DecodeError as error:
        raise UnreachableError(f"KIS answered rows of an unknown form: {error}") from None
    return found if isinstance(found, list) else [found] if found else []
