"""KIS market data over REST: quotes, multi-quotes, order book."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qts.simulators.kis.gateway import KisError, success
from qts.simulators.market.sessions import hhmmss
from qts.simulators.market.stocks import StockMarket

BATCH = 30
_SHARES_IN_FLOAT = 400  # listed shares, as a multiple of a usual day's volume


class KisQuoteApi:
    """Market data requests; every value is a string, as the venue sends it."""

    def __init__(self, market: StockMarket, unknown: str, unsigned_change: bool) -> None:
        self._market = market
        self._unknown = unknown
        self._unsigned = unsigned_change

    # inquire-price

    def price(self, query: Mapping[str, str]) -> dict[str, Any]:
        i = self.index(query.get("FID_INPUT_ISCD", ""))
        m, price = self._market, self.shown_price(i)
        base, volume = int(m.base[i]), int(m.volume[i])
        output = {
            "iscd_stat_cls_code": "58" if m.suspended[i] else "55",
            "marg_rate": "20.00",
            "rprs_mrkt_kor_name": "KOSPI200" if m.universe.narrow_vi[i] else self._board(i),
            "bstp_kor_isnm": "전기.전자",
            "temp_stop_yn": "Y" if m.suspended[i] else "N",
            "oprc_rang_cont_yn": "N",
            "clpr_rang_cont_yn": "N",
            "crdt_able_yn": "Y",
            "stck_prpr": str(price),
            **self._change(i, price),
            "acml_tr_pbmn": str(m.value[i]),
            "acml_vol": str(volume),
            "prdy_vrss_vol_rate": f"{100 * volume / max(1, int(m.prev_volume[i])):.2f}",
            "stck_oprc": str(m.open[i]),
            "stck_hgpr": str(m.high[i]),
            "stck_lwpr": str(m.low[i]),
            "stck_mxpr": str(m.upper[i]),
            "stck_llam": str(m.lower[i]),
            "stck_sdpr": str(base),
            "wghn_avrg_stck_prc": f"{m.value[i] / volume if volume else 0:.2f}",
            "rstc_wdth_prc": str(m.upper[i] - base),
            "aspr_unit": str(m.table.tick(price)),
            "hts_deal_qty_unit_val": "1",
            "lstn_stcn": str(self.listed(i)),
            "stck_shrn_iscd": m.universe.codes[i],
            "vi_cls_code": "Y" if m.in_vi(i) else "N",
            "ovtm_vi_cls_code": "N",
            "invt_caful_yn": "N",
            "mrkt_warn_cls_code": "00",
            "short_over_yn": "N",
            "sltr_yn": "N",
        }
        return success({"output": output})

    def headline(self, i: int) -> dict[str, str]:
        price = self.shown_price(i)
        return {"stck_prpr": str(price), **self._change(i, price)}

    def shown_price(self, i: int) -> int:
        return int(self._market.price[i])

    def _change(self, i: int, price: int) -> dict[str, str]:
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

    def _board(self, i: int) -> str:
        return "KOSPI" if self._market.universe.kospi[i] else "KOSDAQ"

    def listed(self, i: int) -> int:
        return int(self._market.universe.daily_volume[i]) * _SHARES_IN_FLOAT

    def index(self, code: str) -> int:
        index = self._market.index.get(code)
        if index is None:
            raise KisError("OPSQ2001", f"[FID_INPUT_ISCD {code}]")
        return index

    # intstock-multprice

    def many(self, query: Mapping[str, str]) -> dict[str, Any]:
        numbered = sorted(
            (int(name.rpartition("_")[2]), code)
            for name, code in query.items()
            if name.startswith("FID_INPUT_ISCD_") and name.rpartition("_")[2].isdigit()
        )
        codes = [code for _, code in numbered if code]
        if not codes or len(codes) > BATCH or numbered[0][0] < 1:
            raise KisError("OPSQ2001", f"[FID_INPUT_ISCD_1..{BATCH}: {len(codes)} given]")
        for number, code in numbered:
            if code and not query.get(f"FID_COND_MRKT_DIV_CODE_{number}"):
                raise KisError("OPSQ2001", f"[FID_COND_MRKT_DIV_CODE_{number}]")
        return success({"output": [row for code in codes if (row := self._row(code))]})

    def _row(self, code: str) -> dict[str, str] | None:
        m = self._market
        i = m.index.get(code)
        if i is None:
            return _EMPTY_ROW | {"inter_shrn_iscd": code} if self._unknown == "zeros" else None
        price = 0 if m.suspended[i] else self.shown_price(i)
        book, auction = m.book(i), m.state(i) == "auction"
        change = self._change(i, price or int(m.base[i]))
        ratio = change["prdy_ctrt"].lstrip("-") if self._unsigned else change["prdy_ctrt"]
        expected = int(m.expected[i]) if auction else int(m.base[i])
        ahead = self._change(i, expected)
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
            "oprc_vrss_hgpr_rate": _percent(int(m.high[i]), int(m.open[i])),
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
        i = self.index(query.get("FID_INPUT_ISCD", ""))
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
        net = int(levels["total_bidp_rsqn"]) - int(levels["total_askp_rsqn"])
        levels |= {"ntby_aspr_rsqn": str(net), "new_mkop_cls_code": "20"}
        expected = int(m.expected[i]) if auction else 0
        ahead = self._change(i, expected or int(m.base[i]))
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


def _percent(price: int, of: int) -> str:
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
