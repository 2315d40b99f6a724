"""Master files of the simulated KOSPI and KOSDAQ, in the form in which KIS publishes its own."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from qts.simulators.market.stocks import StockMarket

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
