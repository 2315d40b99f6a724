"""Market data of KIS: quotes of one or thirty symbols, order book, rankings, trading days."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Any

import msgspec

from qts.domain import BookLevel, OrderBook, UnreachableError
from qts.venues.config import KisConfig
from qts.venues.kis.client import KisClient, KisEndpoint, Reply
from qts.venues.kis.frames import FALLING
from qts.venues.quote import IndexQuote, Quote
from qts.venues.ratelimit.limits import RequestPriority

MAX_SYMBOLS = 30
_QUOTATIONS = "/uapi/domestic-stock/v1/quotations"
_PRICE = KisEndpoint(f"{_QUOTATIONS}/inquire-price", "FHKST01010100")
_MULTI_PRICE = KisEndpoint(f"{_QUOTATIONS}/intstock-multprice", "FHKST11300006", "")
_BOOK = KisEndpoint(f"{_QUOTATIONS}/inquire-asking-price-exp-ccn", "FHKST01010200")
_INDEX = KisEndpoint(f"{_QUOTATIONS}/inquire-index-price", "FHPUP02100000", "")
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
            return [single_quote(chosen[0], row) for row in parse_rows(reply.output)]
        reply = await self._client.call(_MULTI_PRICE, values, priority)
        return multi_quotes(reply)

    async def quote(self, symbol: str, priority: RequestPriority) -> Quote:
        reply = await self._client.call(_PRICE, self._one(symbol), priority)
        (row,) = parse_rows(reply.output) or [{}]
        return single_quote(symbol, row)

    async def order_book(self, symbol: str, priority: RequestPriority) -> OrderBook:
        reply = await self._client.call(_BOOK, self._one(symbol), priority)
        (row,) = parse_rows(reply.output1) or [{}]
        return OrderBook(symbol, _levels(row, "bidp"), _levels(row, "askp"))

    async def index(self, code: str, priority: RequestPriority) -> IndexQuote:
        """Return an index by its code at KIS; a code that KIS does not know has the value 0."""
        values = {"FID_COND_MRKT_DIV_CODE": "U", "FID_INPUT_ISCD": code}
        (row,) = parse_rows((await self._client.call(_INDEX, values, priority)).output) or [{}]
        change = _number(row.get("bstp_nmix_prdy_ctrt")) / 100
        if row.get("prdy_vrss_sign") in FALLING:  # the change comes with or without its sign
            change = -abs(change)
        return IndexQuote(code, _number(row.get("bstp_nmix_prpr")), change)

    async def trading_days(self, since: date) -> dict[date, bool]:
        """Return whether the market opens, by day from `since`; KIS wants at most a call a day."""
        values = {"BASS_DT": f"{since:%Y%m%d}", "CTX_AREA_FK": "", "CTX_AREA_NK": ""}
        reply = await self._client.call(_HOLIDAY, values, RequestPriority.ACCOUNT)
        return {
            datetime.strptime(row["bass_dt"], "%Y%m%d").date(): row["opnd_yn"] == "Y"  # noqa: DTZ007 - a day has no zone
            for row in parse_rows(reply.output)
        }

    def _many(self, symbols: Sequence[str]) -> dict[str, str]:
        values = {}
        for number, symbol in enumerate(symbols, 1):
            values[f"FID_COND_MRKT_DIV_CODE_{number}"] = self._market
            values[f"FID_INPUT_ISCD_{number}"] = symbol
        return values

    def _one(self, symbol: str) -> dict[str, str]:
        return {"FID_COND_MRKT_DIV_CODE": self._market, "FID_INPUT_ISCD": symbol}


def multi_quotes(reply: Reply) -> list[Quote]:
    return [multi_quote(row) for row in parse_rows(reply.output) if row.get("inter_shrn_iscd")]


def single_quote(symbol: str, row: Row) -> Quote:
    price, volume = _number(row.get("stck_prpr")), _number(row.get("acml_vol"))
    base = _number(row.get("stck_sdpr"))
    return Quote(symbol, price, volume, 0.0, 0.0, row, "kis_rest", base=base)


def multi_quote(row: Row) -> Quote:
    return Quote(
        row["inter_shrn_iscd"],
        _number(row.get("inter2_prpr")),
        _number(row.get("acml_vol")),
        _number(row.get("inter2_bidp")),
        _number(row.get("inter2_askp")),
        row,
        "kis_rest",
        base=_number(row.get("inter2_sdpr")) or _number(row.get("inter2_prdy_clpr")),
    )


def _number(text: Any) -> float:
    """Parse a number, which KIS sends as text; blank: 0."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return 0.0


def _levels(row: Row, side: str) -> tuple[BookLevel, ...]:
    levels = (
        BookLevel(_number(row.get(f"{side}{n}")), _number(row.get(f"{side}_rsqn{n}")))
        for n in range(1, 11)
    )
    return tuple(level for level in levels if level.price > 0)


def parse_rows(output: msgspec.Raw) -> list[Row]:
    """Return the rows of one output of a reply."""
    try:
        found = msgspec.json.decode(output, type=list[Row] | Row | None)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreachableError(f"KIS sent rows that cannot be parsed: {error}") from None
    if found is None:
        return []
    return found if isinstance(found, list) else [found]
