"""What KIS's message codes mean for the one who asked; HTTP status alone says little.

KIS answers HTTP 500 to a key that is over its limit and 200 to a rejected order, so the code
decides and the status only where there is none.
"""

from __future__ import annotations

from qts.domain import OutcomeUnknownError, QtsError, RefusedError, UnreachableError
from qts.venues.errors import NotOffered, Rejected, Throttled

TOKEN_ENDED = frozenset({"EGW00121", "EGW00123"})
TOKEN_TOO_SOON = "EGW00133"  # noqa: S105 - a message code
THROTTLED = frozenset({"EGW00201", "EGW00215"})
OUTCOME_UNKNOWN = frozenset({"EGW00301", "EGW00302"})
WRONG_SETTINGS = {
    "EGW00103": "venues.kis.app_key is not known to KIS",
    "EGW00105": "venues.kis.app_secret does not belong to the app key",
    "EGW02004": "venues.kis.app_key belongs to the other environment; see venues.kis.paper",
    "EGW02007": "venues.kis.app_key belongs to the other environment; see venues.kis.paper",
    "IGW00002": "venues.kis.account does not belong to the app key",
    "40910000": "the account is not registered for paper trading",
}
NOT_OFFERED = frozenset({"EGW02006", "90000000"})


def error_of(code: str, text: str, status: int, changes: bool) -> QtsError:
    """The error for a reply that is no success; `changes`: the request could move something."""
    told = f"KIS {code or f'HTTP {status}'}: {text.strip() or 'no explanation'}"
    if code in THROTTLED or (not code and status == 429):
        return Throttled(told)
    if code in WRONG_SETTINGS:
        return RefusedError(f"{WRONG_SETTINGS[code]} ({told})")
    if code in NOT_OFFERED:
        return NotOffered(told, code)
    if code in OUTCOME_UNKNOWN or (not code and status >= 500):
        return OutcomeUnknownError(told) if changes else UnreachableError(told)
    return Rejected(told, code)
