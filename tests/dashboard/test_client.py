"""The Python client against a real server."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import get_args
from uuid import UUID, uuid4

import pytest

from qts.client import PREFIX, Client, RequestError
from qts.dashboard import ApiTokens
from qts.dashboard.pages import OrdersState
from qts.domain import AttemptState, RefusedError
from qts.orders import WAITING
from qts.risk import KillSwitch
from tests.accounts import PAPER
from tests.dashboard.conftest import Site
from tests.dashboard.programs import CLI
from tests.dashboard.test_actions import running
from tests.dashboard.test_api import add_orders
from tests.dashboard.test_orders_page import unknown_order
from tests.orders.waiting import store_stop_order


async def client(site: Site, role: str = "trade") -> Client:
    _, secret = await ApiTokens(site.database).create(uuid4().hex, role, 1, CLI)
    return Client(site.address, secret.reveal())


async def test_it_reads_structs(site: Site) -> None:
    await running(site)
    intent = await unknown_order(site.database)
    with await client(site, "read") as qts:

        def read() -> None:
            status = qts.status()
            assert (status.run, status.verdict.state) == ("reporting", "stopped")
            assert status.live is not None
            assert status.live.positions == qts.positions().live
            (order,) = qts.orders(open=True, symbol="005930").orders
            assert order.intent_id == intent
            assert qts.order(intent).order == order
            assert qts.strategies().strategies[0].status.key == "rsi_scalper"
            assert qts.equity("1w").curve.bin_s == 1800
            assert qts.risk().refusals == {"DAILY_LOSS": 2}
            assert qts.alerts().alerts == []
            assert qts.fills().fills == list(qts.iter_fills())
            assert qts.outbox().dead == []
            assert qts.dead_letters().dead_letters == []
            assert qts.get("/backtests", dict) == {"jobs": []}

        await asyncio.to_thread(read)


async def test_it_reads_and_cancels_a_stop_order_that_waits(site: Site) -> None:
    intent = await unknown_order(site.database)
    id_ = await store_stop_order(site.database, PAPER)
    with await client(site) as qts:

        def work() -> None:
            waiting, sent = qts.orders().orders
            assert (waiting.intent_id, waiting.status, waiting.trigger) == (
                id_,
                WAITING,
                Decimal(110),
            )
            assert (sent.intent_id, sent.trigger) == (intent, None)
            assert qts.orders(state=WAITING, open=True).orders == [waiting]
            assert qts.orders(state="UNKNOWN").orders == [sent]
            assert list(qts.iter_orders(limit=1)) == [waiting, sent]
            assert qts.order(id_).order == waiting
            assert qts.cancel(id_, "not today").message == "cancel requested"
            assert qts.orders(state=WAITING).orders == []

        await asyncio.to_thread(work)


def test_orders_are_found_by_every_state() -> None:
    assert set(get_args(OrdersState)) == {*AttemptState, WAITING}


async def test_it_walks_all_orders(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    known = await add_orders(site.database, 23, "now() - interval '1 minute'")
    monkeypatch.setattr("qts.client.PAGE", 5)
    with await client(site, "read") as qts:
        rows = await asyncio.to_thread(lambda: list(qts.iter_orders()))
    assert len(rows) == 23
    assert {str(row.intent_id) for row in rows} == known


async def test_it_acts_and_reports_refusals(site: Site) -> None:
    with await client(site) as qts:
        done = await asyncio.to_thread(qts.stop_trading, "lunch")
        assert done.message == "account is stopped"
        assert not (await KillSwitch(site.database, PAPER).all())["account"].enabled
        await asyncio.to_thread(qts.allow_trading, "back")
        for call, status, text in (
            (lambda: qts.release_fail_safe("x"), 403, "needs the role admin"),
            (lambda: qts.stop_trading(""), 422, "reason: "),
            (lambda: qts.cancel(UUID(int=1), "x"), 422, "is not one of account"),
            (lambda: qts.order(UUID(int=1)), 404, "no order"),
            (lambda: qts.orders(limit=0), 422, "limit: "),
            (lambda: qts.place("005930", "BUY", 1, reason="x"), 503, "no run trades account"),
        ):
            with pytest.raises(RequestError, match=text) as refused:
                await asyncio.to_thread(call)
            assert refused.value.status == status
        rows = await asyncio.to_thread(lambda: list(qts.iter_actions()))
    assert [row.message for row in rows if row.action == "kill"] == [
        "account may trade",
        "account is stopped",
    ]


async def test_a_lost_connection_is_opened_again(site: Site) -> None:
    with await client(site) as qts:
        await asyncio.to_thread(qts.risk)
        assert qts._connection.sock is not None
        qts._connection.sock.shutdown(2)
        await asyncio.to_thread(qts.risk)


@pytest.mark.parametrize("address", ["", "127.0.0.1:8420", "ftp://x", "http://x/api", "http://"])
def test_a_wrong_address_is_refused(address: str) -> None:
    with pytest.raises(RefusedError, match="expected one like"):
        Client(address, "token")


def test_the_token_is_not_shown() -> None:
    assert "canary" not in repr(Client("http://127.0.0.1:1", "canary"))
    assert PREFIX == "/api/v1"
