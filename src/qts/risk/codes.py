"""The codes of the fail-safe (FS), the guardrails (GR) and the anomalies (AN), and their effects.

notice     logged; the state does not change
warning    NORMAL becomes WARNING: trading continues
fail       trading stops; a second one in a row is LOCKDOWN
lockdown   everything stops until the operator releases it
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Effect(StrEnum):
    NOTICE = "notice"
    WARNING = "warning"
    FAIL = "fail"
    LOCKDOWN = "lockdown"


class Code(msgspec.Struct, frozen=True):
    code: str
    effect: Effect
    text: str
    transient: bool = False  # a reconciliation without differences may end its FAIL
    escalates: bool = True  # raised in FAIL, it leads to LOCKDOWN


_ROWS: tuple[tuple[str, str, str], ...] = (
    ("FS001", "lockdown", "the schema does not fit this version"),
    ("FS010", "fail", "a required field of the market or account data is missing"),
    ("FS020", "fail", "a calculation did not give a number"),
    ("FS030", "fail", "the risk calculation failed"),
    ("FS040", "fail transient", "the broker failed to execute orders"),
    ("FS041", "fail", "a fill lacks data"),
    ("FS042", "fail transient", "orders are not answered in time"),
    ("FS043", "fail", "the venue has an order of an attempt that was given up"),
    ("FS050", "fail", "the equity is zero or below"),
    ("FS060", "fail transient", "a cycle took far too long"),
    ("FS070", "fail transient", "positions and fills do not agree"),
    ("FS080", "lockdown", "the capital is zero or below"),
    ("FS090", "fail transient", "no order could be sent"),
    ("FS091", "fail", "an order named a symbol that does not exist"),
    ("FS092", "notice", "an emergency escape was carried out"),
    ("FS093", "notice", "an order was not filled in time; the rest is cancelled"),
    ("FS094", "warning", "the slippage is above its limit"),
    ("FS095", "fail transient", "the P0 lane is full"),
    ("FS096", "fail", "the P0 lane failed; trading is suspended"),
    ("FS097", "fail", "the P1 lane could not be restarted"),
    ("FS098", "fail", "a P0 handler used up its retries"),
    ("FS100", "fail transient", "the micro risk loop failed and was restarted"),
    ("FS101", "warning", "the micro risk loop's positions are old"),
    ("FS102", "notice", "an emergency exit was carried out"),
    ("FS103", "notice", "the cycle was suspended"),
    ("FS104", "lockdown", "the volatility kill: everything is sold"),
    ("FS105", "warning", "the price of a position is too old for its stop"),
    ("FS110", "lockdown", "the venue has blocked us (HTTP 418)"),
    ("FS111", "warning", "the outcome of an order is unknown; its symbol is suspended"),
    ("FS112", "notice", "another run has taken the account; this one ends"),
    ("FS113", "warning", "the clock differs from the venue's: no new entries"),
    ("GR001", "warning", "the exposure is at its limit"),
    ("GR010", "warning", "a symbol's weight is at its limit"),
    ("GR020", "warning", "the day's loss is at its limit: no new entries"),
    ("GR030", "notice", "a symbol is bought and sold at once"),
    ("GR040", "notice", "a sale without a position"),
    ("GR041", "notice", "the account holds what QTS did not buy: it is left alone"),
    ("GR061", "notice", "the balance is short"),
    ("GR062", "warning", "the day's number of orders is used up"),
    ("GR063", "notice", "slippage"),
    ("GR064", "notice", "a fill is slow"),
    ("GR070", "notice", "stops are adjusted too often"),
    ("GR071", "notice", "an adverse excursion is near its limit"),
    ("GR072", "notice", "a position is near its time limit"),
    ("GR073", "warning", "volatility is rising"),
    ("GR074", "warning", "an emergency order failed and is retried"),
    ("GR075", "notice", "a position is too small to be sold: it is parked as dust"),
    ("GR090", "warning", "the event lanes handle critical events only"),
    ("AN001", "warning", "a price jumped"),
    ("AN010", "warning", "a symbol or a price is missing"),
    ("AN020", "warning", "the profit jumped"),
    ("AN030", "warning", "the ledger does not add up"),
    ("AN040", "warning", "cycles take three times as long as usual"),
    ("AN050", "warning", "the broker is slow"),
)
# One outage of a venue or of this machine raises several of these: they are not a second failure.
_IN_NUMBERS = frozenset(("FS040", "FS042", "FS060", "FS090"))
CODES: dict[str, Code] = {
    code: Code(
        code,
        Effect(effect.split()[0]),
        text,
        transient=effect.endswith("transient"),
        escalates=code not in _IN_NUMBERS,
    )
    for code, effect, text in _ROWS
}


def is_transient(code: str | None) -> bool:
    """Return whether a FAIL by this code may end without the operator."""
    return code in CODES and CODES[code].transient
