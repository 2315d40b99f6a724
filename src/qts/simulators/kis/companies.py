"""Figures of listed companies, and the master files that list them as KIS publishes its own.

A simulated company has no accounts: what no trade decides is made from its code, once and for all.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from typing import NamedTuple

import numpy as np

from qts.simulators.market.history import MarketHistory
from qts.simulators.market.markets import StockMarket
from qts.simulators.market.rules import DAY_S, is_open, noise, yyyymmdd

_SHARES_IN_FLOAT = 400  # listed shares, as a multiple of a usual day's volume
_HUNDRED_MILLION = 10**8  # the unit of capital and market value
_FACES = (100, 500, 1_000, 5_000)
_YEAR_DAYS = 250


class Extremes(NamedTuple):
    """Highest and lowest closing price of some days, and their days."""

    high: int
    high_on: int
    low: int
    low_on: int


class KisFigures:
    def __init__(self, market: StockMarket, history: MarketHistory) -> None:
        self._market = market
        self.history = history

    def listed(self, i: int) -> int:
        """Return the number of shares."""
        return int(self._market.universe.daily_volume[i]) * _SHARES_IN_FLOAT

    def face(self, i: int) -> int:
        return _FACES[int(self.noise(i, 11) * len(_FACES))]

    def capital(self, i: int) -> int:
        """Return the capital, in hundreds of millions of won."""
        return self.listed(i) * self.face(i) // _HUNDRED_MILLION

    def value(self, i: int) -> int:
        """Return the market value, in hundreds of millions of won."""
        return self.listed(i) * int(self._market.price[i]) // _HUNDRED_MILLION

    def earnings(self, i: int) -> float:
        """Return the earnings of a share: 4 to 12 % of its price before the first day."""
        return float(self._market.universe.price[i]) * (0.04 + 0.08 * self.noise(i, 12))

    def book_value(self, i: int) -> float:
        return float(self._market.universe.price[i]) * (0.4 + 1.2 * self.noise(i, 13))

    def foreign_share(self, i: int) -> float:
        """Return how much of the company foreigners hold, in percent."""
        return 2 + 55 * self.noise(i, 14)

    def noise(self, i: int, number: int) -> float:
        return noise((self._market.seed << 48) ^ (i << 32) ^ number)

    def valuation(self, i: int) -> dict[str, str]:
        """Return what quotes and charts show beside the price."""
        price = int(self._market.price[i])
        eps, bps = self.earnings(i), self.book_value(i)
        return {
            "stck_fcam": str(self.face(i)),
            "lstn_stcn": str(self.listed(i)),
            "cpfn": str(self.capital(i)),
            "hts_avls": str(self.value(i)),
            "per": f"{price / eps:.2f}",
            "eps": f"{eps:.2f}",
            "pbr": f"{price / bps:.2f}",
            "vol_tnrt": f"{100 * int(self._market.volume[i]) / self.listed(i):.2f}",
        }

    def ownership(self, i: int) -> dict[str, str]:
        share = self.foreign_share(i)
        return {
            "hts_frgn_ehrt": f"{share:.2f}",
            "frgn_ntby_qty": str(self.net_foreign(i, self._market.time // DAY_S)),
            "frgn_hldn_qty": str(int(self.listed(i) * share / 100)),
        }

    def net_foreign(self, i: int, day: int) -> int:
        """Return what foreigners bought on a day, less what they sold."""
        return int(self._market.universe.daily_volume[i] * 0.1 * (self.noise(i, day) - 0.5))

    # Highs and lows

    def extremes(self, i: int, days: int = _YEAR_DAYS, since: int = 0) -> Extremes:
        """Return the extremes of the last days, from a first day on, and today's so far."""
        on, closes = self.history.closes(i, days)
        chosen = on >= since
        on, closes = on[chosen], closes[chosen]
        m, today = self._market, self._market.time // DAY_S
        high, low = int(m.high[i] or m.price[i]), int(m.low[i] or m.price[i])
        if not len(closes):
            return Extremes(high, today, low, today)
        top, bottom = int(np.argmax(closes)), int(np.argmin(closes))
        best = (high, today) if high >= closes[top] else (int(closes[top]), int(on[top]))
        worst = (low, today) if low <= closes[bottom] else (int(closes[bottom]), int(on[bottom]))
        return Extremes(*best, *worst)

    def highs_and_lows(self, i: int) -> dict[str, str]:
        """Return the fields of 250 days, of this calendar year and of 52 weeks."""
        year = date.fromordinal(self._market.time // DAY_S).replace(month=1, day=1).toordinal()
        weeks = self._market.time // DAY_S - 364
        fields = _extreme_fields("d250_{}", "d250_{}_vrss_prpr_rate", "d250_{}_date")
        values = self._against(i, self.extremes(i), fields)
        fields = _extreme_fields("stck_dryy_{}", "dryy_{}_vrss_prpr_rate", "dryy_{}_date")
        values |= self._against(i, self.extremes(i, since=year), fields)
        fields = _extreme_fields("w52_{}", "w52_{}_vrss_prpr_ctrt", "w52_{}_date")
        return values | self._against(i, self.extremes(i, 260, weeks), fields)

    def _against(self, i: int, found: Extremes, fields: list[tuple[str, ...]]) -> dict[str, str]:
        price, values = int(self._market.price[i]), {}
        ends = ((found.high, found.high_on), (found.low, found.low_on))
        for (name, rate, on), (mark, day) in zip(fields, ends, strict=True):
            values[name] = str(mark)
            values[rate] = f"{100 * (price - mark) / mark:.2f}"
            values[on] = yyyymmdd(day * DAY_S)
        return values

    # Yesterday

    def day_before(self) -> int:
        """Return the last trading day before today."""
        day = date.fromordinal(self._market.time // DAY_S) - timedelta(days=1)
        while not is_open(day):
            day -= timedelta(days=1)
        return day.toordinal()

    def yesterday(self, i: int) -> tuple[int, int, int, int]:
        """Return open, high, low and close of the last trading day; the close if none traded."""
        bar = self.history.day(i, self.day_before())
        close = int(self._market.base[i])
        if not len(bar.start):
            return close, close, close, close
        return int(bar.open[0]), int(bar.high[0]), int(bar.low[0]), int(bar.close[0])

    def pivots(self, i: int) -> dict[str, str]:
        """Return pivot, resistance and support of today, and DeMark's, from yesterday's bar."""
        opens, high, low, close = self.yesterday(i)
        pivot = (high + low + close) // 3
        wider = high if close > opens else low if close < opens else close
        mark = (high + low + close + wider) / 2
        return {
            "pvt_scnd_dmrs_prc": str(pivot + high - low),
            "pvt_frst_dmrs_prc": str(2 * pivot - low),
            "pvt_pont_val": str(pivot),
            "pvt_frst_dmsp_prc": str(2 * pivot - high),
            "pvt_scnd_dmsp_prc": str(pivot - high + low),
            "dmrs_val": str(int(mark - low)),
            "dmsp_val": str(int(mark - high)),
        }


def _extreme_fields(*forms: str) -> list[tuple[str, ...]]:
    return [tuple(form.format(end) for form in forms) for end in ("hgpr", "lwpr")]


FILES = {"kospi_code.mst.zip": True, "kosdaq_code.mst.zip": False}  # file: whether it is KOSPI's
_CODE_BYTES, _ISIN_BYTES, _NAME_BYTES = 9, 12, 40


class MasterRow(NamedTuple):
    """A product; `group` is its type: ST stock, EF ETF, EN ETN, EW ELW, RT REIT and others."""

    code: str
    name: str
    base: int
    group: str = "ST"
    lot: int = 1
    halted: bool = False
    liquidation: bool = False
    administrative: bool = False
    alarm: int = 0
    thousand_shares: int = 0


# Field: where it begins in the tail, and its length. The tail of KOSPI has 227 bytes, KOSDAQ's 221.
_KOSPI = {
    "group": (0, 2), "base": (41, 9), "lot": (50, 5), "after_hours_lot": (55, 5), "halted": (60, 1),
    "liquidation": (61, 1), "administrative": (62, 1), "alarm": (63, 2), "shares": (113, 15),
}  # fmt: skip
_KOSDAQ = {
    "group": (0, 2), "base": (36, 9), "lot": (45, 5), "after_hours_lot": (50, 5), "halted": (55, 1),
    "liquidation": (56, 1), "administrative": (57, 1), "alarm": (58, 2), "shares": (108, 15),
}  # fmt: skip
_WIDTHS = {True: 227, False: 221}


def write_master(rows: Iterable[MasterRow], kospi: bool) -> bytes:
    """Return the lines of a file; a name that is too long is cut at a character."""
    return b"".join(_line(row, kospi) + b"\n" for row in rows)


def master_zip(market: StockMarket, file: str) -> bytes:
    """Return one of `FILES` for the symbols of a market, at its prices of now."""
    kospi, universe = FILES[file], market.universe
    rows = (
        MasterRow(
            code=universe.codes[i],
            name=universe.names[i],
            base=int(market.base[i]),
            halted=bool(market.suspended[i]),
            thousand_shares=int(universe.daily_volume[i]),  # a day's volume is 0.1 % of them
        )
        for i in range(len(universe.codes))
        if bool(universe.kospi[i]) is kospi
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(file.removesuffix(".zip"), write_master(rows, kospi))
    return packed.getvalue()


def _line(row: MasterRow, kospi: bool) -> bytes:
    isin = f"KR7{row.code[-6:]:0>6}000"[:_ISIN_BYTES]
    head = row.code.encode().ljust(_CODE_BYTES) + isin.encode().ljust(_ISIN_BYTES)
    fields = _KOSPI if kospi else _KOSDAQ
    values = {
        "group": row.group,
        "base": f"{row.base:09}",
        "lot": f"{row.lot:05}",
        "after_hours_lot": f"{row.lot:05}",
        "halted": _flag(row.halted),
        "liquidation": _flag(row.liquidation),
        "administrative": _flag(row.administrative),
        "alarm": f"{row.alarm:02}",
        "shares": f"{row.thousand_shares:015}",
    }
    return head + _name(row.name) + _tail(fields, values, _WIDTHS[kospi])


def _tail(fields: Mapping[str, tuple[int, int]], values: Mapping[str, str], width: int) -> bytes:
    tail = bytearray(b"0" * width)
    for field, (start, length) in fields.items():
        tail[start : start + length] = values[field].encode()[:length].ljust(length)
    return bytes(tail)


def _name(name: str) -> bytes:
    encoded = b""
    for character in name:
        following = character.encode("cp949", "replace")
        if len(encoded) + len(following) > _NAME_BYTES:
            break
        encoded += following
    return encoded.ljust(_NAME_BYTES)


def _flag(on: bool) -> str:
    return "Y" if on else "N"
