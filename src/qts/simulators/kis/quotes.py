"""KIS market data over REST: quotes, multi-quotes, order book."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from qts.simulators.kis.companies import KisFigures
from qts.simulators.kis.gateway import KisError, invalid, names, required, success
from qts.simulators.market.markets import StockMarket
from qts.simulators.market.rules import hhmmss

BATCH = 30
KRX, UNIFIED = "J", "UN"
_DIVISIONS = (KRX, UNIFIED, "NX", "W")  # NXT and ELW: nothing is listed there


class KisQuoteApi:
    """Market data requests; every value is a string, as the venue sends it."""

    def __init__(
        self, market: StockMarket, figures: KisFigures, unknown: str, unsigned_change: bool
    ) -> None:
        self._market = market
        self._figures = figures
        self._unknown = unknown
        self._unsigned = unsigned_change

    # inquire-price

    def price(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return a quote; of a symbol that is not listed, KIS sends one of zeros."""
        i = self.symbol(query)
        return success({"output": blank(PRICE_FIELDS) if i is None else self._price(i)})

    def _price(self, i: int) -> dict[str, str]:
        m, price, figures = self._market, self.shown_price(i), self._figures
        base, volume = int(m.base[i]), int(m.volume[i])
        output = {
            "iscd_stat_cls_code": "58" if m.suspended[i] else "55",
            "marg_rate": "20.00",
            "rprs_mrkt_kor_name": self.market_name(i),
            "bstp_kor_isnm": SECTOR,
            "temp_stop_yn": flag(m.suspended[i]),
            "crdt_able_yn": "Y",
            "grmn_rate_cls_code": "40",
            "stck_prpr": str(price),
            **self.change(i, price),
            "acml_tr_pbmn": str(m.value[i]),
            "acml_vol": str(volume),
            "prdy_vrss_vol_rate": f"{100 * volume / max(1, int(m.prev_volume[i])):.2f}",
            **self.session(i),
            "stck_sdpr": str(base),
            "wghn_avrg_stck_prc": f"{m.value[i] / volume if volume else 0:.2f}",
            "rstc_wdth_prc": str(m.upper[i] - base),
            "stck_sspr": str(base * 7 // 10),
            "aspr_unit": str(m.table.tick(price)),
            "hts_deal_qty_unit_val": "1",
            "stac_month": "12",
            "bps": f"{figures.book_value(i):.2f}",
            "whol_loan_rmnd_rate": "0.10",
            "ssts_yn": "Y",
            "stck_shrn_iscd": m.universe.codes[i],
            "fcam_cnnm": f"{figures.face(i):,}",
            "cpfn_cnnm": f"{figures.capital(i):,} 억",
            "vi_cls_code": flag(m.in_vi(i)),
            "mrkt_warn_cls_code": "00",
            **figures.valuation(i),
            **figures.ownership(i),
            **figures.pivots(i),
            **figures.highs_and_lows(i),
        }
        flags = dict.fromkeys(_FLAGS_OFF, "N")
        return {name: (output | flags).get(name, "") for name in PRICE_FIELDS} | _NOT_COUNTED

    def session(self, i: int) -> dict[str, str]:
        """Return the prices of today's session and its limits."""
        m = self._market
        return {
            "stck_oprc": str(m.open[i]),
            "stck_hgpr": str(m.high[i]),
            "stck_lwpr": str(m.low[i]),
            "stck_mxpr": str(m.upper[i]),
            "stck_llam": str(m.lower[i]),
        }

    def market_name(self, i: int) -> str:
        return "KOSPI200" if self._market.universe.narrow_vi[i] else self.board(i)

    def headline(self, i: int) -> dict[str, str]:
        price = self.shown_price(i)
        return {"stck_prpr": str(price), **self.change(i, price)}

    def summary(self, i: int) -> dict[str, str]:
        """Return the first output of every chart."""
        m = self._market
        return {
            **self.headline(i),
            "stck_prdy_clpr": str(m.base[i]),
            "acml_vol": str(m.volume[i]),
            "acml_tr_pbmn": str(m.value[i]),
            "hts_kor_isnm": m.universe.names[i],
        }

    def shown_price(self, i: int) -> int:
        return int(self._market.price[i])

    def change(self, i: int, price: int) -> dict[str, str]:
        base = int(self._market.base[i])
        return {
            "prdy_vrss": str(price - base),
            "prdy_vrss_sign": self.sign(i, price),
            "prdy_ctrt": f"{100 * (price - base) / base:.2f}",
        }

    def sign(self, i: int, price: int) -> str:
        m = self._market
        if price == m.upper[i]:
            return "1"
        if price == m.lower[i]:
            return "4"
        return "2" if price > m.base[i] else "5" if price < m.base[i] else "3"

    def board(self, i: int) -> str:
        return "KOSPI" if self._market.universe.kospi[i] else "KOSDAQ"

    def listed(self, i: int) -> int:
        return self._figures.listed(i)

    def symbol(self, query: Mapping[str, str]) -> int | None:
        """Return the index of the symbol of a request, None if it is not listed there."""
        return self.find(
            required(query, "FID_COND_MRKT_DIV_CODE"), required(query, "FID_INPUT_ISCD")
        )

    def find(self, division: str, code: str, field: str = "FID_COND_MRKT_DIV_CODE") -> int | None:
        if division not in _DIVISIONS:
            raise invalid(field)
        return self._market.index.get(code) if division in (KRX, UNIFIED) else None

    # intstock-multprice

    def many(self, query: Mapping[str, str]) -> dict[str, Any]:
        numbered = sorted(
            (int(name.rpartition("_")[2]), code)
            for name, code in query.items()
            if name.startswith("FID_INPUT_ISCD_") and name.rpartition("_")[2].isdigit()
        )
        chosen = [(number, code) for number, code in numbered if code]
        if not chosen or len(chosen) > BATCH or numbered[0][0] < 1:
            raise KisError("OPSQ2001", f"INVALID FID_INPUT_ISCD_1..{BATCH}: {len(chosen)} given")
        rows = []
        for number, code in chosen:
            division = f"FID_COND_MRKT_DIV_CODE_{number}"
            rows.append(self._row(code, self.find(required(query, division), code, division)))
        return success({"output": [row for row in rows if row]})

    def _row(self, code: str, i: int | None) -> dict[str, str] | None:
        m = self._market
        if i is None:
            return _EMPTY_ROW | {"inter_shrn_iscd": code} if self._unknown == "zeros" else None
        price = 0 if m.suspended[i] else self.shown_price(i)
        book, auction = m.book(i), m.state(i) == "auction"
        change = self.change(i, price or int(m.base[i]))
        ratio = change["prdy_ctrt"].lstrip("-") if self._unsigned else change["prdy_ctrt"]
        expected = int(m.expected[i]) if auction else int(m.base[i])
        ahead = self.change(i, expected)
        return {
            "kospi_kosdaq_cls_name": "코스피" if m.universe.kospi[i] else "코스닥",
            "mrkt_trtm_cls_name": "",
            "hour_cls_code": self.hour_code(i),
            "inter_shrn_iscd": code,
            "inter_kor_isnm": m.universe.names[i],
            "inter2_prpr": str(price),
            "inter2_prdy_vrss": change["prdy_vrss"] if price else "0",
            "prdy_vrss_sign": change["prdy_vrss_sign"],
            "prdy_ctrt": ratio if price else "",
            "acml_vol": str(m.volume[i]),
            "inter2_oprc": str(m.open[i]),
            "inter2_hgpr": str(m.high[i]),
            "inter2_lwpr": str(m.low[i]),
            "inter2_llam": str(m.lower[i]),
            "inter2_mxpr": str(m.upper[i]),
            "inter2_askp": str(book.asks[0].price if book.asks else 0),
            "inter2_bidp": str(book.bids[0].price if book.bids else 0),
            "seln_rsqn": str(book.asks[0].quantity if book.asks else 0),
            "shnu_rsqn": str(book.bids[0].quantity if book.bids else 0),
            "total_askp_rsqn": str(sum(level.quantity for level in book.asks)),
            "total_bidp_rsqn": str(sum(level.quantity for level in book.bids)),
            "acml_tr_pbmn": str(m.value[i]),
            "inter2_prdy_clpr": str(m.base[i]),
            "oprc_vrss_hgpr_rate": percent(int(m.high[i]), int(m.open[i])),
            "intr_antc_cntg_vrss": ahead["prdy_vrss"],
            "intr_antc_cntg_vrss_sign": ahead["prdy_vrss_sign"],
            "intr_antc_cntg_prdy_ctrt": ahead["prdy_ctrt"],
            "intr_antc_vol": str(sum(x.quantity for x in book.asks) if auction else 0),
            "inter2_sdpr": str(m.base[i]),
        }

    def hour_code(self, i: int) -> str:
        """Return 0 in the regular session, B and A in the two auctions, C in an interruption."""
        kind = self._market.phase.kind
        if kind == "opening":
            return "B"
        if kind == "closing":
            return "A"
        return "C" if self._market.in_vi(i) else "0"

    # inquire-asking-price-exp-ccn

    def order_book(self, query: Mapping[str, str]) -> dict[str, Any]:
        i = self.symbol(query)
        if i is None:
            return success({"output1": {}, "output2": {}})
        m, book = self._market, self._market.book(i)
        auction = m.state(i) == "auction"
        levels: dict[str, str] = {"aspr_acpt_hour": hhmmss(m.time)}
        for side, quoted in (("askp", book.asks), ("bidp", book.bids)):
            for n in range(1, m.depth + 1):
                level = quoted[n - 1] if n <= len(quoted) else None
                levels[f"{side}{n}"] = str(level.price if level else 0)
                levels[f"{side}_rsqn{n}"] = str(level.quantity if level else 0)
                levels[f"{side}_rsqn_icdc{n}"] = "0"
            levels[f"total_{side}_rsqn"] = str(sum(level.quantity for level in quoted))
            levels[f"total_{side}_rsqn_icdc"] = "0"
            levels[f"ovtm_total_{side}_rsqn"] = "0"
            levels[f"ovtm_total_{side}_icdc"] = "0"
        net = int(levels["total_bidp_rsqn"]) - int(levels["total_askp_rsqn"])
        levels |= {"ntby_aspr_rsqn": str(net), "new_mkop_cls_code": "20"}
        expected = int(m.expected[i]) if auction else 0
        ahead = self.change(i, expected or int(m.base[i]))
        summary = {
            "antc_mkop_cls_code": "311" if auction else "112",
            "stck_prpr": str(self.shown_price(i)),
            "stck_oprc": str(m.open[i]),
            "stck_hgpr": str(m.high[i]),
            "stck_lwpr": str(m.low[i]),
            "stck_sdpr": str(m.base[i]),
            "antc_cnpr": str(expected),
            "antc_cntg_vrss_sign": ahead["prdy_vrss_sign"],
            "antc_cntg_vrss": ahead["prdy_vrss"],
            "antc_cntg_prdy_ctrt": ahead["prdy_ctrt"],
            "antc_vol": levels["total_askp_rsqn"] if auction else "0",
            "stck_shrn_iscd": m.universe.codes[i],
            "vi_cls_code": "Y" if m.in_vi(i) else "N",
        }
        return success({"output1": levels, "output2": summary})


def flag(on: object) -> str:
    return "Y" if on else "N"


def blank(fields: Iterable[str]) -> dict[str, str]:
    """Return the row of a symbol that is not listed: numbers are 0, texts are empty."""
    return {name: "" if name.endswith(_TEXTS) else "0" for name in fields}


def percent(price: int, of: int) -> str:
    return f"{100 * (price - of) / of:.2f}" if of else "0.00"


_ROW_FIELDS = """
    kospi_kosdaq_cls_name mrkt_trtm_cls_name hour_cls_code inter_shrn_iscd inter_kor_isnm
    inter2_prpr inter2_prdy_vrss prdy_vrss_sign prdy_ctrt acml_vol inter2_oprc inter2_hgpr
    inter2_lwpr inter2_llam inter2_mxpr inter2_askp inter2_bidp seln_rsqn shnu_rsqn
    total_askp_rsqn total_bidp_rsqn acml_tr_pbmn inter2_prdy_clpr oprc_vrss_hgpr_rate
    intr_antc_cntg_vrss intr_antc_cntg_vrss_sign intr_antc_cntg_prdy_ctrt intr_antc_vol
    inter2_sdpr
"""
_EMPTY_ROW = dict.fromkeys(_ROW_FIELDS.split(), "0")

SECTOR = "전기.전자"
_TEXTS = ("_name", "_yn", "_date", "_isnm", "_code", "_cnnm", "_month", "_iscd")
_FLAGS_OFF = names("""
    oprc_rang_cont_yn clpr_rang_cont_yn elw_pblc_yn ovtm_vi_cls_code invt_caful_yn short_over_yn
    sltr_yn mang_issu_cls_code
""")
_NOT_COUNTED = {"pgtr_ntby_qty": "0", "apprch_rate": "0.00", "last_ssts_cntg_qty": "0"}
PRICE_FIELDS = names("""
    iscd_stat_cls_code marg_rate rprs_mrkt_kor_name new_hgpr_lwpr_cls_code bstp_kor_isnm
    temp_stop_yn oprc_rang_cont_yn clpr_rang_cont_yn crdt_able_yn grmn_rate_cls_code elw_pblc_yn
    stck_prpr prdy_vrss prdy_vrss_sign prdy_ctrt acml_tr_pbmn acml_vol prdy_vrss_vol_rate
    stck_oprc stck_hgpr stck_lwpr stck_mxpr stck_llam stck_sdpr wghn_avrg_stck_prc hts_frgn_ehrt
    frgn_ntby_qty pgtr_ntby_qty pvt_scnd_dmrs_prc pvt_frst_dmrs_prc pvt_pont_val
    pvt_frst_dmsp_prc pvt_scnd_dmsp_prc dmrs_val dmsp_val cpfn rstc_wdth_prc stck_fcam stck_sspr
    aspr_unit hts_deal_qty_unit_val lstn_stcn hts_avls per pbr stac_month vol_tnrt eps bps
    d250_hgpr d250_hgpr_date d250_hgpr_vrss_prpr_rate d250_lwpr d250_lwpr_date
    d250_lwpr_vrss_prpr_rate stck_dryy_hgpr dryy_hgpr_vrss_prpr_rate dryy_hgpr_date
    stck_dryy_lwpr dryy_lwpr_vrss_prpr_rate dryy_lwpr_date w52_hgpr w52_hgpr_vrss_prpr_ctrt
    w52_hgpr_date w52_lwpr w52_lwpr_vrss_prpr_ctrt w52_lwpr_date whol_loan_rmnd_rate ssts_yn
    stck_shrn_iscd fcam_cnnm cpfn_cnnm apprch_rate frgn_hldn_qty vi_cls_code ovtm_vi_cls_code
    last_ssts_cntg_qty invt_caful_yn mrkt_warn_cls_code short_over_yn sltr_yn mang_issu_cls_code
""")
