"""Sample events and settings."""

from __future__ import annotations

from typing import Any

from qts.events import Event, EventEngine, EventsConfig, LaneConfig
from qts.events import payloads as p

TIMEOUT_S = 20.0


def lanes(**configs: LaneConfig) -> EventsConfig:
    return EventsConfig(**configs)  # type: ignore[arg-type]


def fill(engine: EventEngine, number: int = 0, symbol: str = "005930") -> Event:
    payload = p.FillPayload(
        order_id=f"ORD{number}",
        symbol=symbol,
        filled_qty=100,
        filled_price=75000,
        filled_time=1.0,
    )
    return engine.new_event("FILL_CONFIRMED", payload, "BROKER")


def tick(engine: EventEngine, symbol: str = "005930", price: float = 75000.0) -> Event:
    return engine.new_event("PRICE_TICK", p.PriceTick(symbol=symbol, price=price), "MARKET")


def evaluate(engine: EventEngine, strategy: str = "SCALP", version: str = "") -> Event:
    payload = p.StrategyEvaluate(strategy_type=strategy, calc_data_version=version)
    return engine.new_event("STRATEGY_EVALUATE", payload, "ETEDA")


def signal(engine: EventEngine, symbol: str = "005930", strength: float = 0.0) -> Event:
    payload = p.SignalPayload(symbol=symbol, side="BUY", strength=strength)
    return engine.new_event("SIGNAL_GENERATED", payload, "STRATEGY")


def log_line(engine: EventEngine, message: str = "hello") -> Event:
    return engine.new_event("LOG_WRITE", p.LogWrite(message=message), "LOGGER")


def step_all(engine: EventEngine) -> int:
    """Handle every ready event without threads, highest lane first; return how many."""
    handled = 0
    while True:
        for lane in range(4):
            done = engine.lanes.step(lane)
            if done > 0:
                handled += done
                break
        else:
            return handled


def order_ids(events: list[Event]) -> list[Any]:
    return [event.payload.order_id for event in events]
