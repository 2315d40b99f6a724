"""KIS account requests: executions, open orders, balance and buying power, page by page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from qts.simulators.kis.gateway import KisCustomer, KisError, names, required, success
from qts.simulators.kis.orders import ORGNO, KisOrderApi, KisOrderEntry, day_of, whole
from qts.simulators.market.markets import StockMarket
from qts.simulators.market.rules import hhmmss
from qts.simulators.matching import SimulatedHolding

_SIDE = {"sell": ("01", "현금매도"), "buy": ("02", "현금매수")}


_OPEN_FIELDS = names("""
    ord_gno_brno odno orgn_odno ord_dvsn_name pdno prdt_name rvse_cncl_dvsn_name ord_qty ord_unpr
    ord_tmd tot_ccld_qty tot_ccld_amt psbl_qty sll_buy_dvsn_cd ord_dvsn_cd mgco_aptm_odno
    excg_dvsn_cd excg_id_dvsn_cd excg_id_dvsn_name stpm_cndt_pric stpm_efct_occr_yn
""")
_SELL_FIELDS = names("""
    pdno buy_qty sll_qty cblc_qty nsvg_qty ord_psbl_qty pchs_avg_pric pchs_amt now_pric evlu_amt
    evlu_pfls_amt evlu_pfls_rt
""")


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
        return paged(rows, size, query, page, total)

    def cancelable(self, customer: KisCustomer, query: Mapping[str, str], page: str) -> Page:
        rows = [
            self._open_row(entry)
            for entry in self._of(customer, query)
            if entry.kind != "cancel" and entry.order.open
        ]
        result = paged(rows, 50, query, page, {})
        result.values["output"] = result.values.pop("output1")
        del result.values["output2"]
        return result

    def _of(self, customer: KisCustomer, query: Mapping[str, str]) -> list[KisOrderEntry]:
        check_account(customer, query)
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
        cancelled = str(entry.quantity if is_cancel else order.cancelled)
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
            "ccld_yn": "Y" if filled else "N",  # undocumented, but sent
            "tot_ccld_amt": str(paid),
            "loan_dt": "",
            "ordr_empno": "OpnAPI",
            "ord_dvsn_cd": entry.division,
            "cncl_cfrm_qty": cancelled,
            "cnc_cfrm_qty": cancelled,  # the documents have both spellings
            "rmn_qty": "0" if is_cancel else str(order.remaining),
            "rjct_qty": "0",
            "ccld_cndt_name": "없음",
            "inqr_ip_addr": "127.000.000.001",
            "cpbc_ordp_ord_rcit_dvsn_cd": "",
            "cpbc_ordp_infm_mthd_dvsn_cd": "",
            "infm_tmd": "",
            "ctac_tlno": "",
            "prdt_type_cd": "300",
            "excg_dvsn_cd": "02",
            "cpbc_ordp_mtrl_dvsn_cd": "",
            "ord_orgno": ORGNO[self._paper],
            "rsvn_ord_end_dt": "",
            "excg_id_dvsn_Cd": "KRX",
            "stpm_cndt_pric": "",
            "stpm_efct_occr_dtmd": "",
        }

    def _open_row(self, entry: KisOrderEntry) -> dict[str, str]:
        row = self._row(entry)
        values = row | {
            "rvse_cncl_dvsn_name": "정정" if entry.kind == "revise" else "",
            "psbl_qty": str(entry.order.remaining),
            "mgco_aptm_odno": "",
            "excg_id_dvsn_cd": row["excg_id_dvsn_Cd"],
            "excg_id_dvsn_name": row["excg_id_dvsn_Cd"],
            "stpm_efct_occr_yn": "N",
        }
        return {name: values[name] for name in _OPEN_FIELDS}

    # inquire-balance, inquire-psbl-order, inquire-psbl-sell

    def balance(self, customer: KisCustomer, query: Mapping[str, str], page: str) -> Page:
        check_account(customer, query)
        account = customer.account
        started = customer.key.cash
        rows = [self._holding(i, h) for i, h in account.holdings.items() if _shows(h)]
        worth = sum(h.quantity * int(self._market.price[i]) for i, h in account.holdings.items())
        cost = sum(h.cost for h in account.holdings.values())
        total = {
            "dnca_tot_amt": str(account.cash),
            "nxdy_excc_amt": str(account.cash),
            "prvs_rcdl_excc_amt": str(account.cash),
            "cma_evlu_amt": "0",
            "bfdy_buy_amt": "0",
            "thdt_buy_amt": str(account.bought_today),
            "nxdy_auto_rdpt_amt": "0",
            "bfdy_sll_amt": "0",
            "thdt_sll_amt": str(account.sold_today),
            "d2_auto_rdpt_amt": "0",
            "bfdy_tlex_amt": "0",
            "thdt_tlex_amt": str(
                account.fee("buy", account.bought_today) + account.fee("sell", account.sold_today)
            ),
            "tot_loan_amt": "0",
            "scts_evlu_amt": str(worth),
            "tot_evlu_amt": str(account.cash + worth),
            "nass_amt": str(account.cash + worth),
            "fncg_gld_auto_rdpt_yn": "",
            "pchs_amt_smtl_amt": str(cost),
            "evlu_amt_smtl_amt": str(worth),
            "evlu_pfls_smtl_amt": str(worth - cost),
            "tot_stln_slng_chgs": "0",
            "bfdy_tot_asst_evlu_amt": str(started),
            "asst_icdc_amt": str(account.cash + worth - started),
            "asst_icdc_erng_rt": f"{(account.cash + worth) / started - 1 if started else 0:.8f}",
        }
        result = paged(rows, 20 if self._paper else 50, query, page, total)
        result.values["output2"] = [total]
        return result

    def _holding(self, index: int, holding: SimulatedHolding) -> dict[str, str]:
        price, base = int(self._market.price[index]), int(self._market.base[index])
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
            "evlu_erng_rt": f"{gain:.8f}",
            "loan_dt": "",
            "loan_amt": "0",
            "stln_slng_chgs": "0",
            "expd_dt": "",
            "fltt_rt": f"{100 * (price - base) / base:.8f}",
            "bfdy_cprs_icdc": str(price - base),
            "item_mgna_rt_name": "20%",
            "grta_rt_name": "",
            "sbst_pric": str(base * 7 // 10),
            "stck_loan_unpr": "0.0000",
        }

    def buying_power(self, customer: KisCustomer, query: Mapping[str, str]) -> dict[str, Any]:
        """Return what can be bought; without a symbol, or for an unknown one, no quantity."""
        check_account(customer, query)
        index = self._market.index.get(query.get("PDNO", ""))
        account, price = customer.account, whole(query, "ORD_UNPR")
        if index is None:
            price = 0
        elif query.get("ORD_DVSN") == "01" or not price:
            price = int(self._market.upper[index])
        quantity = str(account.affordable(price))
        cash = str(account.available)
        output = {
            "ord_psbl_cash": cash,
            "ord_psbl_sbst": "0",
            "ruse_psbl_amt": "0",
            "fund_rpch_chgs": "0",
            "psbl_qty_calc_unpr": str(price),
            "nrcvb_buy_amt": cash,
            "nrcvb_buy_qty": quantity,
            "max_buy_amt": cash,
            "max_buy_qty": quantity,
            "cma_evlu_amt": "0",
            "ovrs_re_use_amt_wcrc": "0",
            "ord_psbl_frcr_amt_wcrc": "0",
        }
        return success({"output": output})

    def sellable(self, customer: KisCustomer, query: Mapping[str, str]) -> dict[str, Any]:
        """Return what can be sold of a holding; refuse a symbol that is not held."""
        check_account(customer, query)
        index = self._market.index.get(required(query, "PDNO"))
        holding = customer.account.holdings.get(-1 if index is None else index)
        if index is None or holding is None or not holding.quantity:
            raise KisError("KIOK0560")
        row = self._holding(index, holding)
        renamed = {
            "buy_qty": row["thdt_buyqty"],
            "sll_qty": row["thdt_sll_qty"],
            "cblc_qty": row["hldg_qty"],
            "nsvg_qty": "0",
            "now_pric": row["prpr"],
        }
        output = {name: (row | renamed)[name] for name in _SELL_FIELDS}
        return success({"output": output}, "KIOK0510", "조회가 완료되었습니다")


def check_account(customer: KisCustomer, query: Mapping[str, str]) -> None:
    if query.get("CANO", "") + query.get("ACNT_PRDT_CD", "") != customer.key.account:
        raise KisError("IGW00002")


def _shows(holding: SimulatedHolding) -> bool:
    """Return whether a holding is listed; one sold out today stays as a row of zeros."""
    return bool(holding.quantity or holding.sold_today)


def paged(
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
