"""Brokers and symbols that the operator types: refused when they cannot exist."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import get_args, get_type_hints

from qts.brokers import BrokersConfig
from qts.database import Database
from qts.domain import Market, RefusedError, check_name, nearest_name
from qts.orders.queries import SQL
from qts.orders.suspensions import ALL

BROKERS: tuple[str, ...] = get_args(get_type_hints(BrokersConfig)["broker"])
_MARKETS = {"kis": (Market.KRX,), "upbit": (Market.UPBIT,)}  # the paper broker trades both
_FORMS = {
    Market.KRX: (re.compile(r"[0-9A-Z]{6}|Q[0-9]{6}"), "005930"),
    Market.UPBIT: (re.compile(r"KRW-[0-9A-Z]{1,15}"), "KRW-BTC"),
}


def check_broker(broker: str) -> None:
    check_name("broker", broker, BROKERS)


async def check_symbol(
    database: Database, broker: str, symbol: str, *, or_whole_venue: bool = False
) -> None:
    """Raise RefusedError for a symbol that the broker cannot trade.

    A symbol is valid if it has the form of the broker's market or is in the ledger of the broker.
    """
    if or_whole_venue and symbol == ALL:
        return
    forms = [_FORMS[market] for market in _MARKETS.get(broker, tuple(Market))]
    if any(form.fullmatch(symbol) for form, _ in forms):
        return
    known = await _ledger_symbols(database, broker)
    if symbol in known:
        return
    near = nearest_name(symbol, known)
    raise RefusedError(
        f"symbol {symbol!r} is unknown at {broker}; expected one as in"
        f" {' or '.join(example for _, example in forms)}"
        + (f"; did you mean {near}?" if near else "")
    )


async def check_ledger_symbol(
    database: Database, symbol: str, listed: Callable[[], Iterable[str]]
) -> None:
    """Raise RefusedError for a symbol that is neither in the ledger nor among those `listed`."""
    known = await _ledger_symbols(database)
    if symbol not in known:
        check_name("symbol", symbol, dict.fromkeys((*known, *listed())))


async def _ledger_symbols(database: Database, broker: str | None = None) -> list[str]:
    return [row["symbol"] for row in await database.fetch(SQL.ledger_symbols, broker)]
