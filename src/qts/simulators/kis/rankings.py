"""KIS lists over the whole market: rankings, interruptions, holidays; and index prices."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from qts.simulators.kis.gateway import invalid, required, success
from qts.simulators.kis.quotes import KisQuoteApi, percent
from qts.simulators.market.markets import StockMarket
from qts.simulators.market.rules import Flags, Floats, hhmmss, is_open, yyyymmdd

RANKED = 30
HOLIDAY_ROWS = 20


class KisRankingApi:
    def __init__(self, market: StockMarket, quotes: KisQuoteApi) -> None:
        self._market = market
        self._quotes = quotes

    def by_volume(self, query: Mapping[str, str]) -> dict[str, Any]:
        m = self._market
        kind = query.get("FID_BLNG_CLS_CODE", "0")
        measure = {
            "1": m.volume / np.maximum(m.prev_volume, 1),
            "2": m.volume / m.universe.daily_volume,
            "3": m.value.astype(np.float64),
        }.get(kind, m.volume.astype(np.float64))
        return success({"output": [self._volume_row(*ranked) for ranked in _best(measure)]})

    def _volume_row(self, rank: int, i: int) -> dict[str, str]:
        m = self._market
        volume, before = int(m.volume[i]), int(m.prev_volume[i])
        listed = self._quotes.listed(i)
        turnover = f"{100 * volume / listed:.2f}"
        value_turnover = f"{100 * int(m.value[i]) / (listed * int(m.price[i])):.2f}"
        return {
            "hts_kor_isnm": m.universe.names[i],
            "mksc_shrn_iscd": m.universe.codes[i],
            "data_rank": str(rank),
            **self._quotes.headline(i),
            "acml_vol": str(volume),
            "prdy_vol": str(before),
            "lstn_stcn": str(self._quotes.listed(i)),
            "avrg_vol": str(volume),
            "n_befr_clpr_vrss_prpr_rate": self._quotes.headline(i)["prdy_ctrt"],
            "vol_inrt": f"{100 * volume / max(1, before):.2f}",
            "vol_tnrt": turnover,
            "nday_vol_tnrt": turnover,
            "avrg_tr_pbmn": str(m.value[i]),
            "tr_pbmn_tnrt": value_turnover,
            "nday_tr_pbmn_tnrt": value_turnover,
            "acml_tr_pbmn": str(m.value[i]),
        }

    def by_change(self, query: Mapping[str, str]) -> dict[str, Any]:
        m = self._market
        change = (m.price - m.base) / m.base
        down = query.get("FID_RANK_SORT_CLS_CODE", "0") == "1"
        best = _best(-change if down else change)
        return success({"output": [self._change_row(*ranked) for ranked in best]})

    def _change_row(self, rank: int, i: int) -> dict[str, str]:
        m, now = self._market, self._quotes.headline(i)
        price, opened = int(m.price[i]), int(m.open[i])
        return {
            "stck_shrn_iscd": m.universe.codes[i],
            "data_rank": str(rank),
            "hts_kor_isnm": m.universe.names[i],
            **now,
            "acml_vol": str(m.volume[i]),
            "stck_hgpr": str(m.high[i]),
            "hgpr_hour": hhmmss(int(m.high_at[i])),
            "acml_hgpr_date": yyyymmdd(m.time),
            "stck_lwpr": str(m.low[i]),
            "lwpr_hour": hhmmss(int(m.low_at[i])),
            "acml_lwpr_date": yyyymmdd(m.time),
            "lwpr_vrss_prpr_rate": percent(price, int(m.low[i])),
            "dsgt_date_clpr_vrss_prpr_rate": now["prdy_ctrt"],
            "cnnt_ascn_dynu": "0",
            "hgpr_vrss_prpr_rate": percent(price, int(m.high[i])),
            "cnnt_down_dynu": "0",
            "oprc_vrss_prpr_sign": "2" if price > opened else "5" if price < opened else "3",
            "oprc_vrss_prpr": str(price - opened),
            "oprc_vrss_prpr_rate": percent(price, opened),
            "prd_rsfl": now["prdy_vrss"],
            "prd_rsfl_rate": now["prdy_ctrt"],
        }

    def interrupted(self, query: Mapping[str, str]) -> dict[str, Any]:
        m = self._market
        code = query.get("FID_INPUT_ISCD", "")
        rows = [
            {
                "hts_kor_isnm": m.universe.names[i],
                "mksc_shrn_iscd": m.universe.codes[i],
                "vi_cls_code": "Y",
                "bsop_date": yyyymmdd(m.time),
                "cntg_vi_hour": hhmmss(m.time),
                "vi_cncl_hour": hhmmss(int(m.vi_until[i])),
                "vi_kind_code": "1",
                "vi_prc": str(m.expected[i]),
                "vi_stnd_prc": str(m.vi_reference[i]),
                "vi_dprt": f"{100 * (m.expected[i] / m.vi_reference[i] - 1):.2f}",
                "vi_dmc_stnd_prc": "0",
                "vi_dmc_dprt": "0.00",
                "vi_count": "1",
            }
            for i in np.flatnonzero(m.vi_until)
            if code in ("", m.universe.codes[i])
        ]
        return success({"output": rows})

    def holidays(self, query: Mapping[str, str]) -> dict[str, Any]:
        try:
            first = datetime.strptime(query.get("BASS_DT", ""), "%Y%m%d").date()  # noqa: DTZ007 - a date
        except ValueError:
            raise invalid("BASS_DT") from None
        rows = []
        for n in range(HOLIDAY_ROWS):
            day = first + timedelta(days=n)
            trading = "Y" if is_open(day) else "N"
            rows.append(
                {
                    "bass_dt": day.strftime("%Y%m%d"),
                    "wday_dvsn_cd": f"{(day.weekday() + 1) % 7 + 1:02}",
                    "bzdy_yn": trading,
                    "tr_day_yn": trading,
                    "opnd_yn": trading,
                    "sttl_day_yn": trading,
                }
            )
        return success({"output": rows, "ctx_area_nk": "", "ctx_area_fk": ""})


def _best(measure: Floats) -> list[tuple[int, int]]:
    order = np.argsort(-measure, kind="stable")[:RANKED]
    return [(rank, int(i)) for rank, i in enumerate(order, 1)]


_CLOSES = {"0001": 2_650.0, "1001": 850.0, "2001": 355.0, "0503": 18.0}  # of the previous day
VKOSPI = "0503"


class _Move:
    """Change of an index that is planted, in a straight line over some seconds."""

    def __init__(self, start: int, begins: float, ends: float, over_s: int) -> None:
        self._start, self._begins, self._ends, self._over_s = start, begins, ends, over_s

    def factor(self, now: int) -> float:
        done = min(1.0, (now - self._start) / self._over_s)
        return self._begins + (self._ends - self._begins) * done


class KisIndexApi:
    """Index prices; every value is a string, as the venue sends it."""

    def __init__(self, market: StockMarket) -> None:
        self._market = market
        universe = market.universe
        self._members: dict[str, Flags] = {
            "0001": universe.kospi,
            "1001": ~universe.kospi,
            "2001": universe.narrow_vi,
        }
        self._moves: dict[str, _Move] = {}

    def move(self, code: str, percent: float, over_s: int) -> None:
        """Move an index by a share of its value, apart from its members; raises KeyError."""
        if code not in _CLOSES:
            raise KeyError(code)
        now, begins = self._market.time, self._factor(code)
        self._moves[code] = _Move(now, begins, begins * (1 + percent / 100), over_s)

    def _factor(self, code: str) -> float:
        move = self._moves.get(code)
        return move.factor(self._market.time) if move else 1.0

    def value(self, code: str) -> float:
        m, members = self._market, self._members.get(code)
        mean = 1.0
        if members is not None and members.any():
            mean = float(np.mean(m.price[members] / m.base[members]))
        return round(_CLOSES[code] * mean * self._factor(code), 2)

    def price(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return an index; KIS refuses no code, and sends zeros for an unknown one."""
        if required(query, "FID_COND_MRKT_DIV_CODE") != "U":
            raise invalid("FID_COND_MRKT_DIV_CODE")
        code = required(query, "FID_INPUT_ISCD")
        value = self.value(code) if code in _CLOSES else 0.0
        close = _CLOSES.get(code, 0.0)
        low, high = min(value, close), max(value, close)
        m = self._market
        output = {
            "bstp_nmix_prpr": f"{value:.2f}",
            "bstp_nmix_prdy_vrss": f"{value - close:.2f}",
            "prdy_vrss_sign": _sign(value, close),
            "bstp_nmix_prdy_ctrt": _percent(value, close),
            "acml_vol": str(int(m.volume.sum()) // 1000),
            "prdy_vol": str(int(m.prev_volume.sum()) // 1000),
            "acml_tr_pbmn": str(int(m.value.sum()) // 1_000_000),
            "prdy_tr_pbmn": str(int((m.prev_volume * m.base).sum()) // 1_000_000),
            "bstp_nmix_oprc": f"{close:.2f}",
            "prdy_nmix_vrss_nmix_oprc": "0.00",
            "oprc_vrss_prpr_sign": _sign(value, close),
            "bstp_nmix_oprc_prdy_ctrt": "0.00",
            "bstp_nmix_hgpr": f"{high:.2f}",
            "prdy_nmix_vrss_nmix_hgpr": f"{high - close:.2f}",
            "hgpr_vrss_prpr_sign": _sign(value, high),
            "bstp_nmix_hgpr_prdy_ctrt": _percent(high, close),
            "bstp_nmix_lwpr": f"{low:.2f}",
            "prdy_clpr_vrss_lwpr": f"{low - close:.2f}",
            "lwpr_vrss_prpr_sign": _sign(value, low),
            "prdy_clpr_vrss_lwpr_rate": _percent(low, close),
            **self._counts(code),
            "dryy_bstp_nmix_hgpr": f"{high:.2f}",
            "dryy_hgpr_vrss_prpr_rate": _percent(value, high),
            "dryy_bstp_nmix_hgpr_date": yyyymmdd(m.time),
            "dryy_bstp_nmix_lwpr": f"{low:.2f}",
            "dryy_lwpr_vrss_prpr_rate": _percent(value, low),
            "dryy_bstp_nmix_lwpr_date": yyyymmdd(m.time),
            "total_askp_rsqn": "0",
            "total_bidp_rsqn": "0",
            "seln_rsqn_rate": "0.00",
            "shnu_rsqn_rate": "0.00",
            "ntby_rsqn": "0",
        }
        return success({"output": output})

    def _counts(self, code: str) -> dict[str, str]:
        """Return how many members rise, stand and fall, and how many are at a limit."""
        m, members = self._market, self._members.get(code)
        chosen = members if members is not None else np.zeros(len(m.price), np.bool_)
        price, base = m.price[chosen], m.base[chosen]
        return {
            "ascn_issu_cnt": str(int((price > base).sum())),
            "uplm_issu_cnt": str(int((price == m.upper[chosen]).sum())),
            "stnr_issu_cnt": str(int((price == base).sum())),
            "down_issu_cnt": str(int((price < base).sum())),
            "lslm_issu_cnt": str(int((price == m.lower[chosen]).sum())),
        }


def _sign(value: float, mark: float) -> str:
    return "2" if value > mark else "5" if value < mark else "3"


def _percent(value: float, mark: float) -> str:
    return f"{100 * (value - mark) / mark if mark else 0:.2f}"
