"""Ticks pushed into a live router: an indicator in C++, a strategy in Python.

Run: python examples/router_live.py
"""

from __future__ import annotations

import math
import sys

import msgspec

from qts.router import Message, Router, Scenario, ema

TRADE, QUOTE = 0, 1
NAMES = {1: "BTC", 2: "ETH"}
# Trades pass processor 0 on their way to strategy 0, quotes pass processor 1.
SCENARIO = msgspec.convert(
    {
        "scenario": "two coins",
        "producers": {
            "count": 1,
            "messages_per_sec": 1000,
            "distribution": {"msg_type_0": 0.5, "msg_type_1": 0.5},
        },
        "processors": {"count": 2},
        "strategies": {"count": 1},
        "stage1_rules": [
            {"msg_type": TRADE, "processors": [0]},
            {"msg_type": QUOTE, "processors": [1]},
        ],
        "stage2_rules": [{"msg_type": TRADE, "strategy": 0}, {"msg_type": QUOTE, "strategy": 0}],
    },
    Scenario,
)


def main() -> int:
    average = ema(20)  # of the trades: it is processor 0
    highest = dict.fromkeys(NAMES, 0.0)

    def on_tick(message: Message) -> None:
        if message.msg_type == TRADE:
            highest[message.symbol_id] = max(highest[message.symbol_id], message.price)

    with Router(SCENARIO, processors={0: average}, strategies={0: on_tick}, live=True) as router:
        for step in range(200):
            wave = math.sin(step / 15) / 50
            router.push_many(
                [
                    {"msg_type": TRADE, "symbol_id": 1, "price": round(90_000_000 * (1 + wave))},
                    {"msg_type": TRADE, "symbol_id": 2, "price": round(4_000_000 * (1 - wave))},
                    {"msg_type": QUOTE, "symbol_id": 1, "price": 90_000_000, "quantity": "0.015"},
                ]
            )
    for symbol, name in NAMES.items():
        print(
            f"{name}  highest {highest[symbol]:>12,.0f}  average {average.values[symbol]:>14,.2f}"
        )
    report = router.report
    print(f"{report.verdict}: {report.delivered} of {report.produced} messages delivered")
    return 0 if report.verdict == "PASSED" else 1


if __name__ == "__main__":
    sys.exit(main())
