"""KIS data of one symbol over REST: what it is, the second quote, and the trades of today."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any, NamedTuple

import numpy as np

from qts.simulators.kis.charts import second_in
from qts.simulators.kis.companies import KisFigures
from qts.simulators.kis.gateway import KisError, names, required, success
from qts.simulators.kis.quotes import SECTOR, KisQuoteApi, blank, flag
from qts.simulators.market.markets import StockMarket
from qts.simulators.market.rules import DAY_S, Flags, Ints, hhmmss, yyyymmdd

_STOCK = "300"
_FOUND = "KIOK0530", "조회되었습니다"
_INFO_FIELDS = names("""
    pdno prdt_type_cd prdt_name prdt_name120 prdt_abrv_name prdt_eng_name prdt_eng_name120
    prdt_eng_abrv_name std_pdno shtn_pdno prdt_sale_stat_cd prdt_risk_grad_cd prdt_clsf_cd
    prdt_clsf_name sale_strt_dt sale_end_dt wrap_asst_type_cd ivst_prdt_type_cd
    ivst_prdt_type_cd_name frst_erlm_dt
""")
_STOCK_FIELDS = names("""
    pdno prdt_type_cd mket_id_cd scty_grp_id_cd excg_dvsn_cd setl_mmdd lstg_stqt lstg_cptl_amt cpta
    papr issu_pric kospi200_item_yn scts_mket_lstg_dt scts_mket_lstg_abol_dt kosdaq_mket_lstg_dt
    kosdaq_mket_lstg_abol_dt frbd_mket_lstg_dt frbd_mket_lstg_abol_dt reits_kind_cd etf_dvsn_cd
    oilf_fund_yn idx_bztp_lcls_cd idx_bztp_mcls_cd idx_bztp_scls_cd stck_kind_cd mfnd_opng_dt
    mfnd_end_dt dpsi_erlm_cncl_dt etf_cu_qty prdt_name prdt_name120 prdt_abrv_name std_pdno
    prdt_eng_name prdt_eng_name120 prdt_eng_abrv_name dpsi_aptm_erlm_yn etf_txtn_type_cd
    etf_type_cd lstg_abol_dt nwst_odst_dvsn_cd sbst_pric thco_sbst_pric thco_sbst_pric_chng_dt
    tr_stop_yn admn_item_yn thdt_clpr bfdy_clpr clpr_chng_dt std_idst_clsf_cd
    std_idst_clsf_cd_name idx_bztp_lcls_cd_name idx_bztp_mcls_cd_name idx_bztp_scls_cd_name ocr_no
    crfd_item_yn elec_scty_yn issu_istt_cd etf_chas_erng_rt_dbnb etf_etn_ivst_heed_item_yn
    stln_int_rt_dvsn_cd frnr_psnl_lmt_rt lstg_rqsr_issu_istt_cd lstg_rqsr_item_cd
    trst_istt_issu_istt_cd cptt_trad_tr_psbl_yn nxt_tr_stop_yn
""")
_SECOND_FIELDS = names("""
    rprs_mrkt_kor_name new_hgpr_lwpr_cls_code mxpr_llam_cls_code crdt_able_yn stck_mxpr elw_pblc_yn
    prdy_clpr_vrss_oprc_rate crdt_rate marg_rate lwpr_vrss_prpr lwpr_vrss_prpr_sign
    prdy_clpr_vrss_lwpr_rate stck_lwpr hgpr_vrss_prpr hgpr_vrss_prpr_sign prdy_clpr_vrss_hgpr_rate
    stck_hgpr oprc_vrss_prpr oprc_vrss_prpr_sign mang_issu_yn divi_app_cls_code short_over_yn
    mrkt_warn_cls_code invt_caful_yn stange_runup_yn ssts_hot_yn low_current_yn vi_cls_code
    short_over_cls_code stck_llam new_lstn_cls_name vlnt_deal_cls_name flng_cls_name
    revl_issu_reas_name mrkt_warn_cls_name stck_sdpr bstp_cls_code stck_prdy_clpr insn_pbnt_yn
    fcam_mod_cls_name stck_prpr prdy_vrss prdy_vrss_sign prdy_ctrt acml_tr_pbmn acml_vol
    prdy_vrss_vol_rate bstp_kor_isnm sltr_yn trht_yn oprc_rang_cont_yn vlnt_fin_cls_code stck_oprc
    prdy_vol
""")


class KisProductApi:
    def __init__(self, market: StockMarket, quotes: KisQuoteApi, figures: KisFigures) -> None:
        self._market = market
        self._quotes = quotes
        self._figures = figures

    def info(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the product of a code: stocks only."""
        i = self._found(query)
        values = self._names(i) | {
            "shtn_pdno": self._market.universe.codes[i],
            "prdt_clsf_cd": "301100",
            "prdt_clsf_name": "주권",
            "sale_strt_dt": self._listed_on(i),
            "ivst_prdt_type_cd": "0301",
            "ivst_prdt_type_cd_name": "주식",
            "frst_erlm_dt": self._listed_on(i),
        }
        return success({"output": _filled(_INFO_FIELDS, values)}, *_FOUND)

    def stock_info(self, query: Mapping[str, str]) -> dict[str, Any]:
        i, m, figures = self._found(query), self._market, self._figures
        kospi = bool(m.universe.kospi[i])
        listed = self._listed_on(i)
        values = self._names(i) | {
            "mket_id_cd": "STK" if kospi else "KSQ",
            "scty_grp_id_cd": "ST",
            "excg_dvsn_cd": "02" if kospi else "03",
            "setl_mmdd": "1231",
            "lstg_stqt": str(figures.listed(i)),
            "lstg_cptl_amt": "0",
            "cpta": str(figures.listed(i) * figures.face(i)),
            "papr": str(figures.face(i)),
            "issu_pric": "0",
            "kospi200_item_yn": flag(m.universe.narrow_vi[i]),
            "scts_mket_lstg_dt" if kospi else "kosdaq_mket_lstg_dt": listed,
            "etf_dvsn_cd": "0",
            "idx_bztp_lcls_cd": "002",
            "idx_bztp_lcls_cd_name": "시가총액규모대",
            "idx_bztp_mcls_cd": "013",
            "idx_bztp_mcls_cd_name": SECTOR,
            "idx_bztp_scls_cd": "013",
            "idx_bztp_scls_cd_name": SECTOR,
            "stck_kind_cd": "101",
            "etf_cu_qty": "0",
            "etf_txtn_type_cd": "00",
            "sbst_pric": str(int(m.base[i]) * 7 // 10),
            "thco_sbst_pric": str(int(m.base[i]) * 7 // 10),
            "tr_stop_yn": flag(m.suspended[i]),
            "thdt_clpr": str(m.price[i]),
            "bfdy_clpr": str(m.base[i]),
            "clpr_chng_dt": yyyymmdd(m.time),
            "elec_scty_yn": "Y",
            "etf_chas_erng_rt_dbnb": "0",
            "frnr_psnl_lmt_rt": "0.00000000",
        }
        for name in _STOCK_FIELDS:
            if name.endswith("_yn"):
                values.setdefault(name, "N")
        return success({"output": _filled(_STOCK_FIELDS, values)}, *_FOUND)

    def _found(self, query: Mapping[str, str]) -> int:
        code, kind = required(query, "PDNO"), required(query, "PRDT_TYPE_CD")
        index = self._market.index.get(code)
        if index is None or kind != _STOCK:
            raise KisError("KIOK0560")
        return index

    def _names(self, i: int) -> dict[str, str]:
        code, name = self._market.universe.codes[i], self._market.universe.names[i]
        full = f"{name}보통주"
        english = f"SIMULATED{code}"
        return {
            "pdno": f"00000A{code}",
            "prdt_type_cd": _STOCK,
            "prdt_name": full,
            "prdt_name120": full,
            "prdt_abrv_name": name,
            "prdt_eng_name": english,
            "prdt_eng_name120": english,
            "prdt_eng_abrv_name": english,
            "std_pdno": f"KR7{code}000",
        }

    def _listed_on(self, i: int) -> str:
        return date.fromordinal(self._figures.history.listed_on(i)).strftime("%Y%m%d")

    # inquire-price-2

    def second_price(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the states of a symbol beside its quote."""
        i = self._quotes.symbol(query)
        if i is None:
            return success({"output": blank(_SECOND_FIELDS)})
        m, price = self._market, int(self._market.price[i])
        base, volume = int(m.base[i]), int(m.volume[i])
        values = {
            "rprs_mrkt_kor_name": self._quotes.market_name(i),
            "crdt_able_yn": "Y",
            "crdt_rate": "40.00",
            "marg_rate": "20.00",
            "mrkt_warn_cls_code": "00",
            "vi_cls_code": flag(m.in_vi(i)),
            "stck_sdpr": str(base),
            "stck_prdy_clpr": str(base),
            "bstp_cls_code": "013",
            "bstp_kor_isnm": SECTOR,
            "trht_yn": flag(m.suspended[i]),
            "acml_tr_pbmn": str(m.value[i]),
            "acml_vol": str(volume),
            "prdy_vol": str(m.prev_volume[i]),
            "prdy_vrss_vol_rate": f"{100 * volume / max(1, int(m.prev_volume[i])):.2f}",
            **self._quotes.headline(i),
            **self._quotes.session(i),
        }
        for end, mark in (("oprc", m.open[i]), ("hgpr", m.high[i]), ("lwpr", m.low[i])):
            difference = price - int(mark)
            values[f"{end}_vrss_prpr"] = str(difference)
            sign = "2" if difference > 0 else "5" if difference < 0 else "3"
            values[f"{end}_vrss_prpr_sign"] = sign
            values[f"prdy_clpr_vrss_{end}_rate"] = f"{100 * (int(mark) - base) / base:.2f}"
        for name in _SECOND_FIELDS:
            if name.endswith("_yn"):
                values.setdefault(name, "N")
        return success({"output": _filled(_SECOND_FIELDS, values)})


def _filled(fields: tuple[str, ...], values: Mapping[str, str]) -> dict[str, str]:
    return {name: values.get(name, "") for name in fields}


ROWS = 30
_KEPT_SECONDS = 900
_SUMMARY_FIELDS = names("""
    stck_prpr prdy_vrss prdy_vrss_sign prdy_ctrt acml_vol prdy_vol rprs_mrkt_kor_name
""")


class StockTrade(NamedTuple):
    time: int
    price: int
    size: int
    volume: int
    """Of the day, this trade included."""
    bought: int
    """Part of the volume that was bought at the ask."""
    at_ask: int


class StockTrades(NamedTuple):
    """Trades of one second: the indexes of the symbols, in order, and a value for each."""

    time: int
    symbols: Ints
    price: Ints
    size: Ints
    volume: Ints
    bought: Ints
    at_ask: Flags


class TradeLog:
    """The trades of the last seconds in which something traded."""

    def __init__(self, market: StockMarket) -> None:
        self._market = market
        self._seconds: deque[StockTrades] = deque(maxlen=_KEPT_SECONDS)

    def on_second(self) -> None:
        m = self._market
        at = np.flatnonzero(m.traded)
        if len(at):
            columns = (m.price[at], m.size[at], m.volume[at], m.buy_volume[at], m.at_ask[at])
            self._seconds.append(StockTrades(m.time, at, *columns))

    def newest(self, index: int) -> Iterator[StockTrade]:
        """Yield the trades of today, newest first."""
        today = self._market.time // DAY_S
        for second in reversed(self._seconds):
            if second.time // DAY_S != today:
                return
            at = int(np.searchsorted(second.symbols, index))
            if at < len(second.symbols) and second.symbols[at] == index:
                values = (int(column[at]) for column in second[2:])
                yield StockTrade(second.time, *values)


class KisTradeApi:
    def __init__(self, market: StockMarket, quotes: KisQuoteApi) -> None:
        self._market = market
        self._quotes = quotes
        self._log = TradeLog(market)
        self.on_second = self._log.on_second

    # inquire-ccnl

    def last(self, query: Mapping[str, str]) -> dict[str, Any]:
        index = self._quotes.symbol(query)
        if index is None:
            return success({"output": []})
        rows = []
        for trade in self._taken(index):
            change = self._quotes.change(index, trade.price)
            rows.append(
                {
                    "stck_cntg_hour": hhmmss(trade.time),
                    "stck_prpr": str(trade.price),
                    "prdy_vrss": change["prdy_vrss"],
                    "prdy_vrss_sign": change["prdy_vrss_sign"],
                    "cntg_vol": str(trade.size),
                    "tday_rltv": _strength(trade),
                    "prdy_ctrt": change["prdy_ctrt"],
                }
            )
        return success({"output": rows})

    # inquire-time-itemconclusion

    def until(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return 30 trades up to a time of today."""
        index, end = self._quotes.symbol(query), second_in(query)
        if index is None:
            return success({"output1": blank(_SUMMARY_FIELDS), "output2": []})
        m, tick = self._market, self._market.table.tick
        rows = []
        for trade in self._taken(index, end):
            spread = tick(trade.price)
            rows.append(
                {
                    "stck_cntg_hour": hhmmss(trade.time),
                    "stck_pbpr": str(trade.price),
                    **self._quotes.change(index, trade.price),
                    "askp": str(trade.price if trade.at_ask else trade.price + spread),
                    "bidp": str(trade.price - spread if trade.at_ask else trade.price),
                    "tday_rltv": _strength(trade),
                    "acml_vol": str(trade.volume),
                    "cnqn": str(trade.size),
                }
            )
        summary = {
            **self._quotes.headline(index),
            "acml_vol": str(m.volume[index]),
            "prdy_vol": str(m.prev_volume[index]),
            "rprs_mrkt_kor_name": self._quotes.market_name(index),
        }
        return success({"output1": summary, "output2": rows})

    def _taken(self, index: int, end: int = DAY_S) -> list[StockTrade]:
        found = (trade for trade in self._log.newest(index) if trade.time % DAY_S <= end)
        return [trade for trade, _ in zip(found, range(ROWS), strict=False)]


def _strength(trade: StockTrade) -> str:
    """Return what was bought at the ask against what was sold at the bid, in percent."""
    return f"{100 * trade.bought / max(1, trade.volume - trade.bought):.2f}"
