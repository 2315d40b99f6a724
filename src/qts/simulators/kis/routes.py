"""Paths and TR ids of the simulated KIS, and the method that answers each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from qts.simulators.kis.account_api import KisAccountApi, Page, check_account
from qts.simulators.kis.charts import KisDayChartApi, KisMinuteChartApi
from qts.simulators.kis.gateway import KisCustomer, names, required, success
from qts.simulators.kis.orders import KisOrderApi
from qts.simulators.kis.products import KisProductApi, KisTradeApi
from qts.simulators.kis.profits import KisProfitApi
from qts.simulators.kis.quotes import KisQuoteApi
from qts.simulators.kis.rankings import KisIndexApi, KisRankingApi
from qts.simulators.matching import Side

_STOCK = "/uapi/domestic-stock/v1/"


class KisApis(NamedTuple):
    """The parts of the simulator that answer requests."""

    quotes: KisQuoteApi
    minutes: KisMinuteChartApi
    days: KisDayChartApi
    products: KisProductApi
    trades: KisTradeApi
    indices: KisIndexApi
    rankings: KisRankingApi
    accounts: KisAccountApi
    profits: KisProfitApi
    orders: KisOrderApi


class KisCall(NamedTuple):
    customer: KisCustomer
    tr_id: str
    values: Mapping[str, str]
    page: str


Endpoint = Callable[[KisCall], dict[str, Any] | Page]


class KisRoute(NamedTuple):
    path: str
    tr_ids: list[str]
    """The current one, then older ones that are still accepted."""
    endpoint: Endpoint
    on_paper: bool
    method: str = "GET"


def routes(apis: KisApis) -> list[KisRoute]:
    public = [
        ("quotations/inquire-price", "FHKST01010100", apis.quotes.price, True),
        ("quotations/inquire-price-2", "FHPST01010000", apis.products.second_price, False),
        (
            "quotations/inquire-asking-price-exp-ccn",
            "FHKST01010200",
            apis.quotes.order_book,
            True,
        ),
        ("quotations/intstock-multprice", "FHKST11300006", apis.quotes.many, False),
        ("quotations/inquire-ccnl", "FHKST01010300", apis.trades.last, True),
        ("quotations/inquire-time-itemconclusion", "FHPST01060000", apis.trades.until, True),
        ("quotations/inquire-daily-price", "FHKST01010400", apis.days.recent, True),
        ("quotations/inquire-daily-itemchartprice", "FHKST03010100", apis.days.periods, True),
        ("quotations/inquire-investor", "FHKST01010900", apis.days.investors, True),
        (
            "quotations/inquire-time-itemchartprice",
            "FHKST03010200",
            apis.minutes.minutes_of_today,
            True,
        ),
        (
            "quotations/inquire-time-dailychartprice",
            "FHKST03010230",
            apis.minutes.past_minutes,
            False,
        ),
        ("quotations/search-info", "CTPF1604R", apis.products.info, False),
        ("quotations/search-stock-info", "CTPF1002R", apis.products.stock_info, False),
        ("quotations/inquire-index-price", "FHPUP02100000", apis.indices.price, False),
        ("quotations/volume-rank", "FHPST01710000", apis.rankings.by_volume, False),
        ("ranking/fluctuation", "FHPST01700000", apis.rankings.by_change, False),
        ("quotations/inquire-vi-status", "FHPST01390000", apis.rankings.interrupted, False),
        ("quotations/chk-holiday", "CTCA0903R", apis.rankings.holidays, False),
    ]
    accounts, profits = apis.accounts, apis.profits
    lists = [
        (
            "inquire-daily-ccld",
            "TTTC0081R CTSC9215R TTTC8001R CTSC9115R",
            accounts.executions,
            True,
        ),
        ("inquire-balance", "TTTC8434R", accounts.balance, True),
        ("inquire-psbl-rvsecncl", "TTTC0084R TTTC8036R", accounts.cancelable, False),
        ("inquire-balance-rlz-pl", "TTTC8494R", profits.balance, False),
        ("inquire-period-profit", "TTTC8708R", profits.by_day, False),
        ("inquire-period-trade-profit", "TTTC8715R", profits.by_trade, False),
    ]
    single = [
        ("inquire-psbl-order", "TTTC8908R", accounts.buying_power, True),
        ("inquire-psbl-sell", "TTTC8408R", accounts.sellable, False),
    ]
    return [
        *(_route(path, tr, _public(method), paper) for path, tr, method, paper in public),
        *(_route(f"trading/{path}", tr, _paged(m), paper) for path, tr, m, paper in lists),
        *(_route(f"trading/{path}", tr, _private(m), paper) for path, tr, m, paper in single),
        *_order_routes(apis.orders),
        *_overseas_routes(),
    ]


def _order_routes(orders: KisOrderApi) -> list[KisRoute]:
    def place(call: KisCall) -> dict[str, Any]:
        side: Side = "buy" if call.tr_id[-2] == "2" else "sell"
        return orders.place(call.customer, call.values, side)

    cash = "TTTC0011U TTTC0012U TTTC0801U TTTC0802U"
    change = _private(orders.revise_or_cancel)
    return [
        _route("trading/order-cash", cash, place, True)._replace(method="POST"),
        _route("trading/order-rvsecncl", "TTTC0013U TTTC0803U", change, True)._replace(
            method="POST"
        ),
    ]


# No overseas stock is listed here, and no customer holds any.
_OVERSEAS_PRICE = names("rsym zdiv base pvol last sign diff rate tvol tamt ordy")
_OVERSEAS_PRESENT = names("""
    pchs_amt_smtl evlu_amt_smtl evlu_pfls_amt_smtl dncl_amt cma_evlu_amt tot_dncl_amt etc_mgna
    wdrw_psbl_tot_amt frcr_evlu_tota evlu_erng_rt1 pchs_amt_smtl_amt evlu_amt_smtl_amt
    tot_evlu_pfls_amt tot_asst_amt buy_mgn_amt mgna_tota frcr_use_psbl_amt ustl_sll_amt_smtl
    ustl_buy_amt_smtl tot_frcr_cblc_smtl tot_loan_amt
""")
_OVERSEAS_BALANCE = names("""
    frcr_pchs_amt1 ovrs_rlzt_pfls_amt ovrs_tot_pfls rlzt_erng_rt tot_evlu_pfls_amt tot_pftrt
    frcr_buy_amt_smtl1 ovrs_rlzt_pfls_amt2 frcr_buy_amt_smtl2
""")


def _overseas_price(query: Mapping[str, str]) -> dict[str, Any]:
    """Return the blank quote that the venue sends for a symbol it does not know."""
    required(query, "EXCD")
    required(query, "SYMB")
    return success({"output": dict.fromkeys(_OVERSEAS_PRICE, "")})


def _overseas_present_balance(customer: KisCustomer, query: Mapping[str, str]) -> dict[str, Any]:
    check_account(customer, query)
    total = dict.fromkeys(_OVERSEAS_PRESENT, "0")
    return success({"output1": [], "output2": [], "output3": total})


def _overseas_balance(customer: KisCustomer, query: Mapping[str, str], _page: str) -> Page:
    return _overseas_empty(
        customer, query, {"output1": [], "output2": dict.fromkeys(_OVERSEAS_BALANCE, "0")}
    )


def _overseas_orders(customer: KisCustomer, query: Mapping[str, str], _page: str) -> Page:
    return _overseas_empty(customer, query, {"output": []})


def _overseas_empty(
    customer: KisCustomer, query: Mapping[str, str], outputs: dict[str, Any]
) -> Page:
    check_account(customer, query)
    keys = {"ctx_area_fk200": " " * 200, "ctx_area_nk200": " " * 200}
    return Page(success({**keys, **outputs}, "KIOK0510", "조회가 완료되었습니다"), "D")


def _overseas_routes() -> list[KisRoute]:
    trading = "/uapi/overseas-stock/v1/trading/"
    return [
        KisRoute(
            "/uapi/overseas-price/v1/quotations/price",
            ["HHDFS00000300"],
            _public(_overseas_price),
            True,
        ),
        KisRoute(
            trading + "inquire-present-balance",
            ["CTRP6504R"],
            _private(_overseas_present_balance),
            True,
        ),
        KisRoute(trading + "inquire-balance", ["TTTS3012R"], _paged(_overseas_balance), True),
        KisRoute(trading + "inquire-nccs", ["TTTS3018R"], _paged(_overseas_orders), True),
        KisRoute(trading + "inquire-ccnl", ["TTTS3035R"], _paged(_overseas_orders), True),
    ]


def _route(path: str, tr_ids: str, endpoint: Endpoint, on_paper: bool) -> KisRoute:
    return KisRoute(_STOCK + path, tr_ids.split(), endpoint, on_paper)


def _public(method: Callable[[Mapping[str, str]], dict[str, Any]]) -> Endpoint:
    return lambda call: method(call.values)


def _private(method: Callable[[KisCustomer, Mapping[str, str]], dict[str, Any]]) -> Endpoint:
    return lambda call: method(call.customer, call.values)


def _paged(method: Callable[[KisCustomer, Mapping[str, str], str], Page]) -> Endpoint:
    return lambda call: method(call.customer, call.values, call.page)
