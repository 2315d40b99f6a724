"""Master files of KIS: every product of KOSPI and KOSDAQ, one line each, published daily.

A line is a short code (9 bytes), an ISIN (12), a name and a tail of fixed width, in CP949. Fields
are cut by bytes, the tail from the end of the line. The files have no tick size and no tax: those
follow from the class of the product.
"""

from __future__ import annotations

import io
import zipfile
from decimal import Decimal
from typing import NamedTuple

import aiohttp

from qts import telemetry
from qts.domain import Instrument, InstrumentClass, UnreachableError, krx_instrument
from qts.venues.config import KisConfig
from qts.venues.errors import no_reply_error

log = telemetry.logger("venues")

_CODE, _NAME = slice(0, 9), 21  # the name begins after the ISIN
_ENCODING = "cp949"
_MAX_BYTES = 64 * 2**20  # of one file, unpacked; real ones have under 2 MB
_TIMEOUT_S = 20.0

_CLASSES = {
    "ST": InstrumentClass.STOCK,
    "FS": InstrumentClass.STOCK,
    "DR": InstrumentClass.STOCK,
    "RT": InstrumentClass.REIT,
    "EF": InstrumentClass.ETF,
    "FE": InstrumentClass.ETF,
    "EN": InstrumentClass.ETN,
    "EW": InstrumentClass.ELW,
    "MF": InstrumentClass.FUND,
    "IF": InstrumentClass.FUND,
    "BC": InstrumentClass.FUND,
    "SC": InstrumentClass.FUND,
    "SR": InstrumentClass.RIGHT,
    "SW": InstrumentClass.RIGHT,
}


class _Tail(NamedTuple):
    """Width of the tail, and where its fields begin."""

    width: int
    base: int  # 9 bytes
    lot: int  # 5
    halt: int
    liquidation: int
    administrative: int
    alarm: int  # 2
    shares: int  # 15, in thousands


BOARDS = {
    "KOSPI": _Tail(227, 41, 50, 60, 61, 62, 63, 113),
    "KOSDAQ": _Tail(221, 36, 45, 55, 56, 57, 58, 108),
}
FILES = {"KOSPI": "kospi_code.mst.zip", "KOSDAQ": "kosdaq_code.mst.zip"}


def parse_master(board: str, data: bytes) -> list[Instrument]:
    """Return the products of a file.

    Lines of another form are left out; raise ValueError when they are more than 1 %.
    """
    found: list[Instrument] = []
    unreadable: list[str] = []
    lines = data.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(_parse_line(board, line))
        except ValueError as error:
            unreadable.append(f"line {number}: {error}")
    if len(unreadable) > len(lines) / 100:
        raise ValueError(
            f"{len(unreadable)} of {len(lines)} lines of the {board} list are no products,"
            f" first {unreadable[0]}"
        )
    if unreadable:
        log.warning("master lines unreadable; left out", count=len(unreadable), first=unreadable[0])
    return found


def _parse_line(board: str, line: bytes) -> Instrument:
    width = BOARDS[board].width
    code = line[_CODE].decode(_ENCODING, "replace").strip()
    if len(line) < _NAME + width or not (code.isascii() and code.isalnum()):
        raise ValueError(f"{line[:40]!r}")
    return _instrument(code, board, line[_NAME:-width], line[-width:])


def _instrument(code: str, board: str, name: bytes, tail: bytes) -> Instrument:
    at = BOARDS[board]
    base, shares = _number(tail, at.base, 9), _number(tail, at.shares, 15)
    return krx_instrument(
        code,
        _CLASSES.get(tail[:2].decode(_ENCODING, "replace"), InstrumentClass.OTHER),
        board=board,
        name=name.decode(_ENCODING, "replace").strip(),
        lot=Decimal(_number(tail, at.lot, 5) or 1),
        base_price=Decimal(base) if base else None,
        listed_shares=shares * 1000 if shares else None,
        halted=_flag(tail, at.halt),
        liquidation=_flag(tail, at.liquidation),
        administrative=_flag(tail, at.administrative),
        caution=_number(tail, at.alarm, 2) > 0,
    )


def _number(tail: bytes, start: int, length: int) -> int:
    text = tail[start : start + length].strip()
    return int(text) if text else 0


def _flag(tail: bytes, at: int) -> bool:
    return tail[at : at + 1] == b"Y"


def unpack_master(data: bytes) -> bytes:
    """Return the content of a zip of one master file; raise ValueError for anything else."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = [name for name in archive.namelist() if name.endswith(".mst")]
            if len(names) != 1:
                raise ValueError(f"expected one .mst in the zip, found {names or 'none'}")
            if archive.getinfo(names[0]).file_size > _MAX_BYTES:
                raise ValueError(f"{names[0]} is larger than {_MAX_BYTES} bytes")
            return archive.read(names[0])
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"not a readable zip: {error}") from None


async def fetch_kis_instruments(config: KisConfig) -> list[Instrument]:
    """Download both lists; raise UnreachableError if one cannot be had or read.

    The host takes no key; its certificate is verified.
    """
    found: list[Instrument] = []
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for board, file in FILES.items():
            url = f"{config.master}/{file}"
            try:
                async with session.get(url, allow_redirects=False) as response:
                    data, status = await response.read(), response.status
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                raise no_reply_error(f"the master file {url}", error, changes=False) from None
            if status != 200:
                raise UnreachableError(f"the master file {url}: HTTP {status}")
            try:
                found += parse_master(board, unpack_master(data))
            except ValueError as error:
                raise UnreachableError(f"the master file {url}: {error}") from None
    if not found:
        raise UnreachableError(f"the master files at {config.master} hold no product")
    return found
