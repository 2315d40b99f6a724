"""Status of one account of a run: positions, money, limits and safety, from memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

import msgspec

from qts.dashboard.live_status import AccountStatus, LimitStatus, PositionStatus, SafetyStatus
from qts.dashboard.run_metrics import AccountSources
from qts.orders import AccountState
from qts.pipeline import Portfolio, compute_exposure
from qts.risk import SafetyState

_WON = Decimal("0.01")


def position_statuses(account: AccountSources) -> Iterator[PositionStatus]:
    portfolio, notes = account.portfolio, account.position_notes()
    for each in portfolio.positions.values():
        yield PositionStatus(
            symbol=each.symbol,
            quantity=each.quantity,
            average_price=each.average_price,
            price=(price := portfolio.price(each)),
            unrealised=((price - each.average_price) * each.quantity).quantize(_WON),
            strategy=portfolio.owners.get(each.symbol, ""),
            price_age_s=rounded(account.feed.price_age_s(each.symbol)),
            note=notes.get(each.symbol, ""),
            name=portfolio.instruments.name(each.symbol),
            stop_price=account.stop_price(each.symbol),
            venue=account.venue,
        )


def money_status(portfolio: Portfolio, state: AccountState | None) -> AccountStatus:
    return AccountStatus(
        cash=portfolio.cash.quantize(_WON),
        equity=portfolio.equity.quantize(_WON),
        realised_today=(state.earned_today if state else Decimal(0)).quantize(_WON),
        unrealised=portfolio.unrealised.quantize(_WON),
        orders_today=state.orders_today if state else 0,
    )


def limit_statuses(account: AccountSources, state: AccountState | None) -> list[LimitStatus]:
    """Return the limits on new positions; none before the account is read."""
    if state is None:
        return []
    limits = account.limits
    used = compute_exposure("", state, account.portfolio)
    found: dict[str, tuple[Decimal | int, Decimal | int]] = {
        "daily_loss": (max(Decimal(0), -used.daily_pnl), used.equity * limits.daily_loss),
        "orders_per_day": (used.orders_today, limits.orders_per_day),
        "orders_per_minute": (used.orders_last_minute, limits.orders_per_minute),
        "max_open_symbols": (used.open_symbols, limits.max_open_symbols),
        "max_exposure": (used.total_value, used.equity * limits.max_exposure),
    }
    return [
        LimitStatus(name=name, used=Decimal(value).quantize(_WON), limit=Decimal(limit))
        for name, (value, limit) in found.items()
        if limit > 0
    ]


def total_money(accounts: Iterable[AccountStatus]) -> AccountStatus:
    """Add accounts up; all of them are in won."""
    rows = [msgspec.structs.asdict(each) for each in accounts]
    return AccountStatus(**{name: sum(row[name] for row in rows) for name in rows[0]})


def safety_status(account: AccountSources) -> SafetyStatus:
    now, suspension = account.monitor.safety, account.pipeline.suspension
    return SafetyStatus(
        state=now.state,
        code=now.code,
        message=now.message,
        trading=account.monitor.enabled(),
        database_read=account.monitor.is_current,
        session_open=account.is_open(),
        clock_synced=account.skew.is_synced(),
        suspended=suspension.reason if suspension else "",
        may_trade=account.is_reconciled(),
        clock_skew_s=None if (skew := account.skew.seconds) is None else round(skew, 2),
    )


def worst_safety(found: Sequence[SafetyStatus]) -> SafetyStatus:
    """Return the state of the account that is most restricted."""
    states = list(SafetyState)

    def rank(each: SafetyStatus) -> tuple[bool, int, bool, bool]:
        state = states.index(SafetyState(each.state))
        return not each.trading, state, bool(each.suspended), not each.may_trade

    return max(found, key=rank)


def rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
