"""`qts orders` and `qts positions` as a user types them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
import typer

from qts.brokers import AccountLease, open_account
from qts.cli.orders import orders
from qts.cli.positions import positions
from qts.database import Database
from qts.domain import (
    AccountKey,
    ManualClock,
    RefusedError,
    Secret,
    SystemClock,
    upbit_instrument,
)
from qts.feed import InstrumentStore
from qts.orders import open_intents
from qts.orders.context import halt_venue
from qts.outbox import TRADE_EXIT, OutboxAdmin, PostgresBus
from tests.accounts import PAPER, UPBIT
from tests.orders.fake_venue import Venue, lost_reply
from tests.orders.kit import PRICE, STREAMS, SYMBOL, OrderKit
from tests.orders.waiting import store_stop_order

BROKER = "upbit"  # commands accept the names of brokers that exist

KIS = AccountKey.of("kis", "simulator", "1234567801")


class Line:
    """The command line, on the test's own database."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    async def __call__(self, app: typer.Typer, *words: str) -> str:
        def run() -> None:
            typer.main.get_command(app).main(list(words), standalone_mode=False)

        await asyncio.to_thread(run)
        return self._capsys.readouterr().out

    async def json(self, app: typer.Typer, *words: str) -> Any:
        return msgspec.json.decode(await self(app, *words, "--json"))


@pytest.fixture
async def kit(database: Database, clock: ManualClock) -> AsyncIterator[OrderKit]:
    async with PostgresBus.open(database, STREAMS) as bus:
        venue = Venue(clock, BROKER)
        venue.key = UPBIT
        made = OrderKit(database, bus, venue, clock)
        await made.open()
        for other in (PAPER, KIS):
            await open_account(database, other, is_live=False)
        yield made


@pytest.fixture
def line(
    database_url: Secret,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Line:
    monkeypatch.setenv("QTS_HOME", str(tmp_path))
    monkeypatch.setenv("QTS_DATABASE__URL", database_url.reveal())
    monkeypatch.setenv("QTS_FEED__VENUE", BROKER)
    monkeypatch.setenv("QTS_BROKERS__BROKER", BROKER)
    return Line(capsys)


async def test_orders_are_listed_and_shown(kit: OrderKit, line: Line) -> None:
    submitted = await kit.submit()
    await kit.work()
    await kit.context.ledger.record_fill(kit.venue.trade("V1", Decimal(2), PRICE))
    (row,) = (await line.json(orders, "list"))["orders"]
    assert (row["intent_id"], row["attempt_state"]) == (str(submitted.intent_id), "ACKED")
    assert (row["status"], row["order_state"]) == ("COMPLETED", "FILLED")
    assert "ENTRY BUY 2 KRW-BTC at 100, 2 filled" in await line(orders, "list")
    assert await line(orders, "list", "--open") == "no such orders\n"
    assert await line(orders, "list", "--symbol", SYMBOL, "--open") == "no such orders\n"
    life = await line.json(orders, "show", str(submitted.intent_id))
    assert [attempt["status"] for attempt in life["attempts"]] == ["ACKED"]
    assert len(life["fills"]) == 1
    assert "broker_order_id  V1" in await line(orders, "show", str(submitted.intent_id))


async def test_positions_are_shown(kit: OrderKit, line: Line) -> None:
    assert await line(positions) == "no positions\n"
    name = await kit.order()
    await kit.context.ledger.record_fill(kit.venue.trade(name, Decimal("1.5"), PRICE))
    (row,) = (await line.json(positions))["positions"]
    assert (row["symbol"], Decimal(row["quantity"])) == (SYMBOL, Decimal("1.5"))
    table = (await line(positions)).splitlines()
    assert table[1].split()[:4] == [BROKER, SYMBOL, "1.5", "100"]


async def test_an_order_is_cancelled_from_the_command_line(kit: OrderKit, line: Line) -> None:
    submitted = await kit.submit()
    await kit.work()
    assert await line.json(orders, "cancel", str(submitted.intent_id)) == {"asked": True}
    await kit.work()
    assert kit.venue.cancels == ["V1"]


async def test_a_stop_order_that_waits_is_listed_and_shown(kit: OrderKit, line: Line) -> None:
    submitted = await kit.submit()
    id_ = str(await store_stop_order(kit.database, UPBIT))
    later = str(await store_stop_order(kit.database, UPBIT, symbol="KRW-ETH", price=Decimal(115)))
    await store_stop_order(kit.database, PAPER)
    rows = (await line.json(orders, "list"))["orders"]
    assert [row["intent_id"] for row in rows] == [later, id_, str(submitted.intent_id)]
    assert [row["status"] for row in rows] == ["WAITING", "WAITING", "CREATED"]
    assert [row["trigger"] for row in rows] == ["110", "110", None]
    assert [row["attempt_state"] for row in rows] == [None, None, "PREPARED"]
    for words in (("--state", "waiting"), ("--open", "--state", "WAITING")):
        only = (await line.json(orders, "list", *words, "--symbol", SYMBOL))["orders"]
        assert [row["intent_id"] for row in only] == [id_]
    text = await line(orders, "list", "--symbol", "KRW-ETH")
    assert "WAITING    -          ENTRY BUY 2 KRW-ETH at 115 once a trade is at 110, 0 f" in text
    assert (await line.json(orders, "list", "--limit", "1"))["orders"] == rows[:1]
    life = await line.json(orders, "show", id_)
    assert (life["order"]["trigger"], life["attempts"], life["fills"]) == ("110", [], [])


async def test_a_triggered_stop_order_is_the_order_that_it_became(
    kit: OrderKit, line: Line
) -> None:
    """Its row may say for a moment that it waits, also after a kill."""
    id_ = await store_stop_order(kit.database, UPBIT)
    submitted = await kit.submit(signal_id=id_)
    (row,) = (await line.json(orders, "list"))["orders"]
    assert row["intent_id"] == str(submitted.intent_id)
    assert [each for each, _ in await open_intents(kit.database, UPBIT)] == [submitted.intent_id]


async def test_a_stop_order_is_cancelled_by_the_run_or_at_once(kit: OrderKit, line: Line) -> None:
    waiting, alone = [await store_stop_order(kit.database, UPBIT) for _ in range(2)]
    async with AccountLease(kit.database, UPBIT, "home", SystemClock(), is_live=False):
        assert await line.json(orders, "cancel", str(waiting)) == {"asked": True}
        assert len((await line.json(orders, "list"))["orders"]) == 2  # until the run has done it
    assert await line.json(orders, "cancel", str(alone)) == {"asked": True}
    (row,) = (await line.json(orders, "list"))["orders"]
    assert row["intent_id"] == str(waiting)
    events = await OutboxAdmin(kit.database).find(stream=TRADE_EXIT)
    assert {(each.event_type, each.aggregate_id) for each in events} == {
        ("CancelStopOrder", str(waiting)),
        ("CancelStopOrder", str(alone)),
    }
    with pytest.raises(RefusedError, match=f"no order {alone}; see qts orders list"):
        await line(orders, "cancel", str(alone))


async def test_a_look_at_the_books_is_requested_for(kit: OrderKit, line: Line) -> None:
    await line(orders, "reconcile")
    assert [handled.result for handled in await kit.work()] == ["done"]
    assert kit.reconciler._requested.is_set()


async def test_a_command_publishes_with_the_settings_of_the_bus(
    kit: OrderKit, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QTS_OUTBOX__TRADE_COMMAND__MAX_ATTEMPTS", "3")
    await line(orders, "reconcile")
    query = "SELECT max_attempts FROM outbox_event WHERE event_type = 'Reconcile'"
    assert await kit.database.fetchval(query) == 3


async def test_an_unknown_attempt_is_resolved(kit: OrderKit, line: Line) -> None:
    kit.venue.before = lost_reply
    first, second = await kit.submit(), await kit.submit(symbol="KRW-ETH")
    await kit.work()
    assert len((await line.json(orders, "list", "--state", "unknown"))["orders"]) == 2
    await line(orders, "resolve", str(first.attempt_id), "--as", "absent")
    await line(orders, "resolve", str(second.attempt_id), "--as", "V77")
    assert await kit.attempts(first.intent_id) == ["ABSENT"]
    assert await kit.attempts(second.intent_id) == ["ACKED"]
    assert await kit.suspended() == {}


async def test_a_market_is_resumed_and_a_holding_taken_over(kit: OrderKit, line: Line) -> None:
    await halt_venue(kit.context, "418")
    await line(orders, "resume", "*", "--broker", BROKER)
    assert await kit.suspended() == {}
    await line(positions, "adopt", SYMBOL, "3", "--price", "80", "--broker", BROKER)
    assert (await kit.position())[0] == 3


@pytest.mark.parametrize(
    ("app", "words", "told"),
    [
        (orders, ["list", "--state", "LOST"], "expected one of PREPARED, SENT"),
        (orders, ["show", "7"], "is not an order id; expected a UUID"),
        (orders, ["show", str(uuid4())], "; see qts orders list"),
        (orders, ["cancel", str(uuid4())], "no order"),
        (orders, ["resolve", str(uuid4()), "--as", "absent"], "no attempt"),
        (orders, ["resolve", str(uuid4()), "--as", " "], "name the venue's order, or absent"),
        (orders, ["resume", "KRW-BTC", "--broker", BROKER], "is not suspended"),
        (positions, ["adopt", "X", "a", "--price", "1", "--broker", "kis"], "'a' is not a number"),
        (
            positions,
            ["adopt", "X", "0", "--price", "1", "--broker", "kis"],
            "a quantity and a positive price",
        ),
        (
            positions,
            ["adopt", "X", "1", "--price", "0", "--broker", "kis"],
            "a quantity and a positive price",
        ),
    ],
)
async def test_bad_words_are_refused(
    kit: OrderKit, line: Line, app: typer.Typer, words: list[str], told: str
) -> None:
    with pytest.raises(RefusedError, match=told):
        await line(app, *words)


async def test_a_position_is_frozen_and_released(kit: OrderKit, line: Line) -> None:
    words = ("freeze", SYMBOL, "--broker", BROKER, "--reason", "a fork")
    assert await line(orders, *words) == f"{SYMBOL} is frozen at {BROKER}\n"
    assert await line(orders, *words) == f"{SYMBOL} was frozen before\n"
    assert await kit.suspended() == {SYMBOL: "FROZEN"}
    await line(orders, "resume", SYMBOL, "--broker", BROKER)
    assert await kit.suspended() == {}


BROKERS = "expected one of paper, kis, upbit; did you mean"


@pytest.mark.parametrize(
    ("app", "words", "message"),
    [
        (
            orders,
            ["freeze", SYMBOL, "--broker", "papre", "--reason", "x"],
            f"broker 'papre' is unknown; {BROKERS} paper?",
        ),
        (
            orders,
            ["resume", SYMBOL, "--broker", "Upbit"],
            f"broker 'Upbit' is unknown; {BROKERS} upbit?",
        ),
        (
            positions,
            ["adopt", "005930", "1", "--price", "1", "--broker", "kiss"],
            f"broker 'kiss' is unknown; {BROKERS} kis?",
        ),
        (
            orders,
            ["freeze", "KRWBTC", "--broker", "upbit", "--reason", "x"],
            "'KRWBTC' is unknown at upbit; expected one as in KRW-BTC; did you mean KRW-BTC?",
        ),
        (
            orders,
            ["freeze", "KRW-BTC", "--broker", "kis", "--reason", "x"],
            "symbol 'KRW-BTC' is unknown at kis; expected one as in 005930",
        ),
        (
            positions,
            ["adopt", "05930", "1", "--price", "1", "--broker", "paper"],
            "symbol '05930' is unknown at paper; expected one as in 005930 or KRW-BTC",
        ),
        (
            positions,
            ["adopt", "*", "1", "--price", "1", "--broker", "upbit"],
            "symbol '*' is unknown at upbit; expected one as in KRW-BTC",
        ),
        (
            orders,
            ["resume", "KRW-XPR", "--broker", "upbit"],
            "KRW-XPR is not suspended at upbit; suspended: KRW-XRP; did you mean KRW-XRP?",
        ),
        (
            orders,
            ["list", "--symbol", "KRW-BTCC"],
            "symbol 'KRW-BTCC' is unknown; expected one of KRW-BTC, KRW-XRP; did you mean KRW-BTC?",
        ),
        (
            orders,
            ["list", "--state", "unknwon"],
            "did you mean UNKNOWN?",
        ),
    ],
)
async def test_an_unknown_name_is_refused_with_the_nearest(
    kit: OrderKit, line: Line, app: typer.Typer, words: list[str], message: str
) -> None:
    await kit.order()
    await line(orders, "freeze", "KRW-XRP", "--broker", BROKER, "--reason", "a fork")
    before = await _ledger_rows(kit.database)
    with pytest.raises(RefusedError) as refused:
        await line(app, *words)
    assert str(refused.value).endswith(message)
    assert await _ledger_rows(kit.database) == before


async def test_a_symbol_of_the_feed_is_known(
    kit: OrderKit, line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RefusedError, match="symbol 'KRW-ETH' is unknown; none is known"):
        await line(orders, "list", "--symbol", "KRW-ETH")
    file = tmp_path / "symbols.txt"
    file.write_text("KRW-ETH\n")
    monkeypatch.setenv("QTS_FEED__SYMBOLS", str(file))
    assert await line(orders, "list", "--symbol", "KRW-ETH") == "no such orders\n"


async def test_a_strategy_with_an_order_has_a_kill_switch(kit: OrderKit) -> None:
    await kit.submit(strategy_key="swing")
    await kit.kill.check_strategy("swing", tuple)
    with pytest.raises(RefusedError, match="did you mean swing"):
        await kit.kill.check_strategy("swnig", tuple)


async def test_a_whole_venue_is_frozen_and_released(kit: OrderKit, line: Line) -> None:
    await line(orders, "freeze", "*", "--broker", BROKER, "--reason", "maintenance")
    assert await kit.suspended() == {"*": "FROZEN"}
    await line(orders, "resume", "*", "--broker", BROKER)
    assert await kit.suspended() == {}


async def _ledger_rows(database: Database) -> list[tuple[object, ...]]:
    """Return everything that a manual command can change."""
    return [
        tuple(row)
        for table in ("market_state", "position", "broker_order", "fill", "outbox_event_all")
        for row in await database.fetch(f"SELECT * FROM {table} ORDER BY 1, 2")  # noqa: S608
    ]


async def test_names_of_instruments_are_shown(
    kit: OrderKit, line: Line, database: Database
) -> None:
    named = upbit_instrument(SYMBOL, name="비트코인", name_en="Bitcoin")
    await InstrumentStore(database).save("upbit", "real", [named], kit.clock.now())
    await kit.submit()
    await kit.work()
    await kit.context.ledger.record_fill(kit.venue.trade("V1", Decimal(2), PRICE))
    assert f"{SYMBOL} 비트코인" in await line(orders, "list")
    assert "비트코인" in await line(positions)
    (row,) = (await line.json(orders, "list"))["orders"]
    assert row["name"] == "비트코인"
