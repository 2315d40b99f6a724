"""One sum with three kinds of handler: each, batch, and a compiled function without the GIL.

Run: python examples/router_compiled.py (needs numba)
"""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt
from numba import carray, cfunc, from_dtype, types  # type: ignore[attr-defined]

from qts.router import (
    MESSAGE,
    Message,
    MessageHandler,
    Router,
    batch,
    compiled,
    each,
    load_scenario,
)

TICKS = types.CPointer(from_dtype(MESSAGE))  # type: ignore[no-untyped-call]
SIGNATURE = types.void(TICKS, types.uint64, types.CPointer(types.int64))  # type: ignore[no-untyped-call]


@cfunc(SIGNATURE)
def add_prices(messages, count, state):  # type: ignore[no-untyped-def]
    ticks = carray(messages, count)
    total = carray(state, 1)
    for index in range(count):
        total[0] += ticks[index].price


def main() -> int:
    sums = np.zeros(3, np.int64)

    def add_one(message: Message) -> None:
        sums[0] += message.price_e8

    def add_many(messages: npt.NDArray[np.void]) -> None:
        sums[1] += messages["price"].sum()

    ticks = np.zeros(50_000, MESSAGE)
    ticks["price"] = np.arange(50_000) * 10**8
    handlers: list[MessageHandler] = [
        each(add_one),
        batch(add_many),
        compiled(add_prices, sums[2:]),
    ]
    for index, handler in enumerate(handlers):
        with Router(load_scenario("baseline"), strategies={0: handler}, live=True) as router:
            router.push_many(ticks)
        print(f"{handler.kind:<8}  {router.report.verdict}  {sums[index] // 10**8:,}")
    return 0 if sums[0] == sums[1] == sums[2] == ticks["price"].sum() else 1


if __name__ == "__main__":
    sys.exit(main())
