"""Checks of an order by its venue that place nothing, at KIS and at Upbit."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec

from qts.brokers.error_boundary import translate_decode_errors
from qts.brokers.kis_codec import buying_power_query
from qts.brokers.upbit_codec import place_values
from qts.domain import OrderRequest
from qts.venues import KisClient, KisEndpoint, NotSupportedError, RequestPriority, UpbitClient

_BUYING_POWER = KisEndpoint(
    "/uapi/domestic-stock/v1/trading/inquire-psbl-order", "TTTC8908R", "VTTC8908R"
)


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
