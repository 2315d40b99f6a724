"""A rehearsal of an account: every kind of request that a run makes, with the smallest orders.

    check    key, balance, clock, open orders, price, buying power, stream: nothing is placed
    order    dry run where the venue has one; a limit buy that cannot fill, changed, cancelled
    fill     on request: the smallest market buy and its sale
    end      open orders and balance are those of the start, but for fees

Each step is explained and confirmed before it happens, and recorded after it. The first surprise
ends the rehearsal, and what it placed is withdrawn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import NamedTuple

from qts.brokers.lease import AccountLease
from qts.brokers.rehearsal_orders import (
    RehearsalFailedError,
    RehearsalOrders,
    RehearsalTimes,
    ReportReader,
    SmallestOrders,
)
from qts.brokers.transcript import RehearsalStep, Verdict
from qts.brokers.venue import Broker, OrderPreview
from qts.domain import (
    Account,
    Clock,
    Fill,
    Instrument,
    OrderRequest,
    OrderState,
    QtsError,
    Side,
)
from qts.venues import (
    Calendar,
    ClockSkew,
    MarketData,
    RequestPriority,
    VenueRejectedError,
)

_MAX_COST = Decimal("0.01")  # of the turnover: fees and taxes

Confirm = Callable[[str, str], Awaitable[bool]]
Record = Callable[[RehearsalStep], None]


class RehearsalParts(NamedTuple):
    """What a rehearsal is made with: the broker of a run, and what it checks before an order."""

    broker: Broker
    preview: OrderPreview
    data: MarketData
    calendar: Calendar | None  # None: open at any time
    skew: ClockSkew
    lease: AccountLease
    instrument: Instrument
    clock: Clock
    times: RehearsalTimes


class Rehearsal:
    """One rehearsal. `confirm` is called with the name and the text of each step."""

    def __init__(self, parts: RehearsalParts, confirm: Confirm, record: Record) -> None:
        self._parts = parts
        self._confirm = confirm
        self._record = record
        self._symbol = parts.instrument.symbol
        self._orders = RehearsalOrders(parts.broker, parts.clock, parts.times)
        self._reports = ReportReader(parts.broker)
        self._fills: list[Fill] = []
        self._cost = Decimal(0)  # fees and taxes

    _account: Account
    _open: frozenset[str]
    _smallest: SmallestOrders
    _far: OrderRequest  # a buy that cannot fill

    async def check(self) -> None:
        """Make the requests that place nothing; an account without money passes."""
        async with self._reports:
            await self._look()
            await self._step("limits", "List the requests that QTS keeps to.", self._limits)
            await self._step("funds", self._funds_text(), self._power)
            if self._parts.preview.can_test:
                text = f"Let the venue check a {_words(self._far)} without placing it."
                await self._step("test", text, self._may_order)
            await self._open_stream()

    async def run(self, *, fill: bool) -> None:
        """Make all steps; raise what stopped them after the orders are withdrawn."""
        try:
            async with self._reports:
                await self._step("hours", "Look whether the market is open.", self._hours)
                await self._look()
                await self._step("funds", self._funds_text(), self._funds)
                await self._open_stream()
                await self._place_and_cancel()
                if fill:
                    await self._buy_and_sell()
                text = "Compare open orders and balance with those of the start."
                await self._step("end", text, self._compare)
        except BaseException as error:
            if left := await self._orders.withdraw():
                reason = str(error) or "interrupted"
                raise RehearsalFailedError(
                    f"{reason}; LEFT AT THE VENUE: {'; '.join(left)}; look at the account in the"
                    " venue's own app, and cancel or sell it there"
                ) from error
            raise

    async def _step(self, name: str, text: str, act: Callable[[], Awaitable[str]]) -> None:
        if not await self._confirm(name, text):
            raise RehearsalFailedError(f"step {name} was declined")
        try:
            answer = await act()
        except QtsError as error:
            self._add(name, text, str(error), "failed")
            raise RehearsalFailedError(f"step {name}: {error}") from error
        self._add(name, text, answer, "ok")

    def _add(self, step: str, request: str, answer: str, verdict: Verdict) -> None:
        at = self._parts.clock.now()
        self._record(
            RehearsalStep(at=at, step=step, request=request, answer=answer, verdict=verdict)
        )

    # --- harmless requests ------------------------------------------------------------------------

    async def _look(self) -> None:
        await self._step("balance", "Log in with the key and read the balance.", self._balance)
        await self._step("clock", "Compare the venue's clock with this machine's.", self._clock)
        await self._step("orders", "Read the orders of today.", self._open_orders)
        await self._step("price", f"Read price and order book of {self._symbol}.", self._price)

    def _funds_text(self) -> str:
        return f"Read what may be spent on a buy of {self._far.quantity:f} {self._symbol}."

    async def _open_stream(self) -> None:
        seen_s = self._parts.times.seen_s
        await self._step("stream", "Open the own-order stream.", lambda: self._reports.open(seen_s))

    async def _balance(self) -> str:
        self._account = account = await self._parts.broker.account()
        return f"{account.cash:,.0f} won, {len(account.holdings)} holdings"

    async def _clock(self) -> str:
        skew = self._parts.skew
        seconds = skew.seconds
        if seconds is None:
            return "the venue sends no time"
        if not skew.is_synced():
            raise RehearsalFailedError(
                f"the venue's clock differs by {seconds:+.1f} s, and at most {skew.max_s:g} s is"
                " allowed (venues.max_skew_s); set this machine's clock by NTP"
            )
        return f"{seconds:+.1f} s"

    async def _hours(self) -> str:
        calendar, now = self._parts.calendar, self._parts.clock.now()
        if calendar is None:
            return "never closes"
        session = calendar.current(now)
        if session is None:
            opens = calendar.next_open(now).opens_at
            raise RehearsalFailedError(f"the market is closed; it opens {opens:%Y-%m-%d %H:%M %Z}")
        return f"{session.name} until {session.closes_at:%H:%M %Z}"

    async def _open_orders(self) -> str:
        self._open = await self._orders.open_orders()
        return f"{len(self._open)} open, which are left alone"

    async def _price(self) -> str:
        source = self._parts.data.source
        quotes = await source.quotes(lambda: [self._symbol], RequestPriority.ACCOUNT)
        quote = next((each for each in quotes if each.symbol == self._symbol), None)
        if quote is None or quote.price <= 0:
            raise RehearsalFailedError(f"the venue has no price of {self._symbol}")
        book = await source.order_book(self._symbol, RequestPriority.ACCOUNT)
        self._smallest = found = SmallestOrders(self._parts.instrument, quote, book)
        self._far = found.far_buy()
        return f"last {found.last:,f}, bid {found.bid:,f}, ask {found.ask:,f}"

    async def _limits(self) -> str:
        rates = self._parts.data.limits.rates
        return (
            f"{rates.per_second:,} a second, {rates.per_minute:,} a minute, {rates.per_day:,} a day"
            " for market data"
        )

    async def _power(self) -> str:
        return f"{await self._parts.preview.buying_power(self._far):,.0f} won"

    async def _funds(self) -> str:
        power = await self._parts.preview.buying_power(self._far)
        needed = _value(self._far)
        if power < needed:
            raise RehearsalFailedError(
                f"{power:,.0f} won may be spent, and the smallest order of {self._symbol} takes"
                f" {needed:,.0f}; name a cheaper one with --symbol, or pay money in"
            )
        return f"{power:,.0f} won; the smallest order takes {needed:,.0f}"

    async def _may_order(self) -> str:
        """Let the venue check an order; one that it would reject still shows the permission."""
        try:
            return await self._test(self._far)
        except VenueRejectedError as error:
            return f"the key may order; this one would be rejected: {error}"

    # --- the order that cannot fill ---------------------------------------------------------------

    async def _place_and_cancel(self) -> None:
        request = self._far
        if self._parts.preview.can_test:
            text = f"Let the venue check a {_words(request)} without placing it."
            await self._step("test", text, lambda: self._test(request))
        else:
            self._add("test", "Let the venue check an order.", "not offered", "skipped")
        order_id = ""

        async def place() -> str:
            nonlocal order_id
            order_id = await self._place_far(request)
            return f"order {order_id}, on the stream and in the list"

        async def change() -> str:
            nonlocal order_id
            await self._cancel(order_id)
            lower = self._smallest.lower(request)
            order_id = await self._place_far(lower)
            return f"cancelled, and order {order_id} at {lower.price:,f}"

        async def cancel() -> str:
            await self._cancel(order_id)
            return f"order {order_id} cancelled, on the stream and in the list"

        text = f"Place a {_words(request)}, {_value(request):,.0f} won: too far away to fill."
        await self._step("order", text, place)
        await self._step("change", "Cancel it and place it a tick away, as a run does.", change)
        await self._step("cancel", "Cancel it.", cancel)

    async def _test(self, request: OrderRequest) -> str:
        await self._parts.preview.test(request)
        return "it would be accepted"

    async def _place_far(self, request: OrderRequest) -> str:
        order_id = await self._place(request)
        seen_s = self._parts.times.seen_s
        reported = await self._reports.opened(order_id, seen_s)
        if reported.state is not OrderState.OPEN or reported.filled:
            raise RehearsalFailedError(f"order {order_id} is {reported.state}, and should be open")
        await self._orders.listed(order_id, is_open=True)
        return order_id

    async def _cancel(self, order_id: str) -> None:
        await self._orders.cancel(order_id)
        await self._reports.ended(order_id, self._parts.times.seen_s)
        order = await self._orders.listed(order_id, is_open=False)
        if order.filled:
            raise RehearsalFailedError(f"order {order_id} filled {order.filled:f}")

    # --- the purchase -----------------------------------------------------------------------------

    async def _buy_and_sell(self) -> None:
        request = self._smallest.market_buy()
        quantity = request.quantity
        about = quantity * self._smallest.ask

        async def buy() -> str:
            nonlocal quantity
            quantity = await self._trade(request)
            return f"bought {quantity:f} for {_turnover(self._fills, Side.BUY):,.0f} won"

        async def sell() -> str:
            await self._trade(self._smallest.market_sell(quantity))
            return f"sold for {_turnover(self._fills, Side.SELL):,.0f} won"

        text = f"BUY {quantity:f} {self._symbol} at the market, about {about:,.0f} won."
        await self._step("buy", text, buy)
        await self._step("sell", f"Sell the {quantity:f} {self._symbol} at the market.", sell)

    async def _trade(self, request: OrderRequest) -> Decimal:
        """Trade at the market; return the filled quantity."""
        order_id = await self._place(request)
        await self._reports.ended(order_id, self._parts.times.seen_s)
        order = await self._orders.listed(order_id, is_open=False)
        if not order.filled:
            raise RehearsalFailedError(f"order {order_id} ended without a fill")
        await self._reports.filled(order, self._parts.times.seen_s)
        self._fills += await self._orders.fills(order)
        return order.filled

    # --- the end ----------------------------------------------------------------------------------

    async def _compare(self) -> str:
        """Compare until nothing differs: a venue may show its end late."""
        clock, times = self._parts.clock, self._parts.times
        deadline = clock.monotonic_ns() + round(times.seen_s * 1e9)
        while difference := await self._difference():
            if clock.monotonic_ns() > deadline:
                raise RehearsalFailedError(difference)
            await clock.sleep(times.poll_s)
        return f"nothing left open, balance as before but for {self._cost:,.0f} won of fees"

    async def _difference(self) -> str:
        """Return what differs from the start and is not explained by fills; empty: nothing."""
        if changed := self._open ^ await self._orders.open_orders():
            return f"open orders differ from those of the start: {', '.join(sorted(changed))}"
        before, now = self._account, await self._parts.broker.account()
        if _quantities(now) != _quantities(before):
            return "the holdings differ from those of the start"
        bought, sold = (_turnover(self._fills, side) for side in (Side.BUY, Side.SELL))
        self._cost = before.cash + sold - bought - now.cash
        if -1 <= self._cost <= (bought + sold) * _MAX_COST:
            return ""
        return (
            f"the cash was {before.cash:,.0f} won and is {now.cash:,.0f}; the orders explain"
            f" {sold - bought:+,.0f}"
        )

    async def _place(self, request: OrderRequest) -> str:
        if not self._parts.lease.may_send:
            raise RehearsalFailedError("the lease of the account was lost")
        return await self._orders.place(request)


def _value(request: OrderRequest) -> Decimal:
    return request.quantity * (request.price or 0)


def _words(request: OrderRequest) -> str:
    return f"limit buy of {request.quantity:f} {request.symbol} at {request.price:,f}"


def _turnover(fills: list[Fill], side: Side) -> Decimal:
    return sum((fill.quantity * fill.price for fill in fills if fill.side is side), Decimal(0))


def _quantities(account: Account) -> dict[str, Decimal]:
    return {each.symbol: each.quantity for each in account.holdings if each.quantity}
