"""Events, types and handlers that are refused, and the error texts."""

from __future__ import annotations

import math
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.domain import EventRefusedError, LaneFullError
from qts.events import Catalogue, Event, EventEngine, EventType, Payload, Priority, batch
from qts.events import payloads as p
from tests.events.conftest import MakeEngine
from tests.events.samples import fill, lanes, log_line, tick

SEED_CATALOGUE = {
    0: "FILL_CONFIRMED FILL_PARTIAL ORDER_REJECTED ORDER_CANCELLED POSITION_UPDATE "
    "EMERGENCY_STOP BROKER_DISCONNECT ORDER_SENT FILL_RECEIVED TRAILING_STOP_HIT ETEDA_SUSPEND",
    1: "PRICE_TICK ORDERBOOK_UPDATE VOLUME_UPDATE INDEX_UPDATE VIX_UPDATE",
    2: "ETEDA_CYCLE_START STRATEGY_EVALUATE RISK_EVALUATE PORTFOLIO_EVALUATE INDICATOR_UPDATE "
    "SIGNAL_GENERATED EXTRACT_COMPLETE TRANSFORM_COMPLETE STRATEGY_SIGNAL ORDER_DECISION",
    3: "DASHBOARD_UPDATE LOG_WRITE REPORT_GENERATE NOTIFICATION_SEND METRIC_RECORD PERF_UPDATE",
}


def wrong_tick(**fields: Any) -> p.PriceTick:
    """Return a tick with untyped fields; only publishing checks them."""
    return p.PriceTick(**fields)


def changed(event: Event, **fields: Any) -> Event:
    return msgspec.structs.replace(event, **fields)


def test_the_catalogue_holds_every_type_in_its_lane() -> None:
    catalogue = Catalogue()
    for priority, names in SEED_CATALOGUE.items():
        assert {each.name for each in catalogue if each.priority == priority} == set(names.split())


def test_every_standard_payload_can_be_published(engine: EventEngine) -> None:
    for each in engine.catalogue:
        fields = {
            name: {1: "x", 2: 1, 4: 1.0, 4 | 32: 1.0, 8: True}.get(bits)
            for name, bits in each.fields()
            if name in each.payload.__struct_fields__ and (not bits & 32 or bits & 4)
        }
        engine.publish(engine.new_event(each.name, each.payload(**fields), "TEST"))
    assert sum(lane.published for lane in engine.status().lanes.values()) == len(engine.catalogue)


def test_event_ids_are_uuids_and_differ(engine: EventEngine) -> None:
    ids = {tick(engine).event_id for _ in range(1000)}
    assert len(ids) == 1000
    assert {uuid.UUID(each).version for each in ids} == {7}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"event_type": "PRICE_TOCK"}, "did you mean PRICE_TICK"),
        ({"event_type": 7}, "unknown event type"),
        ({"priority": 0}, "PRICE_TICK has priority 1, not 0"),
        ({"priority": "1"}, "PRICE_TICK has priority 1"),
        ({"timestamp": math.nan}, "timestamp nan is not a number of seconds"),
        ({"timestamp": math.inf}, "is not a number of seconds"),
        ({"timestamp": -1.0}, "is not a number of seconds"),
        ({"timestamp": None}, "is not a number of seconds"),
        ({"event_id": None}, "event_id = 'None' where text is expected"),
        ({"source": 7}, "source = '7' where text is expected"),
        ({"max_retries": "x"}, "max_retries = 'x' where a whole number from 0 is expected"),
        ({"max_retries": True}, "max_retries = 'True' where a whole number from 0"),
        ({"max_retries": -1}, "max_retries = '-1' where a whole number from 0"),
        ({"max_retries": -(10**30)}, "max_retries"),
        ({"retry_count": 1.0}, "retry_count = '1.0' where a whole number from 0"),
        ({"payload": None}, "carries Tick, not NoneType"),
        ({"payload": p.LogWrite(message="x")}, "carries Tick, not LogWrite"),
        ({"payload": wrong_tick(symbol="x", price="1")}, "price = '1' where float is expected"),
        ({"payload": wrong_tick(symbol=5, price=1.0)}, "symbol = '5' where str is expected"),
        ({"payload": p.PriceTick(symbol="x", price=math.nan)}, "finite"),
        ({"payload": p.PriceTick(symbol="x", price=10**400)}, "does not fit"),
        ({"payload": p.PriceTick(symbol="x" * 10_000_000, price=1.0)}, "longer than"),
    ],
)
def test_an_event_that_breaks_the_contract_is_refused(
    engine: EventEngine, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(EventRefusedError, match=message.replace("(", r"\(")):
        engine.publish(changed(tick(engine), **fields))
    assert engine.status().lanes["P1"].published == 0


def test_a_source_that_is_no_text_is_refused_when_the_event_is_made(engine: EventEngine) -> None:
    source: Any = 7
    with pytest.raises(EventRefusedError, match="PRICE_TICK: source = '7' where text is expected"):
        engine.new_event("PRICE_TICK", p.PriceTick(symbol="x", price=1.0), source)


def test_a_type_with_another_max_retries_is_refused() -> None:
    retries: Any = "x"
    with pytest.raises(EventRefusedError, match="QUOTE: max_retries = 'x' where a whole number"):
        Catalogue().register(
            EventType("QUOTE", Priority.P1, p.PriceTick, "symbol", max_retries=retries)
        )


def test_only_events_are_published(engine: EventEngine) -> None:
    with pytest.raises(EventRefusedError, match="only an Event can be published, not str"):
        engine.publish("PRICE_TICK")


def test_a_payload_of_ten_megabytes_is_refused(engine: EventEngine) -> None:
    large = p.DashboardUpdate(dashboard_id="R", data={"x": "y" * 10_000_000})
    with pytest.raises(EventRefusedError, match="at most 1,048,576 are allowed"):
        engine.publish(engine.new_event("DASHBOARD_UPDATE", large))


def test_a_nested_payload_is_checked(engine: EventEngine) -> None:
    wrong: Any = (("a", "b"),)
    book = p.OrderbookUpdate(symbol="x", bids=wrong)
    with pytest.raises(EventRefusedError, match="the payload does not fit"):
        engine.publish(engine.new_event("ORDERBOOK_UPDATE", book))


@given(st.one_of(st.none(), st.integers(), st.text(), st.binary(), st.lists(st.integers())))
def test_only_events_are_accepted(thing: object) -> None:
    engine = EventEngine()
    with pytest.raises(EventRefusedError):
        engine.publish(thing)


@given(price=st.one_of(st.none(), st.text(), st.booleans(), st.floats(), st.integers()))
def test_a_price_is_a_finite_number_or_refused(price: Any) -> None:
    engine = EventEngine()
    event = engine.new_event("PRICE_TICK", p.PriceTick(symbol="x", price=price))
    fits = not isinstance(price, bool) and isinstance(price, int | float)
    if fits and math.isfinite(price):
        engine.publish(event)
    else:
        with pytest.raises(EventRefusedError):
            engine.publish(event)


def test_publishing_after_a_stop_is_refused(engine: EventEngine) -> None:
    engine.start()
    engine.stop()
    with pytest.raises(EventRefusedError, match="after the engine was stopped"):
        engine.publish(tick(engine))


def test_a_second_start_is_refused(engine: EventEngine) -> None:
    engine.start()
    with pytest.raises(EventRefusedError, match="started only once"):
        engine.start()


def test_a_handler_registered_twice_is_refused(engine: EventEngine) -> None:
    engine.on("FILL_*", print)
    with pytest.raises(EventRefusedError, match=r"print is already registered for FILL_CONFIRMED"):
        engine.on("FILL_CONFIRMED", print)


@pytest.mark.parametrize(
    ("target", "message"), [("NOPE", "unknown event type"), ("NOPE_*", "matches no event type")]
)
def test_a_handler_for_nothing_is_refused(engine: EventEngine, target: str, message: str) -> None:
    with pytest.raises(EventRefusedError, match=message):
        engine.on(target, print)


def test_a_handler_after_the_start_is_refused(engine: EventEngine) -> None:
    engine.start()
    with pytest.raises(EventRefusedError, match="before the start"):
        engine.on("PRICE_TICK", print)


def test_p0_is_not_batched(engine: EventEngine) -> None:
    with pytest.raises(EventRefusedError, match="cannot be batched"):
        engine.on("FILL_CONFIRMED", batch(print))


class Spread(Payload, frozen=True, kw_only=True):
    pair: str
    points: float


def test_a_custom_type_is_registered(make_engine: MakeEngine) -> None:
    catalogue = Catalogue()
    catalogue.register(EventType("SPREAD_UPDATE", Priority.P1, Spread, "pair", can_drop=True))
    engine = make_engine(catalogue=catalogue)
    seen: list[Event] = []
    engine.on("SPREAD_UPDATE", seen.append)
    engine.emit("SPREAD_UPDATE", Spread(pair="A/B", points=0.5))
    assert engine.lanes.step(1) == 1
    assert seen[0].payload == Spread(pair="A/B", points=0.5)


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (EventType("PRICE_TICK", Priority.P1, Spread), "already registered"),
        (EventType("spread", Priority.P1, Spread), "name such as PRICE_TICK"),
        (EventType("SPREAD", Priority.P1, Spread, "symbol"), "has no field 'symbol'"),
        (EventType("SPREAD", Priority.P0, Spread, can_drop=True), "cannot be dropped or collapsed"),
    ],
)
def test_an_inconsistent_type_is_refused(new: EventType, message: str) -> None:
    with pytest.raises(EventRefusedError, match=message):
        Catalogue().register(new)


def test_a_time_limit_on_a_full_lane_raises(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for number in range(100):
        engine.publish(fill(engine, number))
    with pytest.raises(LaneFullError, match="lane P0 is full; FILL_CONFIRMED not published"):
        engine.publish(fill(engine), 0.01)
    assert not engine.try_publish(fill(engine))
    assert engine.status().lanes["P0"].published == 100


def test_a_text_log_of_normal_size_is_taken(engine: EventEngine) -> None:
    engine.publish(log_line(engine, "x" * 100_000))
    assert engine.status().lanes["P3"].waiting == 1


def test_the_settings_of_a_lane_must_agree() -> None:
    with pytest.raises(ValueError, match="must not be above critical"):
        msgspec.structs.replace(lanes().p1, warning=0.95)
