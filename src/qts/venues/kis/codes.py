"""Message codes of KIS by class, and the error for an error reply.

KIS replies HTTP 500 to a key that is over its limit and 200 to a rejected order, so the code
decides. The HTTP status decides only for a 429 and a redirect.
"""

from __future__ import annotations

from qts.domain import QtsError
from qts.venues.errors import ReplyClass, VenueCode, by_code, error_of_class, redirect_error

_REJECTED = ReplyClass.REJECTED
_SETTINGS = ReplyClass.SETTINGS
_OTHER_KEY = "venues.kis.app_key belongs to the other environment; see venues.kis.paper"

CODES = by_code(
    VenueCode("EGW00103", _SETTINGS, "venues.kis.app_key is not known to KIS"),
    VenueCode("EGW00105", _SETTINGS, "venues.kis.app_secret does not belong to the app key"),
    VenueCode("EGW00121", ReplyClass.TOKEN, "the token is not valid"),
    VenueCode("EGW00123", ReplyClass.TOKEN, "the token has expired"),
    VenueCode("EGW00133", ReplyClass.TOKEN, "a token is issued once a minute"),
    VenueCode("EGW00201", ReplyClass.RATE_LIMITED, "too many requests of this key in a second"),
    VenueCode("EGW00215", ReplyClass.RATE_LIMITED, "too many requests of all customers"),
    VenueCode("EGW00301", ReplyClass.UNKNOWN, "timeout inside KIS; the request may be executed"),
    VenueCode("EGW00302", ReplyClass.UNKNOWN, "timeout inside KIS; the request may be executed"),
    VenueCode("EGW02004", _SETTINGS, _OTHER_KEY),
    VenueCode("EGW02006", ReplyClass.NOT_SUPPORTED, "not available to paper keys"),
    VenueCode("EGW02007", _SETTINGS, _OTHER_KEY),
    VenueCode("IGW00002", _SETTINGS, "venues.kis.account does not belong to the app key"),
    VenueCode("OPSQ0002", _REJECTED, "no such service", confirmed=False),
    VenueCode("OPSQ2001", _REJECTED, "an input field is wrong"),
    VenueCode("APBK0344", _REJECTED, "no such order to change or cancel", confirmed=False),
    VenueCode("APBK0400", _REJECTED, "more than can be sold"),
    VenueCode("APBK0506", _REJECTED, "the price is not on a tick", confirmed=False),
    VenueCode("APBK0551", _REJECTED, "the price is outside the day's limits", confirmed=False),
    VenueCode("APBK0656", _REJECTED, "no such symbol"),
    VenueCode("APBK0918", _REJECTED, "outside trading hours"),
    VenueCode("APBK0919", _REJECTED, "outside trading hours"),
    VenueCode("APBK0927", _REJECTED, "nothing left to change or cancel", confirmed=False),
    VenueCode("APBK0952", _REJECTED, "more than the buying power"),
    VenueCode("APBK1058", _REJECTED, "order type not allowed"),
    VenueCode("APBK1943", _REJECTED, "market orders not allowed"),
    VenueCode("APBK3013", _REJECTED, "only limit orders in this session"),
    VenueCode("40100000", _REJECTED, "paper trading: not a business day"),
    VenueCode("40570000", _REJECTED, "paper trading: before the opening"),
    VenueCode("40910000", _SETTINGS, "the account is not registered for paper trading"),
    VenueCode("90000000", ReplyClass.NOT_SUPPORTED, "not offered in paper trading"),
)
STATUSES = {429: VenueCode("HTTP 429", ReplyClass.RATE_LIMITED, "too many requests")}
TOKEN_REJECTED = frozenset({"EGW00121", "EGW00123"})
TOKEN_TOO_SOON = "EGW00133"  # noqa: S105 - a message code


def reply_error(status: int, code: str, text: str, changes: bool) -> QtsError:
    """Return the error for an error reply; `changes`: the request could modify something."""
    if 300 <= status < 400:
        return redirect_error("KIS", status, changes)
    message = f"KIS {code or f'HTTP {status}'}: {text.strip() or 'no explanation'}"
    listed = STATUSES.get(status) or CODES.get(code)
    if listed is None:
        return error_of_class(ReplyClass.UNKNOWN, message, code, changes)
    if listed.kind is ReplyClass.SETTINGS:
        message = f"{listed.meaning} ({message})"
    return error_of_class(listed.kind, message, code, changes)
