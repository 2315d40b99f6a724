"""Orders that are neither lost nor doubled: desk, executor, ledger, reconciler."""

from qts.orders.books import Agreement, books_agree
from qts.orders.changes import (
    AttemptChanged,
    Change,
    FillApplied,
    MarketChanged,
    OnChange,
    OrderChanged,
)
from qts.orders.config import OrdersConfig
from qts.orders.desk import Desk, Submitted, signal_id
from qts.orders.executor import Executor
from qts.orders.floor import Floor
from qts.orders.freeze import freeze
from qts.orders.ledger import Ledger
from qts.orders.look import (
    Life,
    OrderRow,
    PositionRow,
    adopt,
    external,
    list_orders,
    positions,
    show_order,
)
from qts.orders.markets import Suspended, is_active, resume_by_hand, suspended
from qts.orders.messages import (
    CancelOrder,
    CreateOrderAttempt,
    FillReceived,
    MarketResumed,
    MarketSuspended,
    OrderAbsent,
    OrderAccepted,
    OrderClosed,
    OrderRejected,
    OrderSuspended,
    OrderThrottled,
    OrderUnknown,
    Reconcile,
)
from qts.orders.position import Book
from qts.orders.reconcile import Difference, Reconciler, Report
from qts.orders.resolve import Resolved, resolve_by_hand
from qts.orders.safety import Safety, Switchboard
from qts.orders.standing import Held, Pending, Standing, standing

__all__ = [
    "Agreement",
    "AttemptChanged",
    "Book",
    "CancelOrder",
    "Change",
    "CreateOrderAttempt",
    "Desk",
    "Difference",
    "Executor",
    "FillApplied",
    "FillReceived",
    "Floor",
    "Held",
    "Ledger",
    "Life",
    "MarketChanged",
    "MarketResumed",
    "MarketSuspended",
    "OnChange",
    "OrderAbsent",
    "OrderAccepted",
    "OrderChanged",
    "OrderClosed",
    "OrderRejected",
    "OrderRow",
    "OrderSuspended",
    "OrderThrottled",
    "OrderUnknown",
    "OrdersConfig",
    "Pending",
    "PositionRow",
    "Reconcile",
    "Reconciler",
    "Report",
    "Resolved",
    "Safety",
    "Standing",
    "Submitted",
    "Suspended",
    "Switchboard",
    "adopt",
    "books_agree",
    "external",
    "freeze",
    "is_active",
    "list_orders",
    "positions",
    "resolve_by_hand",
    "resume_by_hand",
    "show_order",
    "signal_id",
    "standing",
    "suspended",
]
