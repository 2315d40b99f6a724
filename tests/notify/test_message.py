"""Content of the messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.notify import Message
from qts.notify.config import ALWAYS, TradeEvent
from qts.notify.message import as_text, message_for_event, short
from qts.outbox import TRADE_EVENT, Delivery, Envelope
from tests.notify.conftest import a_message

ACCEPTED = {
    "orderIntentId": "0197-a",
    "strategyKey": "rsi_scalper",
    "intentType": "ENTRY",
    "symbol": "KRW-BTC",
    "side": "BUY",
    "quantity": "0.01",
    "brokerOrderId": "c0ffee",
}


def delivery(name: str, account: str = "upbit:5e1f") -> Delivery:
    envelope = Envelope(
        type=name, trace_id="0" * 32, payload=None, occurred_at=datetime(2026, 1, 5, tzinfo=UTC)
    )
    return Delivery(TRADE_EVENT, "order", "1", envelope, 1, 10, account=account)


def test_an_accepted_order_has_the_fields_a_receiver_relies_on() -> None:
    source = delivery("OrderAccepted")
    shown = msgspec.to_builtins(message_for_event(ACCEPTED, source))
    assert shown == {
        "schemaVersion": 1,
        "eventId": str(source.event_id),
        "type": "ORDER_ACCEPTED",
        "occurredAt": "2026-01-05T00:00:00Z",
        "severity": "info",
        "title": "Order accepted: BUY 0.01 KRW-BTC",
        "body": "strategy rsi_scalper, ENTRY, order c0ffee",
        "deepLink": "/orders/0197-a",
        "data": {
            "strategyKey": "rsi_scalper",
            "market": "KRW-BTC",
            "side": "BUY",
            "intentType": "ENTRY",
            "requestedVolume": "0.01",
            "brokerOrderId": "c0ffee",
            "upbitUuid": "c0ffee",
        },
    }


def test_an_order_of_another_broker_has_no_upbit_uuid() -> None:
    message = message_for_event(ACCEPTED, delivery("OrderAccepted", "paper:5e1f"))
    assert "upbitUuid" not in message.data


@pytest.mark.parametrize("name", [*ALWAYS, *get_args(TradeEvent)])
def test_every_event_that_can_be_sent_has_a_title(name: str) -> None:
    message = message_for_event({}, delivery(name))
    assert "?" in message.title
    assert message.deep_link == "/orders"


def test_an_unknown_order_is_critical() -> None:
    assert message_for_event(ACCEPTED, delivery("OrderUnknown")).severity == "critical"


@pytest.mark.parametrize(
    "link",
    ["https://evil.example", "//evil.example", "/a//b", "orders", "/\\evil", "/" + "a" * 512],
)
def test_a_link_that_leads_away_is_refused(link: str) -> None:
    with pytest.raises(ValueError, match="deep link"):
        a_message(deep_link=link)


@given(st.text(max_size=300))
def test_an_intent_of_any_shape_gives_a_link_that_stays_here(intent: str) -> None:
    message = message_for_event(ACCEPTED | {"orderIntentId": intent}, delivery("OrderAccepted"))
    assert message.deep_link.startswith("/orders")
    assert "//" not in message.deep_link


@given(st.lists(st.text(max_size=80), min_size=1, max_size=60), st.integers(100, 4000))
def test_a_text_fits_however_many_there_are(titles: list[str], max_chars: int) -> None:
    messages = [a_message(short(title)) for title in titles]
    assert len(as_text(messages, max_chars)) <= max_chars


def test_the_most_severe_comes_first() -> None:
    many = [a_message(f"fine {n}") for n in range(5)] + [a_message("bad", "critical")]
    lines = as_text(many, 4000).splitlines()
    assert lines[:2] == ["QTS: 6 messages", "- [CRITICAL] bad: strategy surge_breakout"]


def test_what_does_not_fit_is_counted() -> None:
    text = as_text([a_message(f"number {n}") for n in range(100)], 300)
    shown = text.count("\n- ")
    assert text.endswith(f"… and {100 - shown} more")


def test_a_stored_message_is_read_back_equal() -> None:
    one = a_message(data={"figure": 1.5})
    assert msgspec.json.decode(msgspec.json.encode(one), type=Message) == one


@given(st.dictionaries(st.sampled_from([*ACCEPTED, "code", "reason"]), st.none() | st.text()))
def test_no_payload_stops_a_message(payload: dict[str, Any]) -> None:
    message = message_for_event(payload, delivery("OrderRejected"))
    assert message.title
    assert "\n" not in message.title + message.body


def test_a_finished_backtest_shows_its_figures() -> None:
    figures = {"trades": 12, "gain": 0.0153, "max_drawdown": 0.004, "sharpe": None}
    done = message_for_event({"jobId": "j1", "performance": figures}, delivery("BacktestCompleted"))
    assert (done.title, done.body, done.deep_link) == (
        "Backtest completed: job j1",
        "12 trades, gain +1.53%, max drawdown 0.40%",
        "/backtests",
    )
    failed = message_for_event({"jobId": "j2", "error": "no data"}, delivery("BacktestFailed"))
    assert (failed.title, failed.body) == ("Backtest failed: job j2", "no data")
