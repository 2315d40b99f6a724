"""The gate before the desk: every order is held against every rule, and passes only if none speaks.

A rule is a generator of reasons over one question. Exits (they only reduce what is held) are not
stopped by rules about new exposure: closing a losing position must never wait for a limit. Whatever
goes wrong inside a rule is a refusal too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal

import msgspec

from qts import telemetry
from qts.domain import Market, OrderType, Side, daily_price_limits, is_on_tick, market_for_symbol
from qts.risk.limits import RiskLimits
from qts.risk.proposal import ApprovedOrder, OrderProposal, Reason, Refusal, RiskSnapshot, approve

log = telemetry.logger("risk")

# Every reason the gate can give; docs/risk-codes.md is made from this table.
REASONS: dict[str, str] = {
    "G_QUANTITY": "the quantity is no positive number, or a fraction where the market has none",
    "G_PRICE": "the price is no positive number, or given for a market order",
    "G_TICK": "the limit price is not on the market's tick",
    "G_DAY_LIMIT": "the limit price lies outside the day's price limits",
    "G_BAND": "the limit price lies too far from the market",
    "G_MAX_QUANTITY": "the quantity is above the largest of one order",
    "G_MAX_VALUE": "the value is above the largest of one order",
    "G_MIN_VALUE": "the value is below the smallest of one entry",
    "G_EXPOSURE": "too much of the equity would be in the market (GR001)",
    "G_SYMBOL_EXPOSURE": "too much of the equity would be in this symbol (GR010)",
    "G_OPEN_SYMBOLS": "too many symbols would be held at once",
    "G_CASH": "there is not enough cash (GR061)",
    "G_SHORT": "more would be sold than is held and not already being sold (GR040)",
    "G_NOT_AN_EXIT": "an exit that does not reduce what is held",
    "G_DAILY_LOSS": "the day has lost as much as it may (GR020)",
    "G_DAILY_ORDERS": "the day has had as many orders as it may (GR062)",
    "G_ORDER_RATE": "the last minute has had as many orders as it may",
    "G_NO_PRICE": "no price is known",
    "G_STALE_PRICE": "the price is too old to act on",
    "G_EXPIRED": "the signal is too old to act on",
    "G_KILL_SWITCH": "the kill switch is on for the account",
    "G_STRATEGY_OFF": "the strategy is switched off",
    "G_MARKET_SUSPENDED": "the market is suspended until an unknown outcome is resolved",
    "G_FROZEN": "the position is frozen: only its stops and a person leave it",
    "G_UNKNOWN": "an attempt on this symbol has an unknown outcome",
    "G_NOT_RECONCILED": "the books have not been compared with the broker's since the start",
    "G_SESSION": "the market is closed",
    "G_SAFETY": "the fail-safe does not allow trading",
    "G_BROKEN": "a rule failed, and what cannot be checked is refused",
}


class RuleInput(msgspec.Struct, frozen=True):
    proposal: OrderProposal
    facts: RiskSnapshot
    limits: RiskLimits

    @property
    def is_exit(self) -> bool:
        return self.proposal.intent_type.is_exit

    @property
    def price(self) -> Decimal | None:
        """What a piece will cost at worst, as far as it is known."""
        proposal, market = self.proposal, self.facts.market
        if proposal.price is not None:
            return proposal.price
        if market is None:
            return None
        return market.ask if proposal.side is Side.BUY else market.bid

    @property
    def value(self) -> Decimal | None:
        return None if self.price is None else self.price * self.proposal.quantity


Rule = Callable[[RuleInput], Iterator[tuple[str, str]]]


def _well_formed(ask: RuleInput) -> Iterator[tuple[str, str]]:
    quantity, price = ask.proposal.quantity, ask.proposal.price
    market = market_for_symbol(ask.proposal.symbol)
    if not quantity.is_finite() or quantity <= 0:
        yield "G_QUANTITY", f"quantity {quantity}"
    elif market is Market.KRX and quantity != quantity.to_integral_value():
        yield "G_QUANTITY", f"quantity {quantity} of a stock"
    if (ask.proposal.type is OrderType.LIMIT) != (price is not None):
        yield "G_PRICE", f"{ask.proposal.type} with price {price}"
    if price is None:
        return
    if not price.is_finite() or price <= 0:
        yield "G_PRICE", f"price {price}"
    elif not is_on_tick(market, price):
        yield "G_TICK", f"price {price} is between two ticks"


def _switches(ask: RuleInput) -> Iterator[tuple[str, str]]:
    switches = ask.facts.switches
    if not switches.account_enabled:
        yield "G_KILL_SWITCH", "all trading is switched off"
    if not switches.strategy_enabled and not ask.is_exit:
        yield "G_STRATEGY_OFF", f"{ask.proposal.strategy_key} is switched off"
    if not switches.reconciled:
        yield "G_NOT_RECONCILED", "not reconciled since the start"
    if not switches.session_open:
        yield "G_SESSION", "closed"
    if switches.safety not in ("NORMAL", "WARNING") and not ask.is_exit:
        yield "G_SAFETY", f"the state is {switches.safety}"
    if not switches.market_active and not ask.is_exit:
        yield "G_MARKET_SUSPENDED", f"{ask.proposal.symbol} is suspended"
    if switches.frozen and not ask.proposal.intent_type.is_protective:
        yield "G_FROZEN", f"{ask.proposal.symbol} waits for a person to release it"
    if ask.facts.exposure.symbol_unknown:
        yield "G_UNKNOWN", f"{ask.facts.exposure.symbol_unknown} with unknown outcome"


def _fresh(ask: RuleInput) -> Iterator[tuple[str, str]]:
    market, limit = ask.facts.market, ask.limits.max_price_age_ms
    if ask.facts.now >= ask.proposal.expires_at:
        yield "G_EXPIRED", f"it ended at {ask.proposal.expires_at:%H:%M:%S}"
    if market is None:
        if not ask.is_exit:
            yield "G_NO_PRICE", f"none of {ask.proposal.symbol}"
    elif not 0 <= market.age_ms <= limit and not ask.is_exit:
        yield "G_STALE_PRICE", f"{market.age_ms:.0f} ms old, {limit:g} allowed"


def _prices(ask: RuleInput) -> Iterator[tuple[str, str]]:
    price, market = ask.proposal.price, ask.facts.market
    if price is None or market is None:
        return
    if market.base is not None:
        low, high = daily_price_limits(market.base)
        if not low <= price <= high:
            yield "G_DAY_LIMIT", f"price {price}, today {low} to {high}"
    band = market.last * ask.limits.price_band
    if abs(price - market.last) > band:
        yield "G_BAND", f"price {price}, the market is at {market.last}"


def _size(ask: RuleInput) -> Iterator[tuple[str, str]]:
    quantity, value, limits = ask.proposal.quantity, ask.value, ask.limits
    if ask.is_exit:
        return
    if quantity > limits.max_quantity:
        yield "G_MAX_QUANTITY", f"{quantity}, {limits.max_quantity} allowed"
    if value is None:
        return
    if value > limits.max_order_value:
        yield "G_MAX_VALUE", f"{value:.0f} won, {limits.max_order_value} allowed"
    if value < limits.min_order_value:
        yield "G_MIN_VALUE", f"{value:.0f} won, {limits.min_order_value} at least"


def _holding(ask: RuleInput) -> Iterator[tuple[str, str]]:
    """Sells are covered by what is held and not already being sold; exits only reduce."""
    proposal, exposure = ask.proposal, ask.facts.exposure
    held, quantity = exposure.position, proposal.quantity
    if ask.is_exit:
        under_way = exposure.pending_sell if held > 0 else exposure.pending_buy
        reduces = held > 0 if proposal.side is Side.SELL else held < 0
        if not reduces or quantity > abs(held) - under_way:
            yield "G_NOT_AN_EXIT", f"{proposal.side} {quantity} of {held}, {under_way} under way"
    elif proposal.side is Side.SELL and not ask.limits.short_selling:
        free = held - exposure.pending_sell
        if quantity > free:
            yield "G_SHORT", f"{quantity} of {free} that are free"


def _exposure(ask: RuleInput) -> Iterator[tuple[str, str]]:
    exposure, limits, value = ask.facts.exposure, ask.limits, ask.value
    if ask.is_exit or value is None or _reduces(ask):
        return
    whole = exposure.equity * limits.max_exposure
    if exposure.total_value + value > whole:
        yield "G_EXPOSURE", f"{exposure.total_value + value:.0f} won, {whole:.0f} allowed"
    one = exposure.equity * limits.max_symbol_exposure
    if exposure.symbol_value + value > one:
        yield "G_SYMBOL_EXPOSURE", f"{exposure.symbol_value + value:.0f} won, {one:.0f} allowed"
    if not exposure.symbol_value and exposure.open_symbols >= limits.max_open_symbols:
        yield "G_OPEN_SYMBOLS", f"{exposure.open_symbols} held, {limits.max_open_symbols} allowed"
    if ask.proposal.side is Side.BUY and value > exposure.cash:
        yield "G_CASH", f"{value:.0f} won of {exposure.cash:.0f}"


def _day(ask: RuleInput) -> Iterator[tuple[str, str]]:
    exposure, limits = ask.facts.exposure, ask.limits
    if ask.is_exit:
        return
    loss = exposure.equity * limits.daily_loss
    if exposure.daily_pnl <= -loss:
        yield "G_DAILY_LOSS", f"{exposure.daily_pnl:.0f} won, {-loss:.0f} allowed"
    if exposure.orders_today >= limits.orders_per_day:
        yield "G_DAILY_ORDERS", f"{exposure.orders_today} today"
    if exposure.orders_last_minute >= limits.orders_per_minute:
        yield "G_ORDER_RATE", f"{exposure.orders_last_minute} in the last minute"


def _reduces(ask: RuleInput) -> bool:
    held = ask.facts.exposure.position
    return held * ask.proposal.side.sign < 0 and ask.proposal.quantity <= abs(held)


RULES: tuple[Rule, ...] = (
    _well_formed,
    _switches,
    _fresh,
    _prices,
    _size,
    _holding,
    _exposure,
    _day,
)


class PreTradeGate:
    """One per account. Pure: it looks at the facts it is handed, and at nothing else."""

    def __init__(self, limits: RiskLimits, rules: tuple[Rule, ...] = RULES) -> None:
        self.limits = limits
        self._rules = rules

    def check(self, proposal: OrderProposal, facts: RiskSnapshot) -> ApprovedOrder | Refusal:
        reasons = tuple(self._reasons(RuleInput(proposal, facts, self.limits)))
        if reasons:
            return Refusal(reasons)
        return approve(proposal, facts.now)

    def _reasons(self, ask: RuleInput) -> Iterator[Reason]:
        for rule in self._rules:
            try:
                for code, detail in rule(ask):
                    yield Reason(code, f"{REASONS[code]}: {detail}")
            except Exception as error:  # noqa: BLE001 - fails closed, whatever it was
                log.error("a rule of the gate failed", rule=rule.__name__, error=repr(error))
                yield Reason("G_BROKEN", f"{REASONS['G_BROKEN']}: {rule.__name__}")
