"""KIS lists over the whole market: rankings, interruptions, holidays."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from qts.simulators.kis.gateway import invalid, success
from qts.simulators.kis.quotes import KisQuoteApi, percent
from qts.simulators.market.sessions import hhmmss, is_open, yyyymmdd
from qts.simulators.market.stocks import StockMarket
from qts.simulators.market.ticks import Floats

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
