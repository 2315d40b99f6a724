"""The pre-trade gate: checks a proposal against every rule and approves it if none refuses.

A rule states its reasons for one input. Exits, which only reduce a position, are exempt from rules
about new exposure: closing a losing position must never wait for a limit. A rule that raises
refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import msgspec

from qts import telemetry
from qts.domain import OrderType, Side
from qts.risk.config import RiskLimits
from qts.risk.proposal import ApprovedOrder, OrderProposal, Reason, Refusal, RiskSnapshot, approve

log = telemetry.logger("risk")

# Every reason of the gate; docs/risk-codes.md is generated from this table.
REASONS: dict[str, str] = {
    "G_INSTRUMENT": "the instrument is unknown, halted, delisted, or not traded in won",
    "G_QUANTITY": "the quantity is not positive, or not a multiple of the lot",
    "G_PRICE": "the price is not positive, or given for a market order",
    "G_TICK": "the limit price is not on a tick of the instrument",
    "G_DAY_LIMIT": "the limit price lies outside the day's price limits",
    "G_BAND": "the limit price lies too far from the market",
    "G_MAX_QUANTITY": "the quantity is above the largest of one order",
    "G_MAX_VALUE": "the value is above the largest of one order",
    "G_MIN_VALUE": "the value is below the smallest of one entry",
    "G_DUST": "the value of the exit is below what the market takes (GR075)",
    "G_EXPOSURE": "too much of the equity would be in the market (GR001)",
    "G_SYMBOL_EXPOSURE": "too much of the equity would be in this symbol (GR010)",
    "G_OPEN_SYMBOLS": "too many symbols would be held at once",
    "G_CASH": "there is not enough cash (GR061)",
    "G_SHORT": "more would be sold than is held and not already being sold (GR040)",
    "G_NOT_AN_EXIT": "an exit that does not reduce the position",
    "G_DAILY_LOSS": "the daily loss limit is reached (GR020)",
    "G_DAILY_ORDERS": "the daily number of orders is used up (GR062)",
    "G_ORDER_RATE": "the number of orders per minute is used up",
    "G_CAPITAL": "the strategy would hold more than its capital",
    "G_STRATEGY_LIMIT": "a limit of the strategy itself is reached",
    "G_NO_PRICE": "no price is known",
    "G_STALE_PRICE": "the price is too old to act on",
    "G_EXPIRED": "the signal is too old to act on",
    "G_REPEATED": "the signal was acted on before",
    "G_KILL_SWITCH": "the kill switch is on for the account",
    "G_STRATEGY_OFF": "the strategy is switched off",
    "G_MARKET_SUSPENDED": "the symbol is suspended until an unknown outcome is resolved",
    "G_FROZEN": "the position is frozen: only its stops and the operator may exit it",
    "G_UNKNOWN": "an attempt on this symbol has an unknown outcome",
    "G_NO_STOPS": "no stop watches the position, so that it may not grow",
    "G_NOT_RECONCILED": "not reconciled with the broker since the start",
    "G_SESSION": "the market is closed",
    "G_CLOCK": "our clock differs from the venue's by more than venues.max_skew_s",
    "G_SAFETY": "the fail-safe does not allow trading",
    "G_BROKEN": "a rule failed; what cannot be checked is refused",
}

# Guardrail that a refusal raises.
GUARDRAILS: dict[str, str] = {
    "G_EXPOSURE": "GR001",
    "G_SYMBOL_EXPOSURE": "GR010",
    "G_DAILY_LOSS": "GR020",
    "G_SHORT": "GR040",
    "G_CASH": "GR061",
    "G_DAILY_ORDERS": "GR062",
}


class RuleInput(msgspec.Struct, frozen=True):
    """What every rule looks at; `price` is the worst one per unit, as far as it is known."""

    proposal: OrderProposal
    snapshot: RiskSnapshot
    limits: RiskLimits
    is_exit: bool
    price: Decimal | None

    @classmethod
    def of(cls, proposal: OrderProposal, snapshot: RiskSnapshot, limits: RiskLimits) -> RuleInput:
        price, market = proposal.price, snapshot.market
        if price is None and market is not None:
            price = market.ask if proposal.side.sign > 0 else market.bid
        return cls(proposal, snapshot, limits, proposal.intent_type.is_exit, price)

    @property
    def value(self) -> Decimal | None:
        return None if self.price is None else self.price * self.proposal.quantity


Refuse = Callable[[str, str], None]  # takes a code and its detail
Rule = Callable[[RuleInput, Refuse], None]


def _well_formed(given: RuleInput, refuse: Refuse) -> None:
    quantity, price = given.proposal.quantity, given.proposal.price
    if not quantity.is_finite() or quantity <= 0:
        refuse("G_QUANTITY", f"quantity {quantity}")
    elif quantity % given.snapshot.instrument.lot and not _closes(given):
        refuse("G_QUANTITY", f"quantity {quantity}, the lot is {given.snapshot.instrument.lot:f}")
    if (given.proposal.type is OrderType.LIMIT) != (price is not None):
        refuse("G_PRICE", f"{given.proposal.type} with price {price}")
    if price is None:
        return
    if not price.is_finite() or price <= 0:
        refuse("G_PRICE", f"price {price}")
    elif not given.snapshot.instrument.ticks.has(price):
        refuse("G_TICK", f"price {price} is between two ticks")


def _tradable(given: RuleInput, refuse: Refuse) -> None:
    """Check that the instrument may be bought; what is held can always be sold."""
    if given.is_exit:
        return
    block = given.snapshot.instrument.entry_block
    if block and not _reduces(given):
        refuse("G_INSTRUMENT", f"{given.proposal.symbol}: {block}")


def _switches(given: RuleInput, refuse: Refuse) -> None:
    switches = given.snapshot.switches
    if not switches.account_enabled:
        refuse("G_KILL_SWITCH", "all trading is switched off")
    if not switches.strategy_enabled and not given.is_exit:
        refuse("G_STRATEGY_OFF", f"{given.proposal.strategy_key} is switched off")
    if not switches.reconciled:
        refuse("G_NOT_RECONCILED", "not reconciled since the start")
    if not switches.session_open:
        refuse("G_SESSION", "closed")
    if not switches.clock_synced and not given.is_exit:
        refuse("G_CLOCK", "set the clock of this machine: run NTP")
    if switches.safety not in ("NORMAL", "WARNING") and not given.is_exit:
        refuse("G_SAFETY", f"the state is {switches.safety}")
    if not switches.market_active and not given.is_exit:
        refuse("G_MARKET_SUSPENDED", f"{given.proposal.symbol} is suspended")
    if switches.frozen and not given.proposal.intent_type.is_protective:
        refuse("G_FROZEN", f"{given.proposal.symbol} is frozen until the operator resumes it")
    if not switches.watched and not given.is_exit:
        refuse("G_NO_STOPS", f"{given.proposal.symbol} was adopted without stops")
    if given.snapshot.exposure.symbol_unknown and not given.is_exit:
        refuse("G_UNKNOWN", f"{given.snapshot.exposure.symbol_unknown} with unknown outcome")


def _fresh(given: RuleInput, refuse: Refuse) -> None:
    market, limit = given.snapshot.market, given.limits.max_price_age_ms
    if given.snapshot.now >= given.proposal.expires_at:
        refuse("G_EXPIRED", f"it expired at {given.proposal.expires_at:%H:%M:%S}")
    if market is None:
        if not given.is_exit:
            refuse("G_NO_PRICE", f"none of {given.proposal.symbol}")
    elif not 0 <= market.age_ms <= limit and not given.is_exit:
        refuse("G_STALE_PRICE", f"{market.age_ms:.0f} ms old, {limit:g} allowed")


def _prices(given: RuleInput, refuse: Refuse) -> None:
    price, market = given.proposal.price, given.snapshot.market
    if price is None or market is None:
        return
    limits = (
        given.snapshot.instrument.daily_limits(market.base) if market.base is not None else None
    )
    if limits is not None:
        low, high = limits
        if not low <= price <= high:
            refuse("G_DAY_LIMIT", f"price {price}, today {low} to {high}")
    band = market.last * given.limits.price_band
    if abs(price - market.last) > band:
        refuse("G_BAND", f"price {price}, the market is at {market.last}")


def _size(given: RuleInput, refuse: Refuse) -> None:
    quantity, value, limits = given.proposal.quantity, given.value, given.limits
    minimum = given.snapshot.instrument.min_order_value
    if given.is_exit:
        if value is not None and value < minimum:
            refuse("G_DUST", f"{value:.0f} won, {minimum} at least")
        return
    if quantity > limits.max_quantity:
        refuse("G_MAX_QUANTITY", f"{quantity}, {limits.max_quantity} allowed")
    if value is None:
        return
    if value > limits.max_order_value:
        refuse("G_MAX_VALUE", f"{value:.0f} won, {limits.max_order_value} allowed")
    if value < limits.min_order_value:
        refuse("G_MIN_VALUE", f"{value:.0f} won, {limits.min_order_value} at least")
    elif value * (1 - limits.exit_margin) < minimum:
        fallen = value * (1 - limits.exit_margin)
        refuse("G_MIN_VALUE", f"{fallen:.0f} won after a fall, {minimum} can be sold")


def _holding(given: RuleInput, refuse: Refuse) -> None:
    """Check that sells are covered by the position and that exits reduce it."""
    proposal, exposure = given.proposal, given.snapshot.exposure
    held, quantity = exposure.position, proposal.quantity
    if given.is_exit:
        pending = exposure.pending_sell if held > 0 else exposure.pending_buy
        reduces = held > 0 if proposal.side is Side.SELL else held < 0
        if not reduces or quantity > abs(held) - pending:
            size, left = f"{held.normalize():f}", f"{pending.normalize():f}"
            refuse("G_NOT_AN_EXIT", f"{proposal.side} {quantity} of {size}, {left} pending")
    elif proposal.side is Side.SELL and not given.limits.short_selling:
        free = held - exposure.pending_sell
        if quantity > free:
            refuse("G_SHORT", f"{quantity} of {free.normalize():f} that are free")


def _exposure(given: RuleInput, refuse: Refuse) -> None:
    if given.is_exit or (value := given.value) is None or _reduces(given):
        return
    exposure, limits = given.snapshot.exposure, given.limits
    whole = exposure.equity * limits.max_exposure
    if exposure.total_value + value > whole:
        refuse("G_EXPOSURE", f"{exposure.total_value + value:.0f} won, {whole:.0f} allowed")
    one = exposure.equity * limits.max_symbol_exposure
    if exposure.symbol_value + value > one:
        refuse("G_SYMBOL_EXPOSURE", f"{exposure.symbol_value + value:.0f} won, {one:.0f} allowed")
    minimum = given.snapshot.instrument.min_order_value
    is_open = exposure.symbol_value > 0 and exposure.symbol_value >= minimum
    if not is_open and exposure.open_symbols >= limits.max_open_symbols:
        refuse("G_OPEN_SYMBOLS", f"{exposure.open_symbols} held, {limits.max_open_symbols} allowed")
    if given.proposal.side is Side.BUY and value > exposure.cash:
        refuse("G_CASH", f"{value:.0f} won of {exposure.cash:.0f}")


def _day(given: RuleInput, refuse: Refuse) -> None:
    if given.is_exit:
        return
    exposure, limits = given.snapshot.exposure, given.limits
    loss = exposure.equity * limits.daily_loss
    if exposure.daily_pnl <= -loss:
        refuse("G_DAILY_LOSS", f"{exposure.daily_pnl:.0f} won, {-loss:.0f} allowed")
    if exposure.orders_today >= limits.orders_per_day:
        refuse("G_DAILY_ORDERS", f"{exposure.orders_today} today")
    if exposure.orders_last_minute >= limits.orders_per_minute:
        refuse("G_ORDER_RATE", f"{exposure.orders_last_minute} in the last minute")


def _strategy(given: RuleInput, refuse: Refuse) -> None:
    """Check the capital and the limits that the strategy has beside those of the account."""
    limits = given.limits.strategies.get(given.proposal.strategy_key)
    if limits is None or given.is_exit or (value := given.value) is None or _reduces(given):
        return
    exposure, name = given.snapshot.exposure, given.proposal.strategy_key
    total, here = exposure.strategy_value + value, exposure.strategy_symbol_value + value
    if limits.capital is not None and total > limits.capital:
        refuse("G_CAPITAL", f"{total:.0f} won, {limits.capital} of {name}")
    one = limits.capital_per_symbol
    if one is not None and here > one:
        refuse("G_STRATEGY_LIMIT", f"{here:.0f} won in one symbol, {one:.0f} allowed")
    if limits.max_order_value is not None and value > limits.max_order_value:
        refuse("G_STRATEGY_LIMIT", f"{value:.0f} won, {limits.max_order_value} allowed")
    held, orders = exposure.strategy_symbols, exposure.strategy_orders_today
    is_new = exposure.strategy_symbol_value <= 0
    if is_new and limits.max_open_symbols is not None and held >= limits.max_open_symbols:
        refuse("G_STRATEGY_LIMIT", f"{held} held, {limits.max_open_symbols} allowed")
    if limits.orders_per_day is not None and orders >= limits.orders_per_day:
        refuse("G_STRATEGY_LIMIT", f"{orders} orders today")


def _closes(given: RuleInput) -> bool:
    """Return whether all that is held is sold: odd lots must be sellable."""
    return _reduces(given) and given.proposal.quantity == abs(given.snapshot.exposure.position)


def _reduces(given: RuleInput) -> bool:
    held = given.snapshot.exposure.position
    return held * given.proposal.side.sign < 0 and given.proposal.quantity <= abs(held)


RULES: tuple[Rule, ...] = (
    _well_formed,
    _tradable,
    _switches,
    _fresh,
    _prices,
    _size,
    _holding,
    _exposure,
    _day,
    _strategy,
)


class PreTradeGate:
    """Gate of one account; a pure function of proposal, snapshot and limits."""

    def __init__(self, limits: RiskLimits, rules: tuple[Rule, ...] = RULES) -> None:
        self.limits = limits
        self._rules = rules

    def check(self, proposal: OrderProposal, snapshot: RiskSnapshot) -> ApprovedOrder | Refusal:
        given, reasons = RuleInput.of(proposal, snapshot, self.limits), list[Reason]()

        def refuse(code: str, detail: str) -> None:
            reasons.append(Reason(code, f"{REASONS[code]}: {detail}"))

        for rule in self._rules:
            try:
                rule(given, refuse)
            except Exception as error:  # noqa: BLE001 - fails closed
                log.error("gate rule raised; order refused", rule=rule.__name__, error=repr(error))
                refuse("G_BROKEN", rule.__name__)
        if reasons:
            return Refusal(tuple(reasons))
        return approve(proposal, snapshot.now, snapshot.facts)
