"""Market data of KIS: quotes of one or thirty symbols, order book, rankings, trading days."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Any

import msgspec

from qts.domain import UnreachableError
from qts.venues.config import KisConfig
from qts.venues.kis.client import KisClient, KisEndpoint, Reply
from qts.venues.quote import BookLevel, OrderBook, Quote
from qts.venues.ratelimit.limits import RequestPriority

MAX_SYMBOLS = 30
_QUOTATIONS = "/uapi/domestic-stock/v1/quotations"
_PRICE = KisEndpoint(f"{_QUOTATIONS}/inquire-price", "FHKST01010100")
_MULTI_PRICE = KisEndpoint(f"{_QUOTATIONS}/intstock-multprice", "FHKST11300006", "")
_BOOK = KisEndpoint(f"{_QUOTATIONS}/inquire-asking-price-exp-ccn", "FHKST01010200")
_VOLUME_RANK = KisEndpoint(f"{_QUOTATIONS}/volume-rank", "FHPST01710000", "")
_HOLIDAY = KisEndpoint(f"{_QUOTATIONS}/chk-holiday", "CTCA0903R", "")

Row = dict[str, Any]


def symbols_per_call(config: KisConfig, *, multi: bool = True) -> int:
    """Return how many symbols one request can quote; paper keys have no multi-quote."""
    return MAX_SYMBOLS if multi and not config.paper else 1


class KisQuotes:
    """Read-only requests; each method sends one."""

    def __init__(self, client: KisClient, market: str = "J", *, multi: bool = True) -> None:
        self._client = client
        self._market = market
        self._multi = multi

    @property
    def per_call(self) -> int:
        """Symbols that one request can quote with this key."""
        return symbols_per_call(self._client.config, multi=self._multi)

    async def quotes(
        self, choose: Callable[[], Sequence[str]], priority: RequestPriority
    ) -> list[Quote]:
        """Quote up to `per_call` symbols in one request; `choose` is called after its grant.

        Symbols that KIS does not know are missing from the result.
        """
        chosen: list[str] = []

        def values() -> dict[str, str]:
            chosen[:] = chosen or choose()  # called once, even if the request is sent twice
            return self._one(chosen[0]) if self.per_call == 1 else self._many(chosen)

        if self.per_call == 1:
            reply = await self._client.call(_PRICE, values, priority)
            return [single_quote(chosen[0], row) for row in _rows(reply.output)]
        reply = await self._client.call(_MULTI_PRICE, values, priority)
        return _many_quotes(reply)

    async def quote(self, symbol: str, priority: RequestPriority) -> Quote:
        reply = await self._client.call(_PRICE, self._one(symbol), priority)
        (row,) = _rows(reply.output) or [{}]
        return single_quote(symbol, row)

    async def order_book(self, symbol: str, priority: RequestPriority) -> OrderBook:
        reply = await self._client.call(_BOOK, self._one(symbol), priority)
        (row,) = _rows(reply.output1) or [{}]
        return OrderBook(symbol, _levels(row, "askp"), _levels(row, "bidp"), row)

    async def volume_ranking(
        self, priority: RequestPriority = RequestPriority.ACCOUNT
    ) -> list[Row]:
        """Return the ranking by volume, with the fields of KIS."""
        values = {
            "FID_COND_MRKT_DIV_CODE": self._market,
            "FID_COND_SCR_DIV_CODE": "20171",
            "FID_INPUT_ISCD": "0000",
            "FID_DIV_CLS_CODE": "0",
            "FID_BLNG_CLS_CODE": "0",
            "FID_TRGT_CLS_CODE": "111111111",
            "FID_TRGT_EXLS_CLS_CODE": "0000000000",
            "FID_INPUT_PRICE_1": "",
            "FID_INPUT_PRICE_2": "",
            "FID_VOL_CNT": "",
            "FID_INPUT_DATE_1": "",
        }
        return _rows((await self._client.call(_VOLUME_RANK, values, priority)).output)

    async def trading_days(self, since: date) -> dict[date, bool]:
        """Return whether the market opens, by day from `since`; KIS wants at most a call a day."""
        values = {"BASS_DT": f"{since:%Y%m%d}", "CTX_AREA_FK": "", "CTX_AREA_NK": ""}
        reply = await self._client.call(_HOLIDAY, values, RequestPriority.ACCOUNT)
        return {
            datetime.strptime(row["bass_dt"], "%Y%m%d").date(): row["opnd_yn"] == "Y"  # noqa: DTZ007 - a day has no zone
            for row in _rows(reply.output)
        }

    def _many(self, symbols: Sequence[str]) -> dict[str, str]:
        values = {}
        for number, symbol in enumerate(symbols, 1):
            values[f"FID_COND_MRKT_DIV_CODE_{number}"] = self._market
            values[f"FID_INPUT_ISCD_{number}"] = symbol
        return values

    def _one(self, symbol: str) -> dict[str, str]:
        return {"FID_COND_MRKT_DIV_CODE": self._market, "FID_INPUT_ISCD": symbol}


def parse_many(body: bytes) -> list[Quote]:
    """Return the quotes in the body of a multi-quote reply."""
    return _many_quotes(msgspec.json.decode(body, type=Reply))


def _many_quotes(reply: Reply) -> list[Quote]:
    return [multi_quote(row) for row in _rows(reply.output) if row.get("inter_shrn_iscd")]


def single_quote(symbol: str, row: Row) -> Quote:
    price, volume = _number(row.get("stck_prpr")), _number(row.get("acml_vol"))
    return Quote(symbol, price, volume, 0.0, 0.0, row, "kis_rest")


def multi_quote(row: Row) -> Quote:
    return Quote(
        row["inter_shrn_iscd"],
        _number(row.get("inter2_prpr")),
        _number(row.get("acml_vol")),
        _number(row.get("inter2_bidp")),
        _number(row.get("inter2_askp")),
        row,
        "kis_rest",
    )


def _number(text: Any) -> float:
    """Parse a number, which KIS sends as text; blank: 0."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return 0.0


def _levels(row: Row, side: str) -> list[BookLevel]:
    levels = (
        BookLevel(_number(row.get(f"{side}{n}")), _number(row.get(f"{side}_rsqn{n}")))
        for n in range(1, 11)
    )
    return [level for level in levels if level.price > 0]


def _rows(output: msgspec.Raw) -> list[Row]:
    try:
        found = msgspec.json.decode(output, type=list[Row] | Row | None)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreachableError(f"KIS sent rows that cannot be parsed: {error}") from None
    if found is None:
        return []
    return found if isinstance(found, list) else [found]
