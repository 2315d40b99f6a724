"""KIS requests about overseas stocks: none is listed here, and no customer holds any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qts.simulators.kis.account_api import Page, check_account
from qts.simulators.kis.gateway import KisCustomer, names, required, success

_PRICE_FIELDS = names("rsym zdiv base pvol last sign diff rate tvol tamt ordy")
_PRESENT_FIELDS = names("""
    pchs_amt_smtl evlu_amt_smtl evlu_pfls_amt_smtl dncl_amt cma_evlu_amt tot_dncl_amt etc_mgna
    wdrw_psbl_tot_amt frcr_evlu_tota evlu_erng_rt1 pchs_amt_smtl_amt evlu_amt_smtl_amt
    tot_evlu_pfls_amt tot_asst_amt buy_mgn_amt mgna_tota frcr_use_psbl_amt ustl_sll_amt_smtl
    ustl_buy_amt_smtl tot_frcr_cblc_smtl tot_loan_amt
""")
_BALANCE_FIELDS = names("""
    frcr_pchs_amt1 ovrs_rlzt_pfls_amt ovrs_tot_pfls rlzt_erng_rt tot_evlu_pfls_amt tot_pftrt
    frcr_buy_amt_smtl1 ovrs_rlzt_pfls_amt2 frcr_buy_amt_smtl2
""")


def price(query: Mapping[str, str]) -> dict[str, Any]:
    """Return the blank quote that the venue sends for a symbol it does not know."""
    required(query, "EXCD")
    required(query, "SYMB")
    return success({"output": dict.fromkeys(_PRICE_FIELDS, "")})


def present_balance(customer: KisCustomer, query: Mapping[str, str]) -> dict[str, Any]:
    check_account(customer, query)
    total = dict.fromkeys(_PRESENT_FIELDS, "0")
    return success({"output1": [], "output2": [], "output3": total})


def balance(customer: KisCustomer, query: Mapping[str, str], _page: str) -> Page:
    return _empty(customer, query, {"output1": [], "output2": dict.fromkeys(_BALANCE_FIELDS, "0")})


def orders(customer: KisCustomer, query: Mapping[str, str], _page: str) -> Page:
    return _empty(customer, query, {"output": []})


def _empty(customer: KisCustomer, query: Mapping[str, str], outputs: dict[str, Any]) -> Page:
    check_account(customer, query)
    keys = {"ctx_area_fk200": " " * 200, "ctx_area_nk200": " " * 200}
    return Page(success({**keys, **outputs}, "KIOK0510", "조회가 완료되었습니다"), "D")
