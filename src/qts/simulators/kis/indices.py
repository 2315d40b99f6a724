"""KIS index prices: three indices over the market, and VKOSPI; a control event moves one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qts.simulators.kis.gateway import success
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
        code = query.get("FID_INPUT_ISCD", "")
        value = self.value(code) if code in _CLOSES else 0.0  # KIS refuses no code
        close = _CLOSES.get(code, 0.0)
        change = value - close
        output = {
            "bstp_nmix_prpr": f"{value:.2f}",
            "bstp_nmix_prdy_vrss": f"{change:.2f}",
            "prdy_vrss_sign": "2" if change > 0 else "5" if change < 0 else "3",
            "bstp_nmix_prdy_ctrt": f"{100 * change / close if close else 0:.2f}",
            "acml_vol": str(int(self._market.volume.sum()) // 1000),
            "acml_tr_pbmn": str(int(self._market.value.sum()) // 1_000_000),
            "bstp_nmix_oprc": f"{close:.2f}",
            "bstp_nmix_hgpr": f"{max(value, close):.2f}",
            "bstp_nmix_lwpr": f"{min(value, close):.2f}",
        }
        return success({"output": output})
