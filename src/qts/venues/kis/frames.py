"""Codec of the KIS WebSocket: requests, acknowledgements, data frames, encrypted notices.

    0|H0STCNT0|002|field^field^...        encrypted or not, service, record count, all fields

KIS adds fields to records without notice, so the width of a record is the number of fields
divided by the record count. Fields after the known ones are ignored.
"""

from __future__ import annotations

import base64
import binascii
import functools
from datetime import datetime
from typing import NamedTuple

import msgspec
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC
from cryptography.hazmat.primitives.padding import PKCS7

from qts.domain import BookLevel, OrderBook
from qts.venues.market_data import Quote

TRADES = "H0STCNT0"
BOOKS = "H0STASP0"
FILLS = "H0STCNI0"
PAPER_FILLS = "H0STCNI9"
PING = "PINGPONG"
_CONTINUOUS = "0"  # HOUR_CLS_CODE
FALLING = ("4", "5")  # lower limit, down

# Fields read from each record; a frame with fewer is malformed.
_MIN_FIELDS = {TRADES: 14, BOOKS: 43, FILLS: 17, PAPER_FILLS: 17}


class Frame(NamedTuple):
    service: str
    records: list[list[str]]


class StreamCipher(NamedTuple):
    key: bytes
    iv: bytes


class _Header(msgspec.Struct):
    tr_id: str = ""
    tr_key: str = ""


class _Output(msgspec.Struct):
    iv: str = ""
    key: str = ""


class _Body(msgspec.Struct):
    rt_cd: str = ""
    msg_cd: str = ""
    msg1: str = ""
    output: _Output | None = None


class ControlMessage(msgspec.Struct):
    """JSON message of the venue: a ping, or the reply to a request."""

    header: _Header
    body: _Body | None = None

    @property
    def code(self) -> str:
        return self.body.msg_cd if self.body else ""

    @property
    def cipher(self) -> StreamCipher | None:
        output = self.body.output if self.body else None
        if output is None or not output.key or not output.iv:
            return None
        return StreamCipher(output.key.encode(), output.iv.encode())


class FillNotice(msgspec.Struct, frozen=True):
    """Notice about one of our orders; KIS has no execution ids and never repeats a notice."""

    order_no: str
    original_order_no: str
    symbol: str
    buy: bool
    filled: bool  # else received, changed, cancelled or rejected
    rejected: bool
    quantity: float
    price: float
    hhmmss: str
    branch: str
    order_quantity: float


class MalformedFrameError(ValueError):
    """The frame does not follow the protocol."""


def request(approval: str, service: str, key: str, *, subscribe: bool) -> str:
    return msgspec.json.encode(
        {
            "header": {
                "approval_key": approval,
                "custtype": "P",
                "tr_type": "1" if subscribe else "2",
                "content-type": "utf-8",
            },
            "body": {"input": {"tr_id": service, "tr_key": key}},
        }
    ).decode()


def parse(text: str, ciphers: dict[str, StreamCipher]) -> ControlMessage | Frame:
    if text.startswith("{"):
        try:
            return msgspec.json.decode(text, type=ControlMessage)
        except msgspec.DecodeError as error:
            raise MalformedFrameError(str(error)) from None
    parts = text.split("|", 3)
    if len(parts) != 4 or parts[0] not in "01" or not parts[2].isdigit() or int(parts[2]) < 1:
        raise MalformedFrameError(f"not flag|service|count|fields: {text[:60]!r}")
    flag, service, count, payload = parts
    if flag == "1":
        if service not in ciphers:
            raise MalformedFrameError(f"{service} is encrypted and KIS has not sent its key")
        payload = decrypt(payload, ciphers[service])
    return Frame(service, _records(service, payload.split("^"), int(count)))


def decrypt(payload: str, cipher: StreamCipher) -> str:
    try:
        decryptor = Cipher(AES(cipher.key), CBC(cipher.iv)).decryptor()
        padded = decryptor.update(base64.b64decode(payload, validate=True)) + decryptor.finalize()
        unpadder = PKCS7(128).unpadder()
        return (unpadder.update(padded) + unpadder.finalize()).decode()
    except (ValueError, binascii.Error):
        raise MalformedFrameError("cannot decrypt a notice with its key") from None


def trade_quote(record: list[str]) -> Quote:
    """Return a trade as a quote: price, the day's volume, best ask and bid, its time."""
    raw = {"hour": record[1], "volume": record[12], "fields": str(len(record))}
    try:
        price, volume, ask, bid, change = (float(record[i]) for i in (2, 13, 10, 11, 4))
        at = venue_time(record[33], record[1]) if len(record) > 33 else 0.0
    except ValueError as error:
        raise MalformedFrameError(f"not a number in a trade: {error}") from None
    if record[3] in FALLING:  # the change comes with or without its sign
        change = -abs(change)
    return Quote(record[0], price, volume, bid, ask, raw, "kis_ws", at, price - change)


def order_book(record: list[str], at: float) -> OrderBook | None:
    """Return the ten levels of each side; None in an auction, where nothing trades against them."""
    if record[2] != _CONTINUOUS:
        return None
    try:
        numbers = [float(field or 0) for field in record[3:43]]
    except ValueError as error:
        raise MalformedFrameError(f"not a number in an order book: {error}") from None
    asks, bids = (
        tuple(
            BookLevel(price, quantity)
            for price, quantity in zip(
                numbers[start : start + 10], numbers[start + 20 : start + 30], strict=True
            )
            if price > 0
        )
        for start in (0, 10)
    )
    return OrderBook(record[0], bids, asks, at)


@functools.lru_cache(maxsize=4)
def _midnight(yyyymmdd: str) -> float:
    """Return the start of a day in Seoul."""
    return datetime.strptime(f"{yyyymmdd}+0900", "%Y%m%d%z").timestamp()


def venue_time(yyyymmdd: str, hhmmss: str) -> float:
    """Return a time of KIS in seconds since the Unix epoch; 0 for one that is blank."""
    if not yyyymmdd or not hhmmss:
        return 0.0
    seconds = int(hhmmss[:2]) * 3600 + int(hhmmss[2:4]) * 60 + int(hhmmss[4:6])
    return _midnight(yyyymmdd) + seconds


def fill_notice(record: list[str]) -> FillNotice:
    try:
        quantity, price, ordered = (float(record[i] or 0) for i in (9, 10, 16))
    except ValueError as error:
        raise MalformedFrameError(f"not a number in a notice: {error}") from None
    return FillNotice(
        order_no=record[2].lstrip("0"),
        original_order_no=record[3].lstrip("0"),
        symbol=record[8],
        buy=record[4] == "02",
        filled=record[13] == "2",
        rejected=record[12] == "1",
        quantity=quantity,
        price=price,
        hhmmss=record[11],
        branch=record[15],
        order_quantity=ordered,
    )


def _records(service: str, fields: list[str], count: int) -> list[list[str]]:
    width, rest = divmod(len(fields), count)
    if rest or width < _MIN_FIELDS.get(service, 1):
        raise MalformedFrameError(f"{service}: {len(fields)} fields are not {count} whole records")
    return [fields[start : start + width] for start in range(0, len(fields), width)]
