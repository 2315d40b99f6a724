"""Accounts on one engine: each takes its own events, and every watcher sees every tick."""

from __future__ import annotations

from qts._native import Stops
from qts.domain import Tick
from qts.events import AccountEvents, Catalogue, Event, EventEngine
from qts.events import payloads as p
from qts.risk import EMERGENCY_ORDER
from qts.risk.micro_risk_loop import REASONS


def tick(symbol: str, price: float) -> Tick:
    return Tick(symbol, price, 1.0, price, price, 1.0)


def test_handlers_of_an_account_take_its_own_events() -> None:
    engine, seen = EventEngine(), list[tuple[str, str]]()
    accounts = {name: AccountEvents(engine, name) for name in ("kis", "upbit")}

    def handler(name: str) -> object:
        return lambda event: seen.append((name, event.payload.symbol))

    for name, events in accounts.items():
        events.on("ORDER_SENT", handler(name))  # type: ignore[arg-type]
    engine.on("ORDER_SENT", handler("run"))  # type: ignore[arg-type]
    with engine:
        for symbol, events in zip(("005930", "KRW-BTC"), accounts.values(), strict=True):
            payload = p.OrderUpdatePayload(order_id="1", symbol=symbol)
            events.publish(events.new_event("ORDER_SENT", payload, "orders"))
        assert engine.wait_drained(10)
    assert sorted(seen) == [
        ("kis", "005930"),
        ("run", "005930"),
        ("run", "KRW-BTC"),
        ("upbit", "KRW-BTC"),
    ]


def test_the_only_account_takes_every_event() -> None:
    engine, seen = EventEngine(), list[Event]()
    AccountEvents(engine).on("ORDER_SENT", seen.append)
    with engine:
        engine.emit("ORDER_SENT", p.OrderUpdatePayload(order_id="1", symbol="005930"), "elsewhere")
        assert engine.wait_drained(10)
    assert len(seen) == 1


def test_each_account_has_a_watcher_and_its_exits_have_its_source() -> None:
    catalogue = Catalogue()
    catalogue.register(EMERGENCY_ORDER)
    engine, exits = EventEngine(catalogue=catalogue), list[tuple[str, str]]()
    for name, symbol in (("kis", "005930"), ("upbit", "KRW-BTC")):
        events = AccountEvents(engine, name)
        stops = Stops(
            lambda *_hit: None,
            trail_arm=0.5,
            trail=0.5,
            trail_min_distance=0.5,
            mae_half=0.9,
            mae_full=0.95,
            profit_extension_s=0.0,
            jump=0.99,
            confirm_s=0.0,
        )
        stops.set_exits(
            (EMERGENCY_ORDER.name, EMERGENCY_ORDER.payload),
            ("TRAILING_STOP_HIT", p.TrailingStopHit),
            dict(REASONS),
            ("SELL", "BUY"),
            events.source("risk"),
        )
        stops.set_position(symbol, 1.0, 100.0, 1.0, 90.0, 1e9, 0, None)
        events.attach_watcher("PRICE_TICK", stops, "price")
        events.on(
            "EMERGENCY_ORDER",
            lambda event, name=name: exits.append((name, event.payload.symbol)),  # type: ignore[misc]
        )
    with engine:
        for symbol in ("005930", "KRW-BTC"):
            engine.publish(engine.new_event("PRICE_TICK", tick(symbol, 80.0), "feed"))
        assert engine.wait_drained(10)
    assert sorted(exits) == [("kis", "005930"), ("upbit", "KRW-BTC")]
