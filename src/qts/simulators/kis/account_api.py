"""KIS account requests: executions, open orders, balance and buying power, page by page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from qts.simulators.account import SimulatedHolding
from qts.simulators.kis.gateway import KisCustomer, KisError, success
from qts.simulators.kis.orders import ORGNO, KisOrderApi, KisOrderEntry, day_of, whole
from qts.simulators.market.sessions import hhmmss
from qts.simulators.market.stocks import StockMarket

_SIDE = {"sell": ("01", "현금매도"), "buy": ("02", "현금매수")}


class Page(NamedTuple):
    values: dict[str, Any]
    tr_cont: str


class KisAccountApi:
    def __init__(
        self, market: StockMarket, orders: KisOrderApi, paper: bool, now_ns: Callable[[], int]
    ) -> None:
        self._market = market
        self._orders = orders
        self._paper = paper
        self._now_ns = now_ns
        self.visible_after_ms = 0

    # inquire-daily-ccld, inquire-psbl-rvsecncl

    def executions(self, customer: KisCustomer, query: Mapping[str, str], page: str) -> Page:
        entries = [
            entry
            for entry in self._of(customer, query)
            if self._matches(entry, query) and self._is_visible(entry)
        ]
        if query.get("INQR_DVSN", "00") == "00":
            entries.reverse()
        filled = sum(e.order.filled for e in entries if e.kind != "cancel")
        paid = sum(e.order.paid for e in entries if e.kind != "cancel")
        total = {
            "tot_ord_qty": str(sum(entry.quantity for entry in entries)),
            "tot_ccld_qty": str(filled),
            "tot_ccld_amt": str(paid),
            "prsm_tlex_smtl": "0",
            "pchs_avg_pric": f"{paid / filled if filled else 0:.4f}",
        }
        size = 15 if self._paper else 100
        rows = [self._row(entry) for entry in entries]
        return _paged(rows, size, query, page, total)

    def cancelable(self, customer: KisCustomer, query: Mapping[str, str], page: str) -> Page:
        rows = [
            self._row(entry) | {"psbl_qty": str(entry.order.remaining)}
            for entry in self._of(customer, query)
            if entry.kind != "cancel" and entry.order.open
        ]
        result = _paged(rows, 50, query, page, {})
        result.values["output"] = result.values.pop("output1")
        del result.values["output2"]
        return result

    def _of(self, customer: KisCustomer, query: Mapping[str, str]) -> list[KisOrderEntry]:
        _check_account(customer, query)
        return [entry for entry in self._orders.entries if entry.customer is customer]

    def _is_visible(self, entry: KisOrderEntry) -> bool:
        return self._now_ns() - entry.accepted_ns >= self.visible_after_ms * 10**6

    def _matches(self, entry: KisOrderEntry, query: Mapping[str, str]) -> bool:
        order, side = entry.order, query.get("SLL_BUY_DVSN_CD", "00")
        number, code = query.get("ODNO", ""), query.get("PDNO", "")
        done = query.get("CCLD_DVSN", "00")
        first, last = query.get("INQR_STRT_DT", ""), query.get("INQR_END_DT", "99999999")
        return (
            first <= day_of(entry) <= last
            and side in ("", "00", _SIDE[order.side][0])
            and code in ("", self._market.universe.codes[order.index])
            and (not number or number.lstrip("0") == str(entry.number))
            and (done != "01" or order.filled > 0)
            and (done != "02" or order.open)
        )

    def _row(self, entry: KisOrderEntry) -> dict[str, str]:
        order, is_cancel = entry.order, entry.kind == "cancel"
        filled, paid = (0, 0) if is_cancel else (order.filled, order.paid)
        side, side_name = _SIDE[order.side]
        return {
            "ord_dt": day_of(entry),
            "ord_gno_brno": ORGNO[self._paper],
            "odno": f"{entry.number:010}",
            "orgn_odno": f"{entry.parent.number:010}" if entry.parent else "",
            "ord_dvsn_name": "지정가" if entry.price else "시장가",
            "sll_buy_dvsn_cd": side,
            "sll_buy_dvsn_cd_name": side_name + ("취소" if is_cancel else ""),
            "pdno": self._market.universe.codes[order.index],
            "prdt_name": self._market.universe.names[order.index],
            "ord_qty": str(entry.quantity),
            "ord_unpr": str(entry.price),
            "ord_tmd": hhmmss(entry.at),
            "tot_ccld_qty": str(filled),
            "avg_prvs": f"{paid / filled if filled else 0:.4f}",
            "cncl_yn": "Y" if is_cancel else "N",
            "tot_ccld_amt": str(paid),
            "loan_dt": "",
            "ordr_empno": "OpnAPI",
            "ord_dvsn_cd": entry.division,
            "cncl_cfrm_qty": str(entry.quantity if is_cancel else order.cancelled),
            "rmn_qty": "0" if is_cancel else str(order.remaining),
            "rjct_qty": "0",
            "ccld_cndt_name": "없음",
            "excg_dvsn_cd": "02",
            "excg_id_dvsn_Cd": "KRX",
        }

    # inquire-balance, inquire-psbl-order

    def balance(self, customer: KisCustomer, query: Mapping[str, str], page: str) -> Page:
        _check_account(customer, query)
        account = customer.account
        rows = [self._holding(i, h) for i, h in account.holdings.items() if _shows(h)]
        worth = sum(h.quantity * int(self._market.price[i]) for i, h in account.holdings.items())
        cost = sum(h.cost for h in account.holdings.values())
        total = {
            "dnca_tot_amt": str(account.cash),
            "nxdy_excc_amt": str(account.cash),
            "prvs_rcdl_excc_amt": str(account.cash),
            "thdt_buy_amt": str(account.bought_today),
            "thdt_sll_amt": str(account.sold_today),
            "scts_evlu_amt": str(worth),
            "tot_evlu_amt": str(account.cash + worth),
            "nass_amt": str(account.cash + worth),
            "pchs_amt_smtl_amt": str(cost),
            "evlu_amt_smtl_amt": str(worth),
            "evlu_pfls_smtl_amt": str(worth - cost),
            "bfdy_tot_asst_evlu_amt": str(customer.key.cash),
        }
        result = _paged(rows, 20 if self._paper else 50, query, page, total)
        result.values["output2"] = [total]
        return result

    def _holding(self, index: int, holding: SimulatedHolding) -> dict[str, str]:
        price = int(self._market.price[index])
        worth = price * holding.quantity
        gain = 100 * (worth - holding.cost) / holding.cost if holding.cost else 0
        return {
            "pdno": self._market.universe.codes[index],
            "prdt_name": self._market.universe.names[index],
            "trad_dvsn_name": "현금",
            "bfdy_buy_qty": "0",
            "bfdy_sll_qty": "0",
            "thdt_buyqty": str(holding.bought_today),
            "thdt_sll_qty": str(holding.sold_today),
            "hldg_qty": str(holding.quantity),
            "ord_psbl_qty": str(holding.quantity - holding.locked),
            "pchs_avg_pric": f"{holding.cost / holding.quantity if holding.quantity else 0:.4f}",
            "pchs_amt": str(holding.cost),
            "prpr": str(price),
            "evlu_amt": str(worth),
            "evlu_pfls_amt": str(worth - holding.cost),
            "evlu_pfls_rt": f"{gain:.2f}",
        }

    def buying_power(self, customer: KisCustomer, query: Mapping[str, str]) -> dict[str, Any]:
        _check_account(customer, query)
        index = self._market.index.get(query.get("PDNO", ""))
        account, price = customer.account, whole(query, "ORD_UNPR")
        if index is not None and (query.get("ORD_DVSN") == "01" or not price):
            price = int(self._market.upper[index])
        quantity = str(account.affordable(price))
        cash = str(account.available)
        return success(
            {
                "output": {
                    "ord_psbl_cash": cash,
                    "nrcvb_buy_amt": cash,
                    "nrcvb_buy_qty": quantity,
                    "max_buy_amt": cash,
                    "max_buy_qty": quantity,
                    "psbl_qty_calc_unpr": str(price),
                }
            }
        )


def _check_account(customer: KisCustomer, query: Mapping[str, str]) -> None:
    if query.get("CANO", "") + query.get("ACNT_PRDT_CD", "") != customer.key.account:
        raise KisError("IGW00002")


def _shows(holding: SimulatedHolding) -> bool:
    """Return whether a holding is listed; one sold out today stays as a row of zeros."""
    return bool(holding.quantity or holding.sold_today)


def _paged(
    rows: list[dict[str, str]], size: int, query: Mapping[str, str], page: str, total: Any
) -> Page:
    """Return the next `size` rows after the continuation key of the query."""
    key = query.get("CTX_AREA_NK100", "").strip()
    start = int(key) if page == "N" and key.isdigit() else 0
    end = start + size
    more = end < len(rows)
    values = success(
        {
            "ctx_area_fk100": (query.get("CANO", "") + "^").ljust(100),
            "ctx_area_nk100": (str(end) if more else "").ljust(100),
            "output1": rows[start:end],
            "output2": total,
        },
        "KIOK0510",
        "조회가 완료되었습니다",
    )
    return Page(values, ("M" if start else "F") if more else ("E" if start else "D"))
