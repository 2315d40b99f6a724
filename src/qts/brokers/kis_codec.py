"""Codec for KIS orders: endpoints, request bodies, and parsing of rows.

KIS reuses order numbers every day, so the broker order id is day and number: 20261116-1569139.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec

from qts.domain import (
    BrokerOrder,
    Holding,
    OrderRequest,
    OrderState,
    OrderType,
    Side,
    TimeInForce,
)
from qts.venues import KisEndpoint, VenueRejectedError

SEOUL = timezone(timedelta(hours=9))
_TRADING = "/uapi/domestic-stock/v1/trading"
PLACE = {
    Side.BUY: KisEndpoint(f"{_TRADING}/order-cash", "TTTC0012U", "VTTC0012U", "POST"),
    Side.SELL: KisEndpoint(f"{_TRADING}/order-cash", "TTTC0011U", "VTTC0011U", "POST"),
}
CHANGE = KisEndpoint(f"{_TRADING}/order-rvsecncl", "TTTC0013U", "VTTC0013U", "POST")
ORDERS = KisEndpoint(f"{_TRADING}/inquire-daily-ccld", "TTTC0081R", "VTTC0081R")
BALANCE = KisEndpoint(f"{_TRADING}/inquire-balance", "TTTC8434R", "VTTC8434R")
_DIVISION = {OrderType.LIMIT: "00", OrderType.MARKET: "01"}
_DIVISIONS_AT_ONCE = {
    TimeInForce.IOC: {OrderType.LIMIT: "11", OrderType.MARKET: "13"},
    TimeInForce.FOK: {OrderType.LIMIT: "12", OrderType.MARKET: "14"},
}
_SIDES = {"01": Side.SELL, "02": Side.BUY}

Row = dict[str, Any]


class KisOrderRow(msgspec.Struct, frozen=True):
    """Row of the order list: the order, the amount of its fills, and its branch."""

    order: BrokerOrder
    amount: Decimal
    branch: str


def place_body(account: dict[str, str], request: OrderRequest) -> dict[str, str]:
    for name, value in (("quantity", request.quantity), ("price", request.price)):
        if value is not None and value != value.to_integral_value():
            raise VenueRejectedError(
                f"{name} of {request.symbol} is {value}; KIS takes whole numbers", name
            )
    lifetime = request.time_in_force
    at_once = _DIVISIONS_AT_ONCE.get(lifetime) if isinstance(lifetime, TimeInForce) else None
    return account | {
        "PDNO": request.symbol,
        "ORD_DVSN": (at_once or _DIVISION)[request.type],
        "ORD_QTY": f"{request.quantity:.0f}",
        "ORD_UNPR": f"{request.price or 0:.0f}",
        "EXCG_ID_DVSN_CD": "KRX",
        "SLL_TYPE": "01" if request.side is Side.SELL else "",
        "CNDT_PRIC": "",
    }


def buying_power_query(account: str, request: OrderRequest) -> dict[str, str]:
    return {
        "CANO": account[:8],
        "ACNT_PRDT_CD": account[8:],
        "PDNO": request.symbol,
        "ORD_UNPR": f"{request.price or 0:.0f}",
        "ORD_DVSN": _DIVISION[request.type],
        "CMA_EVLU_AMT_ICLD_YN": "N",
        "OVRS_ICLD_YN": "N",
    }


def cancel_body(account: dict[str, str], number: str, branch: str) -> dict[str, str]:
    return account | {
        "KRX_FWDG_ORD_ORGNO": branch,
        "ORGN_ODNO": number.zfill(10),
        "ORD_DVSN": "00",
        "RVSE_CNCL_DVSN_CD": "02",
        "ORD_QTY": "0",
        "ORD_UNPR": "0",
        "QTY_ALL_ORD_YN": "Y",
        "EXCG_ID_DVSN_CD": "KRX",
    }


def orders_query(
    account: dict[str, str], first: date, last: date, number: str = ""
) -> dict[str, str]:
    """Build a query for orders, oldest first, so orders placed between two pages come last."""
    return account | {
        "INQR_STRT_DT": f"{first:%Y%m%d}",
        "INQR_END_DT": f"{last:%Y%m%d}",
        "SLL_BUY_DVSN_CD": "00",
        "PDNO": "",
        "ORD_GNO_BRNO": "",
        "ODNO": number.zfill(10) if number else "",
        "CCLD_DVSN": "00",
        "INQR_DVSN": "01",
        "INQR_DVSN_1": "",
        "INQR_DVSN_3": "00",
        "EXCG_ID_DVSN_CD": "KRX",
    }


def balance_query(account: dict[str, str]) -> dict[str, str]:
    return account | {
        "AFHR_FLPR_YN": "N",
        "OFL_YN": "",
        "INQR_DVSN": "02",
        "UNPR_DVSN": "01",
        "FUND_STTL_ICLD_YN": "N",
        "FNCG_AMT_AUTO_RDPT_YN": "N",
        "PRCS_DVSN": "00",
    }


def order_id_of(day: date, number: str) -> str:
    return f"{day:%Y%m%d}-{number.lstrip('0')}"


def split_order_id(broker_order_id: str) -> tuple[date, str]:
    day, _, number = broker_order_id.partition("-")
    try:
        moment = datetime.strptime(day, "%Y%m%d")  # noqa: DTZ007 - a day has no zone
    except ValueError:
        raise VenueRejectedError(f"{broker_order_id} is not a KIS order id", "order_id") from None
    return moment.date(), number


def parse_order(row: Row, today: date) -> KisOrderRow | None:
    """Parse a row of the order list; return None for the record of a cancel."""
    quantity, filled = number_of(row["ord_qty"]), number_of(row["tot_ccld_qty"])
    left, price = number_of(row["rmn_qty"]), number_of(row["ord_unpr"])
    at = datetime.strptime(row["ord_dt"] + row["ord_tmd"], "%Y%m%d%H%M%S").replace(tzinfo=SEOUL)
    if not filled and "취소" in str(row.get("sll_buy_dvsn_cd_name") or ""):
        return None
    is_market = (
        row["ord_dvsn_cd"] in ("01", "13", "14") or not price
    )  # manual orders have many types
    order = BrokerOrder(
        broker_order_id=order_id_of(at.date(), row["odno"]),
        symbol=row["pdno"],
        side=_SIDES[row["sll_buy_dvsn_cd"]],
        type=OrderType.MARKET if is_market else OrderType.LIMIT,
        quantity=quantity,
        filled=filled,
        state=_state(quantity, filled, left, at.date() == today),
        placed_at=at,
        price=None if is_market else price,
    )
    return KisOrderRow(order, number_of(row["tot_ccld_amt"]), str(row.get("ord_gno_brno", "")))


def parse_holding(row: Row) -> Holding | None:
    """Parse a row of the balance; return None for a symbol that was sold out."""
    quantity, average = number_of(row["hldg_qty"]), number_of(row["pchs_avg_pric"])
    if not quantity:
        return None
    return Holding(symbol=row["pdno"], quantity=quantity, average_price=average)


def number_of(text: Any) -> Decimal:
    value = Decimal(str(text).strip() or "0")
    if not value.is_finite():
        raise ValueError(text)
    return value


def _state(quantity: Decimal, filled: Decimal, left: Decimal, is_today: bool) -> OrderState:
    if filled >= quantity:
        return OrderState.FILLED
    # Orders are valid for a day: an older one with a remainder has expired.
    return OrderState.OPEN if left > 0 and is_today else OrderState.CANCELLED
