"""Pairs of an order of the run and one of its backtest that belong to the same signal."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from qts.domain import Side
from qts.explain.ledger import DayOrder

Pair = tuple[DayOrder | None, DayOrder | None]  # of the run, of the backtest


def pair_orders(
    live: Sequence[DayOrder], backtest: Sequence[DayOrder], tolerance_s: float
) -> list[Pair]:
    """Pair orders of the same signal, else of the same strategy, symbol, side and about the time.

    Returned in the order in which they traded. An order from before the run has no pair.
    """
    by_id = {order.signal_id: order for order in backtest if order.signal_id is not None}
    pairs: list[Pair] = []
    ours, others = (defaultdict[object, list[DayOrder]](list) for _ in range(2))
    paired: set[int] = set()
    pairs += [(order, None) for order in live if order.is_earlier]
    for order in live:
        if order.is_earlier:
            continue
        same = by_id.pop(order.signal_id, None) if order.signal_id is not None else None
        if same is not None and kind_of(same) == kind_of(order):
            pairs.append((order, same))
            paired.add(id(same))
        else:
            ours[kind_of(order)].append(order)
    for order in backtest:
        if id(order) not in paired:
            others[kind_of(order)].append(order)
    for kind in dict.fromkeys((*ours, *others)):
        pairs += _pair_by_time(ours[kind], others[kind], tolerance_s)
    return sorted(pairs, key=_when)


def kind_of(order: DayOrder) -> tuple[str, str, Side]:
    """Return what two orders of a pair have in common."""
    return order.strategy, order.symbol, order.side


def _when(pair: Pair) -> float:
    return min(order.traded_at for order in pair if order is not None)


def _pair_by_time(
    live: list[DayOrder], backtest: list[DayOrder], tolerance_s: float
) -> Iterator[Pair]:
    ours = deque(sorted(live, key=lambda order: order.decided_at))
    theirs = deque(sorted(backtest, key=lambda order: order.decided_at))
    while ours and theirs:
        later_s = ours[0].decided_at - theirs[0].decided_at
        if abs(later_s) <= tolerance_s:
            yield ours.popleft(), theirs.popleft()
        elif later_s < 0:
            yield ours.popleft(), None
        else:
            yield None, theirs.popleft()
    yield from ((order, None) for order in ours)
    yield from ((None, order) for order in theirs)
