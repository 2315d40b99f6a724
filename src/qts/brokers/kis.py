"""Broker for KIS, whose orders carry no client order id and whose fills carry no trade id.

The day's order list is authoritative. A notice of the stream only triggers a lookup, so a
duplicate, late or reordered notice has no effect.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec

from qts.brokers.config import BrokersConfig, kis_account, require_live_consent_kis
from qts.brokers.error_boundary import (
    priority_of,
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
    buying_power_query,
    cancel_body,
    number_of,
    order_id_of,
    orders_query,
    parse_holding,
    parse_order,
    place_body,
    split_order_id,
)
from qts.brokers.kis_fills import KisFillStore, KisFillTracker
from qts.brokers.venue import ExecutionReport, OrderMatches, match_orders
from qts.database import Database
from qts.domain import (
    Account,
    BrokerOrder,
    Clock,
    Fill,
    Holding,
    Instruments,
    OperationError,
    OrderRequest,
    OrderState,
    OutcomeUnknownError,
    UnreachableError,
)
from qts.venues import (
    KisClient,
    KisEndpoint,
    KisStream,
    NotSupportedError,
    RequestPriority,
    VenueRejectedError,
)

_BUYING_POWER = KisEndpoint(
    "/uapi/domestic-stock/v1/trading/inquire-psbl-order", "TTTC8908R", "VTTC8908R"
)
_MAX_PAGES = 200
_TOO_MANY = "OPSP0008"  # subscriptions, as KIS counts them


class _Placed(msgspec.Struct):
    ODNO: str
    KRX_FWDG_ORD_ORGNO: str = ""


class KisBroker:
    """KIS adapter. A key has one WebSocket: pass it as `stream`, or execution_reports opens one."""

    name = "kis"

    def __init__(
        self,
        client: KisClient,
        database: Database,
        config: BrokersConfig,
        clock: Clock,
        instruments: Instruments,
        stream: KisStream | None = None,
    ) -> None:
        require_live_consent_kis(config, client.config)
        self.key = kis_account(client.config)
        if client.config.account is None:
            raise AssertionError("kis_account refuses settings without an account")
        number = client.config.account.reveal()
        self._client = client
        self._config = config
        self._clock = clock
        self._stream = stream
        self._account = {"CANO": number[:8], "ACNT_PRDT_CD": number[8:]}
        former = hashlib.sha256(number.encode()).hexdigest()[:16]
        self._fill_store = KisFillStore(
            database,
            self.key.account,
            lambda symbol: config.costs.of(instruments[symbol]),
            former,
        )
        self._branches: dict[str, str] = {}

    async def place(self, request: OrderRequest) -> str:
        body = place_body(self._account, request)
        with translate_order_errors():
            reply = await send_before_deadline(
                self._clock,
                self._config.send_timeout_s,
                request,
                lambda before_send: self._client.call(
                    PLACE[request.side], body, priority_of(request), before_send=before_send
                ),
            )
        try:
            placed = msgspec.json.decode(reply.output, type=_Placed)
        except msgspec.DecodeError as error:
            raise OutcomeUnknownError(
                f"KIS accepted an order without an order number: {error}"
            ) from None
        broker_order_id = order_id_of(self._today(), placed.ODNO)
        self._branches[broker_order_id] = placed.KRX_FWDG_ORD_ORGNO
        return broker_order_id

    async def cancel(self, broker_order_id: str) -> None:
        branch = self._branches.get(broker_order_id) or await self._branch(broker_order_id)
        body = cancel_body(self._account, split_order_id(broker_order_id)[1], branch)
        with translate_order_errors():
            await self._client.call(CHANGE, body, RequestPriority.EXIT)

    async def find_order(
        self, request: OrderRequest, sent_at: datetime, known: frozenset[str]
    ) -> OrderMatches:
        rows = await self._rows(self._day_of(sent_at))
        margin = self._client.skew.margin  # as of these rows
        window = timedelta(seconds=self._config.find_window_s)
        between = (sent_at - margin, sent_at + window + margin)
        return match_orders((row.order for row in rows), request, between, known)

    async def orders(self, since: datetime) -> Sequence[BrokerOrder]:
        rows = await self._rows(self._day_of(since))
        first = since - self._client.skew.margin
        return [
            row.order
            for row in rows
            if row.order.state is OrderState.OPEN or row.order.placed_at >= first
        ]

    async def fills(self, since: datetime) -> Sequence[Fill]:
        rows = await self._rows(self._day_of(since))
        new = await self._fill_store.record(rows, self._clock.now())
        return [*await self._fill_store.since(since), *(fill for fill in new if not fill.price)]

    async def account(self) -> Account:
        cash, holdings = Decimal(0), list[Holding]()
        async for rows, totals in self._pages(BALANCE, balance_query(self._account)):
            with translate_decode_errors("KIS"):
                holdings += [holding for row in rows if (holding := parse_holding(row))]
                # Cash after the settlement of today's trades (D+2).
                cash = number_of(totals[0]["prvs_rcdl_excc_amt"])
        return Account(cash=cash, holdings=tuple(holdings))

    async def execution_reports(self) -> AsyncIterator[ExecutionReport]:
        stream = self._stream or KisStream(self._client, self._clock, lambda _quote: None)
        tracker = KisFillTracker(self._look_up, self._poll_fills, self._clock)

        def subscribe() -> None:
            stream.subscribe_fills(tracker.on_notice, tracker.on_connected, rejected)

        def rejected(reason: str) -> None:
            may_change = reason.startswith(_TOO_MANY)  # a wrong id stays wrong
            tracker.on_rejected(reason, subscribe if may_change else None)

        subscribe()
        task = None if self._stream else asyncio.create_task(stream.run(), name="kis fill stream")
        try:
            while True:
                for report in await tracker.next():
                    yield report
        finally:
            tracker.close()
            if task is not None:
                task.cancel()
                await asyncio.wait({task})

    # -- lookups

    async def _look_up(self, number: str) -> tuple[BrokerOrder | None, list[Fill]]:
        """Return an order of today, and its fills not reported before."""
        rows = await self._rows(self._today(), number)
        fills = await self._fill_store.record(rows, self._clock.now())
        return (rows[0].order if rows else None), fills

    async def _poll_fills(self) -> list[ExecutionReport]:
        """Return the fills of today not reported before, and the orders that they completed."""
        rows = await self._rows(self._today())
        fills = await self._fill_store.record(rows, self._clock.now())
        filled = {fill.broker_order_id for fill in fills}
        done = [row.order for row in rows if row.order.state is not OrderState.OPEN]
        return [*fills, *(order for order in done if order.broker_order_id in filled)]

    async def _branch(self, broker_order_id: str) -> str:
        day, number = split_order_id(broker_order_id)
        for row in await self._rows(day, number):
            if row.order.broker_order_id == broker_order_id:
                return row.branch
        raise VenueRejectedError(f"KIS has no order {broker_order_id}", "order_id")

    async def _rows(self, first: date, number: str = "") -> list[KisOrderRow]:
        today = self._today()
        query = orders_query(self._account, min(first, today), today, number)
        found: list[KisOrderRow] = []
        async for rows, _ in self._pages(ORDERS, query):
            with translate_decode_errors("KIS"):
                found += [order for row in rows if (order := parse_order(row, today))]
        return found

    async def _pages(
        self, endpoint: KisEndpoint, query: dict[str, str]
    ) -> AsyncIterator[tuple[list[Row], list[Row]]]:
        """Yield the rows and totals of each page."""
        area = {"CTX_AREA_FK100": "", "CTX_AREA_NK100": ""}
        for page in range(_MAX_PAGES):
            reply = await self._client.call(
                endpoint, query | area, RequestPriority.ACCOUNT, next_page=page > 0
            )
            yield _rows_of(reply.output1), _rows_of(reply.output2)
            if not reply.more:
                return
            area = {"CTX_AREA_FK100": reply.ctx_area_fk100, "CTX_AREA_NK100": reply.ctx_area_nk100}
        raise OperationError(f"KIS returned more than {_MAX_PAGES} pages of {endpoint.path}")

    def _today(self) -> date:
        """Return the venue's day, by which it dates orders."""
        return (self._clock.now() + self._client.skew.offset).astimezone(SEOUL).date()

    def _day_of(self, moment: datetime) -> date:
        """Return the first day under which the venue may list an order of this moment."""
        return (moment - self._client.skew.margin).astimezone(SEOUL).date()


def _rows_of(output: msgspec.Raw) -> list[Row]:
    try:
        found = msgspec.json.decode(output, type=list[Row] | Row | None)
    except msgspec.DecodeError as error:
        raise UnreachableError(f"KIS sent unreadable rows: {error}") from None
    return found if isinstance(found, list) else [found] if found else []


class KisOrderPreview:
    """Preview at KIS, which can only be asked for the buying power."""

    can_test = False

    def __init__(self, client: KisClient) -> None:
        self._client = client

    async def buying_power(self, request: OrderRequest) -> Decimal:
        account = self._client.config.account
        query = buying_power_query(account.reveal() if account else "", request)
        reply = await self._client.call(_BUYING_POWER, query, RequestPriority.ACCOUNT)
        with translate_decode_errors("KIS"):
            found = msgspec.json.decode(reply.output, type=dict[str, Any])
            return Decimal(str(found["nrcvb_buy_amt"]).strip())

    async def test(self, request: OrderRequest) -> None:
        raise NotSupportedError(f"KIS cannot test an order of {request.symbol}")
