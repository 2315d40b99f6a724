"""Fills overtake ticks, ticks overtake strategies: the four lanes in thirty lines."""

from __future__ import annotations

from qts.events import Event, EventEngine, Priority
from qts.events import payloads as p


def main() -> list[str]:
    engine = EventEngine()
    seen: list[str] = []

    def note(event: Event) -> None:
        seen.append(f"P{event.priority} {event.event_type}")

    for lane in Priority:
        engine.on(lane, note)

    # Published before the start, so that all of them wait when the first one is handled.
    engine.emit("LOG_WRITE", p.LogWrite(message="an hour of silence"))
    engine.emit("STRATEGY_EVALUATE", p.StrategyEvaluate(strategy_type="SCALP"))
    engine.emit("PRICE_TICK", p.PriceTick(symbol="005930", price=75_100))
    fill = p.FillPayload(
        order_id="ORD1", symbol="005930", filled_qty=100, filled_price=75_000, filled_time=0.0
    )
    engine.emit("FILL_CONFIRMED", fill)

    with engine:
        engine.wait_drained(5)
    return seen


if __name__ == "__main__":
    print("\n".join(main()))
