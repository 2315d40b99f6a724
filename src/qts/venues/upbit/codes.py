"""Error names of Upbit by class, and the decoding of its replies.

The HTTP status decides first: 429 and 418 whatever the body says, a redirect, and a 5xx, after
which the outcome is unknown. For the other statuses the name in the body decides.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from qts.domain import QtsError
from qts.venues.errors import (
    UNDECODABLE,
    ReplyClass,
    VenueCode,
    by_code,
    error_of_class,
    redirect_error,
)

_REJECTED = ReplyClass.REJECTED
_SETTINGS = ReplyClass.SETTINGS
_WRONG_KEY = "venues.upbit.access_key or secret_key is wrong"

CODES = by_code(
    VenueCode("400", ReplyClass.REJECTED_QUOTE, "quotes: a value is wrong"),
    VenueCode("404", ReplyClass.REJECTED_QUOTE, "quotes: no such symbol"),
    VenueCode("create_ask_error", _REJECTED, "a sell order is wrong"),
    VenueCode("create_bid_error", _REJECTED, "a buy order is wrong"),
    VenueCode("expired_access_key", _SETTINGS, f"{_WRONG_KEY}: the key has expired"),
    VenueCode(
        "identifier_already_exists",
        ReplyClass.UNKNOWN,
        "the client order id was used before; that order may be open",
        confirmed=False,
    ),
    VenueCode("insufficient_funds_ask", _REJECTED, "more than can be sold"),
    VenueCode("insufficient_funds_bid", _REJECTED, "more than the cash"),
    VenueCode("invalid_access_key", _SETTINGS, f"{_WRONG_KEY}: no such key"),
    VenueCode("invalid_price_ask", _REJECTED, "the price of a sell order is not on a tick"),
    VenueCode("invalid_price_bid", _REJECTED, "the price of a buy order is not on a tick"),
    VenueCode("invalid_query_payload", _REJECTED, "the signature does not cover the values"),
    VenueCode("jwt_verification", _SETTINGS, f"{_WRONG_KEY}: the signature does not match"),
    VenueCode("market_not_found", _REJECTED, "no such symbol", confirmed=False),
    VenueCode(
        "no_authorization_ip",
        _SETTINGS,
        "this machine's address is not on the allow-list of venues.upbit.access_key",
    ),
    VenueCode("no_authorization_token", _REJECTED, "the request is not signed"),
    VenueCode(
        "nonce_used",
        ReplyClass.UNKNOWN,
        "the request arrived twice; the first copy may be executed",
    ),
    VenueCode("order_not_cancelable", _REJECTED, "nothing left to cancel", confirmed=False),
    VenueCode("order_not_found", _REJECTED, "no such order"),
    VenueCode(
        "out_of_scope",
        _SETTINGS,
        "venues.upbit.access_key lacks a permission of view assets, view orders, place orders",
    ),
    VenueCode("under_min_total_ask", _REJECTED, "the value of a sell order is too small"),
    VenueCode("under_min_total_bid", _REJECTED, "the value of a buy order is too small"),
    VenueCode("validation_error", _REJECTED, "a value is missing or wrong"),
)
STATUSES = {
    418: VenueCode("HTTP 418", ReplyClass.BLOCKED, "banned for a time; each request extends it"),
    429: VenueCode("HTTP 429", ReplyClass.RATE_LIMITED, "too many requests"),
}
BLOCK_S = 10.0  # for a block without a duration
_MAX_PAUSE_S = 86_400.0
_SECONDS = re.compile(r"([0-9]{1,9})\s*(?:seconds?|초)")
_DIGITS = re.compile(r"[0-9]{1,9}")


def decode_reply(status: int, data: bytes, retry_after: str | None, changes: bool) -> Any:
    """Return the JSON of a reply, or the error that the reply means."""
    if not 200 <= status < 300:
        return _reply_error(status, data, retry_after, changes)
    try:
        return msgspec.json.decode(data)
    except UNDECODABLE:
        message = "the reply of Upbit is not valid JSON"
        return error_of_class(ReplyClass.UNKNOWN, message, "", changes)


def _reply_error(status: int, data: bytes, retry_after: str | None, changes: bool) -> QtsError:
    if 300 <= status < 400:
        return redirect_error("Upbit", status, changes)
    try:
        error = msgspec.json.decode(data)["error"]
        name, text = str(error.get("name", "")), str(error.get("message", ""))
    except (*UNDECODABLE, KeyError, TypeError, AttributeError):
        name, text = "", ""
    message = f"Upbit HTTP {status} {name}: {text.strip() or 'no explanation'}"
    if limited := STATUSES.get(status):
        pause_s = _pause(status, text, retry_after)
        return error_of_class(limited.kind, message, name, changes, pause_s)
    listed = CODES.get(name)
    if listed is None or not 400 <= status < 500:
        return error_of_class(ReplyClass.UNKNOWN, message, name, changes)
    if listed.kind is ReplyClass.SETTINGS:
        message = f"{listed.meaning} ({message})"
    return error_of_class(listed.kind, message, name, changes)


def _pause(status: int, text: str, retry_after: str | None) -> float | None:
    if retry_after and _DIGITS.fullmatch(retry_after):
        return min(float(retry_after), _MAX_PAUSE_S)
    if found := _SECONDS.search(text):
        return min(float(found[1]), _MAX_PAUSE_S)
    return BLOCK_S if status == 418 else None
