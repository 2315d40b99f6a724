"""KIS index prices: three indices over the market, and VKOSPI; a control event moves one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qts.simulators.kis.gateway import invalid, required, success
from qts.simulators.market.sessions import yyyymmdd
from qts.simulators.market.stocks import StockMarket
from qts.simulators.market.ticks import Flags

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
