"""KIS realised profit: the balance with it, profit by day, and profit by trade."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from qts.simulators.kis.account_api import KisAccountApi, Page, check_account, paged
from qts.simulators.kis.gateway import BUY_PPM, SELL_PPM, KisCustomer, names, required
from qts.simulators.kis.orders import KisOrderApi
from qts.simulators.market.markets import StockMarket
from qts.simulators.market.rules import yyyymmdd
from qts.simulators.matching import SimulatedFill

_MILLION = 10**6
_DAY_FIELDS = names("""
    trad_dt buy_amt sll_amt rlzt_pfls fee loan_int tl_tax pfls_rt sll_qty1 buy_qty1
""")
_TRADE_FIELDS = names("""
    trad_dt pdno prdt_name trad_dvsn_name loan_dt hldg_qty pchs_unpr buy_qty buy_amt sll_pric
    sll_qty sll_amt rlzt_pfls pfls_rt fee tl_tax loan_int
""")


@dataclass
class Turnover:
    """What was bought and sold of one symbol on one day; amounts in won."""

    day: str
    index: int
    bought: int = 0
    bought_for: int = 0
    sold: int = 0
    sold_for: int = 0
    cost: int = 0
    """Purchase value of what was sold."""
    held: int = 0
    fee: int = 0
    tax: int = 0

    def add(self, fill: SimulatedFill, cost: int, held: int) -> None:
        value = fill.price * fill.quantity
        self.held = held
        self.fee += value * BUY_PPM // _MILLION
        if fill.order.side == "buy":
            self.bought += fill.quantity
            self.bought_for += value
            return
        self.sold += fill.quantity
        self.sold_for += value
        self.cost += cost
        self.tax += value * (SELL_PPM - BUY_PPM) // _MILLION

    @property
    def profit(self) -> int:
        """Realised profit after fees and tax of a day with sales; 0 without."""
        return self.sold_for - self.cost - self.fee - self.tax if self.sold else 0


class KisProfitApi:
    def __init__(self, market: StockMarket, orders: KisOrderApi, accounts: KisAccountApi) -> None:
        self._market = market
        self._orders = orders
        self._accounts = accounts

    def balance(self, customer: KisCustomer, query: Mapping[str, str], page: str) -> Page:
        """Return the balance with the profit realised today."""
        result = self._accounts.balance(customer, query, page)
        today = yyyymmdd(self._market.time)
        done = [each for each in self._turnover(customer) if each.day == today]
        profit, cost = sum(each.profit for each in done), sum(each.cost for each in done)
        for row in result.values["output1"]:
            for name in ("item_mgna_rt_name", "grta_rt_name", "sbst_pric"):
                del row[name]
        (total,) = result.values["output2"]
        held_cost, gain = int(total["pchs_amt_smtl_amt"]), int(total["evlu_pfls_smtl_amt"])
        total |= {
            "rlzt_pfls": str(profit),
            "rlzt_erng_rt": _rate(profit, cost),
            "real_evlu_pfls": str(gain),
            "real_evlu_pfls_erng_rt": _rate(gain, held_cost),
        }
        return result

    def by_day(self, customer: KisCustomer, query: Mapping[str, str], page: str) -> Page:
        """Return bought, sold and realised on each day of a period."""
        found = self._between(customer, query)
        days: dict[str, list[Turnover]] = defaultdict(list)
        for each in found:
            days[each.day].append(each)
        rows = [_row(each) | {"trad_dt": day} for day, each in days.items()]
        total = _total(found, "buy_qty_smtl")
        return self._answer(rows, _DAY_FIELDS, query, page, total)

    def by_trade(self, customer: KisCustomer, query: Mapping[str, str], page: str) -> Page:
        """Return bought, sold and realised of each symbol and day of a period."""
        found, universe = self._between(customer, query), self._market.universe
        rows = []
        for each in found:
            named = {
                "trad_dt": each.day,
                "pdno": universe.codes[each.index],
                "prdt_name": universe.names[each.index],
                "trad_dvsn_name": "현금",
                "loan_dt": "",
                "hldg_qty": str(each.held),
                "pchs_unpr": f"{each.cost / each.sold if each.sold else 0:.4f}",
                "sll_pric": f"{each.sold_for / each.sold if each.sold else 0:.4f}",
                "buy_qty": str(each.bought),
                "sll_qty": str(each.sold),
            }
            rows.append(_row([each]) | named)
        total = _total(found, "buyqty_smtl")
        total["tot_pftrt"] = _rate(sum(e.profit for e in found), sum(e.cost for e in found))
        return self._answer(rows, _TRADE_FIELDS, query, page, total)

    def _answer(
        self,
        rows: list[dict[str, str]],
        fields: tuple[str, ...],
        query: Mapping[str, str],
        page: str,
        total: dict[str, str],
    ) -> Page:
        if query.get("SORT_DVSN", "00") != "01":  # newest first
            rows.reverse()
        chosen = [{name: row[name] for name in fields} for row in rows]
        return paged(chosen, 100, query, page, total)

    def _between(self, customer: KisCustomer, query: Mapping[str, str]) -> list[Turnover]:
        check_account(customer, query)
        first, last = required(query, "INQR_STRT_DT"), required(query, "INQR_END_DT")
        code = query.get("PDNO", "")
        return [
            each
            for each in self._turnover(customer)
            if first <= each.day <= last and code in ("", self._market.universe.codes[each.index])
        ]

    def _turnover(self, customer: KisCustomer) -> list[Turnover]:
        """Replay the fills of a customer at the average purchase price."""
        found: dict[tuple[str, int], Turnover] = {}
        held: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for fill in sorted(self._fills(customer), key=lambda fill: fill.number):
            index, day = fill.order.index, yyyymmdd(fill.at)
            quantity, cost = held[index]
            part = 0
            if fill.order.side == "buy":
                quantity, cost = quantity + fill.quantity, cost + fill.price * fill.quantity
            else:
                part = cost * fill.quantity // quantity
                quantity, cost = quantity - fill.quantity, cost - part
            held[index] = quantity, cost
            each = found.setdefault((day, index), Turnover(day, index))
            each.add(fill, part, quantity)
        return list(found.values())

    def _fills(self, customer: KisCustomer) -> Iterator[SimulatedFill]:
        for entry in self._orders.entries:
            if entry.customer is customer and entry.kind != "cancel":
                yield from entry.order.fills


def _row(each: list[Turnover]) -> dict[str, str]:
    profit, cost = sum(one.profit for one in each), sum(one.cost for one in each)
    return {
        "buy_amt": str(sum(one.bought_for for one in each)),
        "sll_amt": str(sum(one.sold_for for one in each)),
        "rlzt_pfls": str(profit),
        "fee": str(sum(one.fee for one in each)),
        "loan_int": "0",
        "tl_tax": str(sum(one.tax for one in each)),
        "pfls_rt": _rate(profit, cost),
        "sll_qty1": str(sum(one.sold for one in each)),
        "buy_qty1": str(sum(one.bought for one in each)),
    }


def _total(found: list[Turnover], bought_name: str) -> dict[str, str]:
    bought, sold = sum(e.bought_for for e in found), sum(e.sold_for for e in found)
    fee, tax = sum(e.fee for e in found), sum(e.tax for e in found)
    buy_fee = bought * BUY_PPM // _MILLION
    sell_fee = max(0, fee - buy_fee)
    counts = sum(e.bought for e in found), sum(e.sold for e in found)
    return {
        "sll_qty_smtl": str(counts[1]),
        "sll_tr_amt_smtl": str(sold),
        "sll_fee_smtl": str(sell_fee),
        "sll_tltx_smtl": str(tax),
        "sll_excc_amt_smtl": str(sold - sell_fee - tax),
        bought_name: str(counts[0]),
        "buy_tr_amt_smtl": str(bought),
        "buy_fee_smtl": str(buy_fee),
        "buy_tax_smtl": "0",
        "buy_excc_amt_smtl": str(bought + buy_fee),
        "tot_qty": str(sum(counts)),
        "tot_tr_amt": str(bought + sold),
        "tot_fee": str(fee),
        "tot_tltx": str(tax),
        "tot_excc_amt": str(sold - bought - fee - tax),
        "tot_rlzt_pfls": str(sum(e.profit for e in found)),
        "loan_int": "0",
    }


def _rate(profit: int, cost: int) -> str:
    return f"{100 * profit / cost if cost else 0:.8f}"
