"""KIS orders: place, revise and cancel, with the venue's checks before the matching engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, NamedTuple

from qts.simulators.kis.gateway import KisCustomer, KisError, invalid, success
from qts.simulators.market.markets import StockMarket
from qts.simulators.market.rules import DAY_S, hhmmss, is_open, yyyymmdd
from qts.simulators.matching import Lifetime, MatchingEngine, Side, SimulatedFill, SimulatedOrder

Kind = Literal["new", "revise", "cancel"]
Pricing = Literal["limit", "market", "opposite_best", "own_best"]


class KisOrderType(NamedTuple):
    pricing: Pricing
    lifetime: Lifetime
    after_market: bool = False


# ORD_DVSN. Not simulated: 02, 05, 06, 21 to 24 and everything of NXT.
TYPES = {
    "00": KisOrderType("limit", "day"),
    "01": KisOrderType("market", "day"),
    "03": KisOrderType("opposite_best", "day"),
    "04": KisOrderType("own_best", "day"),
    "11": KisOrderType("limit", "ioc"),
    "12": KisOrderType("limit", "fok"),
    "13": KisOrderType("market", "ioc"),
    "14": KisOrderType("market", "fok"),
    "15": KisOrderType("opposite_best", "ioc"),
    "16": KisOrderType("opposite_best", "fok"),
    "41": KisOrderType("limit", "day", after_market=True),
    "42": KisOrderType("limit", "ioc", after_market=True),
    "43": KisOrderType("limit", "fok", after_market=True),
    "44": KisOrderType("opposite_best", "day", after_market=True),
    "45": KisOrderType("opposite_best", "ioc", after_market=True),
    "46": KisOrderType("opposite_best", "fok", after_market=True),
    "47": KisOrderType("own_best", "day", after_market=True),
}
ORGNO = {False: "91252", True: "00950"}


@dataclass(eq=False)
class KisOrderEntry:
    """One numbered order of a customer; a revise and a cancel are orders too."""

    number: int
    customer: KisCustomer
    kind: Kind
    order: SimulatedOrder
    """The order in the engine; for a cancel, the cancelled order."""
    division: str
    quantity: int
    price: int
    at: int
    accepted_ns: int
    parent: KisOrderEntry | None = None


class KisOrderNotice(NamedTuple):
    """Message to the customer: a fill with `fill`, otherwise an acknowledgement."""

    entry: KisOrderEntry
    fill: SimulatedFill | None = None
    cancelled_rest: bool = False


class KisOrderApi:
    def __init__(
        self,
        market: StockMarket,
        paper: bool,
        now_ns: Callable[[], int],
        notify: Callable[[KisOrderNotice], None],
    ) -> None:
        self._market = market
        self._paper = paper
        self._now_ns = now_ns
        self._notify = notify
        self.engine = MatchingEngine(market)
        self.entries: list[KisOrderEntry] = []
        self._by_order: dict[SimulatedOrder, KisOrderEntry] = {}

    # Requests

    def place(self, customer: KisCustomer, body: Mapping[str, str], side: Side) -> dict[str, Any]:
        self._check_account(customer, body)
        if body.get("EXCG_ID_DVSN_CD", "KRX") not in ("", "KRX", "SOR"):
            raise KisError("APBK1058", "[EXCG_ID_DVSN_CD]")
        index = self._market.index.get(body.get("PDNO", ""))
        if index is None:
            raise KisError("APBK0656")
        division = body.get("ORD_DVSN", "")
        quantity, price = whole(body, "ORD_QTY"), whole(body, "ORD_UNPR")
        if quantity < 1:
            raise invalid("ORD_QTY")
        order = self._order(index, side, quantity, division, price)
        return self._accept(customer, "new", order, division, price)

    def revise_or_cancel(self, customer: KisCustomer, body: Mapping[str, str]) -> dict[str, Any]:
        self._check_account(customer, body)
        self._check_hours("00", for_cancel=True)
        original = self._find(customer, body.get("ORGN_ODNO", ""))
        if not original.order.open:
            raise KisError("APBK0927")
        all_of_it = body.get("QTY_ALL_ORD_YN") == "Y"
        quantity = original.order.remaining if all_of_it else whole(body, "ORD_QTY")
        if not 1 <= quantity <= original.order.remaining:
            raise KisError("APBK0927")
        if body.get("RVSE_CNCL_DVSN_CD") == "02":
            return self._cancel(original, quantity)
        if body.get("RVSE_CNCL_DVSN_CD") != "01":
            raise invalid("RVSE_CNCL_DVSN_CD")
        division, price = body.get("ORD_DVSN", ""), whole(body, "ORD_UNPR")
        old = original.order
        order = self._order(old.index, old.side, quantity, division, price)
        if not customer.account.can_replace(old, quantity, self._worst_price(order)):
            raise KisError("APBK0952")
        self.engine.cancel(old, quantity)
        customer.account.refresh(old)
        return self._accept(customer, "revise", order, division, price, original)

    # Time

    def on_second(self) -> None:
        """Fill resting orders after a second of the market."""
        for fill in self.engine.step():
            self._settle(fill)

    def end_session(self) -> None:
        for order in self.engine.end_of_day():
            self._by_order[order].customer.account.refresh(order)

    # Steps

    def _order(
        self, index: int, side: Side, quantity: int, division: str, price: int
    ) -> SimulatedOrder:
        self._check_hours(division)
        kind = TYPES[division]
        limit = price if kind.pricing == "limit" else self._best(index, side, kind.pricing)
        if kind.pricing == "limit":
            if not self._market.table.is_on(price):
                raise KisError("APBK0506")
            if not self._market.lower[index] <= price <= self._market.upper[index]:
                raise KisError("APBK0551")
        number = len(self.entries) + 1
        return SimulatedOrder(number, index, side, quantity, limit, kind.lifetime)

    def _best(self, index: int, side: Side, pricing: Pricing) -> int | None:
        """Return the limit of an order that is priced from the order book."""
        if pricing == "market":
            return None
        book = self._market.book(index)
        asks = (side == "buy") == (pricing == "opposite_best")
        levels = book.asks if asks else book.bids
        return levels[0].price if levels else int(self._market.price[index])

    def _accept(
        self,
        customer: KisCustomer,
        kind: Kind,
        order: SimulatedOrder,
        division: str,
        price: int,
        parent: KisOrderEntry | None = None,
    ) -> dict[str, Any]:
        if not customer.account.reserve(order, self._worst_price(order)):
            raise KisError("APBK0952" if order.side == "buy" else "APBK0400")
        entry = self._enter(customer, kind, order, (division, order.quantity, price), parent)
        self._by_order[order] = entry
        self._notify(KisOrderNotice(entry))
        for fill in self.engine.submit(order):
            self._settle(fill)
        customer.account.refresh(order)
        if order.cancelled and not order.open:
            self._notify(KisOrderNotice(entry, cancelled_rest=True))
        return self._receipt(entry)

    def _cancel(self, original: KisOrderEntry, quantity: int) -> dict[str, Any]:
        order = original.order
        self.engine.cancel(order, quantity)
        original.customer.account.refresh(order)
        terms = (original.division, quantity, 0)
        entry = self._enter(original.customer, "cancel", order, terms, original)
        self._notify(KisOrderNotice(entry))
        return self._receipt(entry)

    def _enter(
        self,
        customer: KisCustomer,
        kind: Kind,
        order: SimulatedOrder,
        terms: tuple[str, int, int],
        parent: KisOrderEntry | None,
    ) -> KisOrderEntry:
        number = len(self.entries) + 1
        entry = KisOrderEntry(
            number, customer, kind, order, *terms, self._market.time, self._now_ns(), parent
        )
        self.entries.append(entry)
        return entry

    def _settle(self, fill: SimulatedFill) -> None:
        entry = self._by_order[fill.order]
        entry.customer.account.settle(fill)
        entry.customer.account.refresh(fill.order)
        self._notify(KisOrderNotice(entry, fill))

    def _receipt(self, entry: KisOrderEntry) -> dict[str, Any]:
        output = {
            "KRX_FWDG_ORD_ORGNO": ORGNO[self._paper],
            "ODNO": f"{entry.number:010}",
            "ORD_TMD": hhmmss(entry.at),
        }
        if not self._paper:
            return success({"output": output}, "APBK0013", "주문 전송 완료 되었습니다.")
        kind = {"cancel": "취소", "revise": "정정"}.get(
            entry.kind, "매수" if entry.order.side == "buy" else "매도"
        )
        return success({"output": output}, "40600000", f"모의투자 {kind}주문이 완료 되었습니다.")

    # Checks

    def _worst_price(self, order: SimulatedOrder) -> int:
        """Return the highest price to reserve for; for a market order, the day's limit."""
        return order.limit or int(self._market.upper[order.index])

    def _check_account(self, customer: KisCustomer, body: Mapping[str, str]) -> None:
        if body.get("CANO", "") + body.get("ACNT_PRDT_CD", "") != customer.key.account:
            raise KisError("IGW00002")

    def _check_hours(self, division: str, for_cancel: bool = False) -> None:
        if division not in TYPES:
            raise KisError("APBK1058", "[ORD_DVSN]")
        kind = self._market.phase.kind
        if kind in ("closed", "close"):
            raise KisError(self._closed_code())
        if not for_cancel and TYPES[division].after_market != (kind == "after"):
            raise KisError("APBK1058", "[ORD_DVSN]")

    def _closed_code(self) -> str:
        if not self._paper:
            return "APBK0918"
        today = date.fromordinal(self._market.time // DAY_S)
        return "40570000" if is_open(today) else "40100000"

    def _find(self, customer: KisCustomer, number: str) -> KisOrderEntry:
        index = int(number) if number.isdigit() else 0
        if not 0 < index <= len(self.entries):
            raise KisError("APBK0344")
        entry = self.entries[index - 1]
        if entry.customer is not customer or entry.kind == "cancel":
            raise KisError("APBK0344")
        return entry


def whole(body: Mapping[str, str], name: str) -> int:
    text = body.get(name, "") or "0"
    if not (text.isascii() and text.isdigit()):
        raise invalid(name)
    return int(text)


def day_of(entry: KisOrderEntry) -> str:
    return yyyymmdd(entry.at)
