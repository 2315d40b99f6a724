"""What we have and what may become ours, as the gate wants to know it: live and in a backtest."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from qts.domain import Side
from qts.orders import AccountState, OpenOrder
from qts.pipeline.market import World
from qts.risk import Exposure

_NONE = Decimal(0)


def exposure_of(symbol: str, ours: AccountState, world: World) -> Exposure:
    """At the latest prices; buys under way count as if they were filled."""
    values: dict[str, Decimal] = {
        name: abs(held.quantity) * _price(world, name, held.average_price)
        for name, held in ours.held.items()
    }
    for each in ours.pending:
        if each.side is Side.BUY:
            value = each.remaining * (each.price or _price(world, each.symbol, _NONE))
            values[each.symbol] = values.get(each.symbol, _NONE) + value
    here = [each for each in ours.pending if each.symbol == symbol]
    held = ours.held.get(symbol)
    return Exposure(
        position=held.quantity if held else _NONE,
        average_price=held.average_price if held else _NONE,
        pending_buy=_sum(here, Side.BUY),
        pending_sell=_sum(here, Side.SELL),
        symbol_value=values.get(symbol, _NONE),
        total_value=sum(values.values(), _NONE),
        open_symbols=len(values),
        cash=world.cash,
        equity=world.equity,
        daily_pnl=ours.earned_today + world.unrealised,
        orders_today=ours.orders_today,
        orders_last_minute=ours.orders_last_minute,
        unknown_attempts=sum(each.unknown for each in ours.pending),
        symbol_unknown=sum(each.unknown for each in here),
    )


def _price(world: World, symbol: str, otherwise: Decimal) -> Decimal:
    tick = world.latest(symbol)
    return Decimal(str(tick.price)) if tick else otherwise


def _sum(pending: Iterable[OpenOrder], side: Side) -> Decimal:
    return sum((each.remaining for each in pending if each.side is side), _NONE)
