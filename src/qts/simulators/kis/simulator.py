"""KIS simulator: routes and TR ids of the gateway, market data, orders and stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from aiohttp import web

from qts.domain import Clock
from qts.simulators.config import KisSimulatorConfig, MarketConfig
from qts.simulators.kis.account_api import KisAccountApi, Page
from qts.simulators.kis.charts import KisDayChartApi, KisMinuteChartApi
from qts.simulators.kis.companies import FILES, KisFigures, master_zip
from qts.simulators.kis.frames import Records
from qts.simulators.kis.gateway import CODES, KisError, KisGateway, body_of
from qts.simulators.kis.orders import KisOrderApi
from qts.simulators.kis.products import KisProductApi, KisTradeApi
from qts.simulators.kis.profits import KisProfitApi
from qts.simulators.kis.quotes import KisQuoteApi
from qts.simulators.kis.rankings import KisIndexApi, KisRankingApi
from qts.simulators.kis.routes import Endpoint, KisApis, KisCall, routes
from qts.simulators.kis.stream import KisStreamServer
from qts.simulators.market.history import STOCK_DAYS, MarketHistory
from qts.simulators.market.markets import StockMarket
from qts.simulators.market.rules import (
    KST,
    moment_of,
    next_open,
    opens_at,
    seconds_of,
)
from qts.simulators.server import MarketClock, Simulator, reply


class KisSimulator(Simulator):
    name = "kis"

    def __init__(
        self, config: KisSimulatorConfig | None = None, clock: Clock | None = None
    ) -> None:
        self.config = config = config or KisSimulatorConfig()
        super().__init__((config.host, config.port), clock, config.market.seed)
        start = _first_second(config.market, self.clock)
        start += math.floor(config.market.skew_s)
        self.market_clock = MarketClock(self.clock, start, config.market.speed)
        self.market_clock.advance(config.market.skew_s % 1)
        self.skew_s = config.market.skew_s
        self.market = StockMarket(
            start,
            config.market.seed,
            config.market.symbols,
            config.market.surges_per_hour,
            config.market.suspended,
            config.market.always_open,
        )
        self.gateway = KisGateway(config, self.clock, self.market_clock)
        market = self.market
        self.history = MarketHistory(
            market.universe, market.table, market.seed, market.time, STOCK_DAYS
        )
        figures = KisFigures(market, self.history)
        quotes = KisQuoteApi(market, figures, config.unknown_in_batch, config.unsigned_change)
        records = Records(market, quotes)
        self.stream = KisStreamServer(self.market, self.gateway, records, self.faults, config.paper)
        self.orders = KisOrderApi(
            self.market, config.paper, self.gateway.now_ns, self.stream.notify
        )
        self.account_api = KisAccountApi(
            self.market, self.orders, config.paper, self.gateway.now_ns
        )
        self.account_api.visible_after_ms = config.visible_after_ms
        self.quotes, self.indices = quotes, KisIndexApi(market)
        self._apis = KisApis(
            quotes,
            KisMinuteChartApi(market, quotes, self.history),
            KisDayChartApi(market, quotes, figures),
            KisProductApi(market, quotes, figures),
            KisTradeApi(market, quotes),
            self.indices,
            KisRankingApi(market, quotes),
            self.account_api,
            KisProfitApi(market, self.orders, self.account_api),
            self.orders,
        )
        for _ in market.advance(start):
            self._record()

    def _record(self) -> None:
        """Keep the trades of this second for the charts and lists."""
        self.history.record(self.market, self.market.phase)
        self._apis.trades.on_second()

    # Routes

    def add_routes(self, router: web.UrlDispatcher) -> None:
        gateway = self.gateway
        router.add_post("/oauth2/tokenP", _with_errors(gateway.issue_token))
        router.add_post("/oauth2/revokeP", _with_errors(gateway.revoke_token))
        router.add_post("/oauth2/Approval", _with_errors(gateway.approve))
        router.add_post("/uapi/hashkey", _with_errors(gateway.hash_body))
        for file in FILES:
            router.add_get(f"/common/master/{file}", self._master_file)
        for path in ("/", "/tryitout", "/tryitout/{tr_id}"):
            router.add_get(path, self.stream.connect)

        for route in routes(self._apis):
            handler = self._route(route.tr_ids, route.endpoint, route.on_paper)
            router.add_route(route.method, route.path, handler)

    async def _master_file(self, request: web.Request) -> web.Response:
        """Serve a master file; KIS serves them at another host, without a key."""
        data = master_zip(self.market, request.path.rsplit("/", 1)[1])
        return web.Response(body=data, content_type="application/zip")

    def _route(
        self, tr_ids: list[str], endpoint: Endpoint, paper: bool = True
    ) -> Callable[[web.Request], Coroutine[Any, Any, web.Response]]:
        async def handler(request: web.Request) -> web.Response:
            try:
                customer = self.gateway.admit(request)
                if self.faults.at_random(self.config.random_refusals):
                    raise KisError("EGW00201")
                tr_id = self._checked_tr_id(request.headers.get("tr_id", ""), tr_ids, paper)
                values: Mapping[str, str] = (
                    {name.upper(): value for name, value in request.query.items()}
                    if request.method == "GET"
                    else await body_of(request)
                )
                page = request.headers.get("tr_cont", "")
                result = endpoint(KisCall(customer, tr_id, values, page))
            except KisError as error:
                return error.reply()
            body, more = result if isinstance(result, Page) else (result, "")
            return reply(body, headers={"tr_id": tr_id, "tr_cont": more, "gt_uid": ""})

        return handler

    def _checked_tr_id(self, tr_id: str, allowed: list[str], paper: bool) -> str:
        """Return a valid TR id; those of trading begin with V on the paper host."""
        trading = allowed[0][0] in "TC" and paper
        valid = ["V" + each[1:] for each in allowed] if self.config.paper and trading else allowed
        if self.config.paper and (not paper or (tr_id in allowed and tr_id not in valid)):
            raise KisError("EGW02006")
        if not self.config.paper and tr_id.startswith("V"):
            raise KisError("EGW02007")
        if tr_id not in valid:
            raise KisError("OPSQ0002", f"[{tr_id}]")
        return tr_id

    # Time

    def catch_up(self) -> None:
        target = self.market_clock.now()
        if target <= self.market.time:
            return
        trading = self.market.phase.kind
        for _ in self.market.advance(target):
            kind = self.market.phase.kind
            if kind == "opening" and trading == "closed":
                for customer in self.gateway.customers.values():
                    customer.account.new_day()
            self._record()
            self.orders.on_second()
            self.stream.on_second()
            if kind == "closed" and trading != "closed":
                self.orders.end_session()
            trading = kind
        self.stream.flush()

    def background(self) -> list[Any]:
        config = self.config
        return [self.stream.ping(self.clock, config.ping_interval_s, config.drop_after_pings)]

    # Control

    def stats(self) -> dict[str, Any]:
        return {
            "keys": {
                name: {
                    **customer.meter.stats(),
                    "token_issues": customer.issues,
                    "cash": customer.account.cash,
                    "locked": customer.account.locked,
                }
                for name, customer in self.gateway.customers.items()
            },
            "market": {
                "now": moment_of(self.market.time).isoformat(),
                "phase": self.market.phase.kind,
                "symbols": len(self.market.universe.codes),
                "interrupted": int((self.market.vi_until > 0).sum()),
            },
            "orders": {
                "placed": sum(entry.kind != "cancel" for entry in self.orders.entries),
                "open": len(self.orders.engine.open_orders),
                "fills": sum(
                    len(entry.order.fills)
                    for entry in self.orders.entries
                    if entry.kind != "cancel"
                ),
            },
            "stream": self.stream.stats(),
        }

    def symbols(self) -> list[str]:
        return list(self.market.universe.codes)

    def inject(self, event: str, symbol: str, values: dict[str, Any]) -> None:
        self.catch_up()
        if event == "index":
            self.indices.move(symbol, values["percent"], values["over_s"])
            return
        index = self.market.index[symbol]
        if event == "surge":
            self.market.inject_surge(index, values["percent"], values["over_s"])
        elif event == "spread":
            self.market.gaps[index] = values["ticks"]
        elif event == "halt":
            self.market.inject_halt(index, values["seconds"])
        else:
            self.market.suspend(index, event == "suspend")

    def drop_streams(self) -> int:
        return self.stream.drop()

    def rate_limited(self) -> web.Response:
        return KisError("EGW00201").reply()

    def error(self, code: str) -> web.Response:
        if code in CODES:
            return KisError(code).reply()
        return web.Response(status=500, text="Internal Server Error")

    def unknown(self) -> web.Response:
        return KisError("EGW00301").reply()

    def not_found(self) -> web.Response:
        return KisError("EGW00202").reply()


def _first_second(config: MarketConfig, clock: Clock) -> int:
    """Return the configured start, or the opening of today or the next trading day."""
    start = config.start or (clock.now() if config.always_open else None)
    if start is not None:
        return seconds_of(start if start.tzinfo else start.replace(tzinfo=KST))
    return opens_at(next_open(clock.now().astimezone(KST).date()))


def _with_errors(
    handler: Callable[[web.Request], Coroutine[Any, Any, web.Response]],
) -> Callable[[web.Request], Coroutine[Any, Any, web.Response]]:
    async def guarded(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except KisError as error:
            return error.reply()

    return guarded
