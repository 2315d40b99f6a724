"""Upbit simulator: routes and request groups of the market data, orders and streams."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from aiohttp import web
from multidict import MultiMapping

from qts.domain import Clock
from qts.simulators.config import UpbitSimulatorConfig
from qts.simulators.market.markets import CoinMarket
from qts.simulators.market.rules import KST, moment_of, seconds_of
from qts.simulators.server import MarketClock, Simulator, reply
from qts.simulators.upbit.account_api import UpbitAccountApi, UpbitCall, UpbitWalletApi
from qts.simulators.upbit.gateway import (
    UpbitCustomer,
    UpbitError,
    UpbitGateway,
    body_of,
    signed_query,
)
from qts.simulators.upbit.messages import UpbitMessages
from qts.simulators.upbit.orders import UpbitOrderApi
from qts.simulators.upbit.quotes import UNITS, UpbitCandleApi, UpbitQuoteApi
from qts.simulators.upbit.stream import UpbitStreamServer

Query = MultiMapping[str]
PublicRoute = tuple[str, str, Callable[[Query], Any]]
Handler = Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]


class UpbitSimulator(Simulator):
    name = "upbit"

    def __init__(
        self, config: UpbitSimulatorConfig | None = None, clock: Clock | None = None
    ) -> None:
        self.config = config = config or UpbitSimulatorConfig()
        super().__init__((config.host, config.port), clock, config.market.seed)
        moment = config.market.start or self.clock.now()
        start = seconds_of(moment if moment.tzinfo else moment.replace(tzinfo=KST))
        start += math.floor(config.market.skew_s)
        self.market_clock = MarketClock(self.clock, start, config.market.speed)
        self.market_clock.advance(config.market.skew_s % 1)
        self.skew_s = config.market.skew_s
        self.market = CoinMarket(
            start, config.market.seed, config.market.symbols, config.market.surges_per_hour
        )
        self.gateway = UpbitGateway(config, self._now_ns)
        self._quotes = UpbitQuoteApi(self.market)
        self.history = self._quotes.history
        self._candles = UpbitCandleApi(self.market, self._quotes)
        market_data = UpbitMessages(self.market, self._quotes, self._candles)
        self.stream = UpbitStreamServer(self.market, market_data, self.faults, self._now_ns)
        self.orders = UpbitOrderApi(
            self.market, config.duplicate_identifier, self.stream.notify, config.market.seed
        )
        for _ in self.market.advance(start):
            self._quotes.on_second()

    def _now_ns(self) -> int:
        by_market = self.config.limits_clock == "market"
        return self.market_clock.now_ns() if by_market else self.clock.monotonic_ns()

    # Routes

    def add_routes(self, router: web.UrlDispatcher) -> None:
        quotes, candles = self._quotes, self._candles
        periods: list[PublicRoute] = [
            (f"candles/{kind}", "candle", partial(candles.periods, kind=kind))
            for kind in ("weeks", "months", "years")
        ]
        minutes: list[PublicRoute] = [
            (f"candles/minutes/{unit}", "candle", partial(candles.minutes, unit=unit))
            for unit in UNITS
        ]
        others: list[PublicRoute] = [
            ("market/all", "market", quotes.markets),
            ("ticker", "ticker", lambda q: _each(quotes.ticker, quotes.indexes(_markets(q)))),
            ("ticker/all", "ticker", self._all_tickers),
            ("orderbook", "orderbook", lambda q: quotes.order_books(q, _markets(q))),
            (
                "orderbook/instruments",
                "orderbook",
                lambda q: _each(quotes.instrument, quotes.indexes(_markets(q))),
            ),
            (
                "orderbook/supported_levels",
                "orderbook",
                lambda q: _each(quotes.supported_levels, quotes.indexes(_markets(q))),
            ),
            ("trades/ticks", "trade", quotes.trade_list),
            ("candles/seconds", "candle", candles.seconds),
            ("candles/days", "candle", candles.days),
            ("candles/minutes/{unit}", "candle", _no_such_unit),
        ]
        for path, group, endpoint in (*minutes, *periods, *others):
            router.add_get(f"/v1/{path}", self._public(group, endpoint))
        self._add_private_routes(router)
        router.add_get("/websocket/v1", self._socket)
        router.add_get("/websocket/v1/private", self._socket)

    def _add_private_routes(self, router: web.UrlDispatcher) -> None:
        accounts = UpbitAccountApi(self.market, self.orders)
        wallets = UpbitWalletApi(self.market)
        for method, path, group, act in (
            ("GET", "accounts", "default", accounts.accounts),
            ("POST", "orders", "order", accounts.place),
            ("POST", "orders/test", "order-test", accounts.test),
            ("POST", "orders/cancel_and_new", "order", accounts.cancel_and_new),
            ("GET", "order", "default", accounts.order),
            ("DELETE", "order", "default", accounts.cancel),
            ("GET", "orders", "default", accounts.listed),
            ("GET", "orders/open", "default", accounts.open),
            ("DELETE", "orders/open", "order-cancel-all", accounts.cancel_open),
            ("GET", "orders/closed", "default", accounts.closed),
            ("GET", "orders/uuids", "default", accounts.orders_by_id),
            ("DELETE", "orders/uuids", "default", accounts.cancel_by_id),
            ("GET", "orders/chance", "default", accounts.chance),
            ("GET", "status/wallet", "default", wallets.status),
            ("GET", "api_keys", "default", wallets.keys),
            ("GET", "deposits", "default", wallets.none),
            ("GET", "deposit", "default", wallets.no_deposit),
            ("GET", "deposits/coin_addresses", "default", wallets.none),
            ("GET", "deposits/coin_address", "default", wallets.no_address),
            ("GET", "deposits/chance/coin", "default", wallets.deposit_chance),
            ("GET", "withdraws", "default", wallets.none),
            ("GET", "withdraw", "default", wallets.no_withdrawal),
            ("GET", "withdraws/coin_addresses", "default", wallets.none),
            ("GET", "withdraws/chance", "default", wallets.withdrawal_chance),
        ):
            router.add_route(method, f"/v1/{path}", self._private(group, act))

    def _public(self, group: str, endpoint: Callable[[Query], Any]) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            headers: dict[str, str] = {}
            try:
                scope = f"ip {request.remote}"
                headers = self.gateway.admit(scope, group)
                if "Origin" in request.headers:
                    self.gateway.admit(scope, "origin")
                self._reject_at_random()
                return reply(endpoint(request.query), headers=headers)
            except UpbitError as error:
                return _with(error.reply(), headers)

        return handler

    def _private(self, group: str, act: Callable[[UpbitCall], web.Response]) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            headers: dict[str, str] = {}
            try:
                body = await body_of(request)
                customer = self._customer(request, body, group)
                headers = self.gateway.admit(f"key {customer.key.access_key}", group)
                self._reject_at_random()
                lists = {name: request.query.getall(name) for name in request.query}
                lists |= {name: each for name, each in body.items() if isinstance(each, list)}
                return _with(act(UpbitCall(customer, body or request.query, lists)), headers)
            except UpbitError as error:
                return _with(error.reply(), headers)

        return handler

    def _customer(self, request: web.Request, body: dict[str, Any], group: str) -> UpbitCustomer:
        """Return who signed a request; a refusal shows what is left too."""
        try:
            return self.gateway.authenticate(
                request.headers.get("Authorization", ""), signed_query(request, body)
            )
        except UpbitError as error:
            error.headers = self.gateway.admit(f"ip {request.remote}", group)
            raise

    def _reject_at_random(self) -> None:
        if self.faults.at_random(self.config.random_refusals):
            raise UpbitError(429, "too_many_requests", "Too many API requests")

    # Quotation

    def _all_tickers(self, query: Mapping[str, str]) -> list[dict[str, Any]]:
        currencies = query.get("quote_currencies", "KRW").split(",")
        codes = enumerate(self.market.universe.codes)
        return [self._quotes.ticker(i) for i, code in codes if code.split("-")[0] in currencies]

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        customer, header = None, request.headers.get("Authorization", "")
        scope = f"ip {request.remote}"
        try:
            if request.path.endswith("/private"):
                customer = self.gateway.authenticate(header, None)
            elif header:  # the public socket needs none: one that is not valid is ignored
                with contextlib.suppress(UpbitError):
                    customer = self.gateway.authenticate(header, None)
            if customer is not None:
                scope = f"key {customer.key.access_key}"
            self.gateway.admit(scope, "websocket-connect")
        except UpbitError as error:
            return error.reply()
        return await self.stream.serve(request, customer, self.config.idle_s)

    # Time

    def catch_up(self) -> None:
        for _ in self.market.advance(self.market_clock.now()):
            self._quotes.on_second()
            self.orders.on_second()
            self.stream.on_second()
        self.stream.flush()

    # Control

    def stats(self) -> dict[str, Any]:
        entries = self.orders.entries.values()
        return {
            "keys": self.gateway.stats(),
            "market": {
                "now": moment_of(self.market.time).isoformat(),
                "symbols": len(self.market.universe.codes),
            },
            "orders": {
                "placed": len(entries),
                "open": len(self.orders.engine.open_orders),
                "fills": sum(len(entry.order.fills) for entry in entries),
            },
            "stream": {"sessions": len(self.stream.clients), "frames": self.stream.frames},
        }

    def symbols(self) -> list[str]:
        return list(self.market.universe.codes)

    def inject(self, event: str, symbol: str, values: dict[str, Any]) -> None:
        if event == "index":
            raise KeyError(symbol)  # Upbit has none
        index = self.market.index[symbol]
        self.catch_up()
        if event == "surge":
            self.market.inject_surge(index, values["percent"], values["over_s"])
        elif event == "spread":
            self.market.gaps[index] = values["ticks"]
        else:
            self.market.suspend(index, event in ("suspend", "halt"))

    def drop_streams(self) -> int:
        return self.stream.drop()

    def rate_limited(self) -> web.Response:
        left = {"Remaining-Req": "group=default; min=1800; sec=0"}
        return UpbitError(429, "too_many_requests", "Too many API requests", left).reply()

    def error(self, code: str) -> web.Response:
        return UpbitError(500, code or "internal_server_error").reply()

    def not_found(self) -> web.Response:
        return UpbitError(404, 404, "Not found").reply()

    def unknown(self) -> web.Response:
        return UpbitError(500, "server_error", "try again later").reply()


def _each(method: Callable[[int], dict[str, Any]], indexes: list[int]) -> list[dict[str, Any]]:
    return [method(index) for index in indexes]


def _markets(query: Query) -> str:
    """Return the markets of a query, in one parameter or in several."""
    return ",".join(query.getall("markets", []))


def _no_such_unit(_query: Query) -> None:
    raise UpbitError(400, 400, f"unit is one of {', '.join(map(str, UNITS))}")


def _with(response: web.Response, headers: dict[str, str]) -> web.Response:
    response.headers.update(headers)
    return response
