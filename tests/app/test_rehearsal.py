"""Rehearsals on the simulators: complete ones, and every fault leaves nothing open."""

from __future__ import annotations

import re
import stat
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path

import pytest

import qts
from qts.brokers import AccountLease
from qts.brokers.rehearsal_orders import RehearsalFailedError, RehearsalTimes
from qts.config import Config
from qts.database import Database
from qts.domain import RefusedError, Secret, SystemClock
from qts.simulators import KisKey, MarketConfig, UpbitKey
from qts.simulators.control import AFTER, BEFORE, Fault, Kind
from tests.acceptance.venues import SimulatedAccount, simulated_account
from tests.app.rehearsals import STEPS, Operator, config_of, lines_of, run_rehearsal, transcripts

LIST = {"kis": "/uapi/domestic-stock/v1/trading/inquire-daily-ccld", "upbit": "/v1/orders/open"}
CANCEL = {"kis": "/uapi/domestic-stock/v1/trading/order-rvsecncl", "upbit": "/v1/order"}
BALANCE = {"kis": "/uapi/domestic-stock/v1/trading/inquire-balance", "upbit": "/v1/accounts"}
POWER = {
    "kis": "/uapi/domestic-stock/v1/trading/inquire-psbl-order",
    "upbit": "/v1/orders/chance",
}
KINDS: list[Kind] = sorted(BEFORE | AFTER)
SECRETS = {
    "kis": (KisKey().app_key, KisKey().app_secret, KisKey().account, KisKey().hts_id),
    "upbit": (UpbitKey().access_key, UpbitKey().secret_key),
}


@pytest.fixture(params=["kis", "upbit"])
async def account(request: pytest.FixtureRequest) -> AsyncIterator[SimulatedAccount]:
    market = MarketConfig(symbols=20, always_open=True, surges_per_hour=0)
    async with simulated_account(request.param, market) as account:
        yield account


@pytest.fixture
def config(account: SimulatedAccount, tmp_path: Path, database_url: Secret) -> Config:
    return config_of(account, tmp_path, database_url)


def open_orders(account: SimulatedAccount) -> int:
    found: int = account.simulator.stats()["orders"]["open"]
    return found


def plant(account: SimulatedAccount, **fault: object) -> Fault:
    planted = Fault(**{"count": 1, "seconds": 4.5, **fault})  # type: ignore[arg-type]
    account.simulator.faults.add(planted)
    return planted


@pytest.mark.parametrize("fill", [False, True])
async def test_a_rehearsal_ends_with_a_complete_transcript(
    account: SimulatedAccount, config: Config, fill: bool
) -> None:
    path = await run_rehearsal(config, account, Operator(), fill=fill)
    start, *steps, end = lines_of(path)
    expected = [*STEPS[:-1], "buy", "sell", "end"] if fill else STEPS
    assert [each["step"] for each in steps] == expected
    skipped = {each["step"] for each in steps if each["verdict"] == "skipped"}
    assert skipped == ({"test"} if account.name == "kis" else set())
    assert end["complete"] is True
    assert (start["version"], start["venue"]) == (qts.__version__, account.name)
    assert start["environment"] == "simulator"
    assert open_orders(account) == 0
    assert account.holdings() == {}
    placed = account.orders().values()
    assert sum(bool(order.filled) for order in placed) == (2 if fill else 0)
    assert len(placed) == (4 if fill else 2)


async def test_a_transcript_is_private_and_has_no_secret(
    account: SimulatedAccount, config: Config
) -> None:
    path = await run_rehearsal(config, account, Operator())
    text = path.read_text()
    assert [secret for secret in SECRETS[account.name] if secret in text] == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


LESS_OFTEN = [pytest.param(each, marks=pytest.mark.soak) for each in ("list", "balance", "funds")]


@pytest.mark.parametrize("when", ["order", "cancel", *LESS_OFTEN])
async def test_every_fault_of_a_request_stops_it_with_nothing_open(
    account: SimulatedAccount, config: Config, when: str
) -> None:
    path, method, step = {
        "order": (account.order_path, "POST", "order"),
        "cancel": (CANCEL[account.name], "DELETE" if account.name == "upbit" else "POST", "cancel"),
        "list": (LIST[account.name], "GET", "order"),
        "balance": (BALANCE[account.name], "GET", "balance"),
        "funds": (POWER[account.name], "GET", "funds"),
    }[when]
    for kind in KINDS:
        faults: list[Fault] = []

        def before(name: str, kind: Kind = kind, faults: list[Fault] = faults) -> None:
            if name == step:
                faults.append(plant(account, kind=kind, path=path, method=method))

        operator = Operator(before)
        with pytest.raises(RehearsalFailedError) as failed:
            await run_rehearsal(config, account, operator)
        assert [fault.struck for fault in faults] == [1], (kind, failed.value)
        assert "LEFT" not in str(failed.value), kind
        assert "\n" not in str(failed.value), kind
        assert open_orders(account) == 0, kind
        assert operator.transcript is not None
        *_, failing, end = lines_of(operator.transcript)
        assert (failing["step"], failing["verdict"]) == (step, "failed"), kind
        assert (end["kind"], end["complete"]) == ("end", False), kind
        assert end["reason"] == str(failed.value), kind


async def test_repeated_reordered_and_wider_reports_do_not_stop_it(
    account: SimulatedAccount, config: Config
) -> None:
    kinds: list[Kind] = ["duplicate_fills", "reorder_fills", "width"]
    for kind in kinds:
        account.simulator.faults.clear()
        plant(account, kind=kind, count=None)
        await run_rehearsal(config, account, Operator(), fill=True)
        assert open_orders(account) == 0, kind


async def test_a_cut_stream_stops_it_with_nothing_open(
    account: SimulatedAccount, config: Config
) -> None:
    for step in ("order", "change", "cancel"):

        def before(name: str, step: str = step) -> None:
            if name == step:
                account.simulator.drop_streams()

        with pytest.raises(RehearsalFailedError, match=f"step {step}: the own-order stream"):
            await run_rehearsal(config, account, Operator(before))
        assert open_orders(account) == 0, step


async def test_a_lost_fill_names_what_was_bought(account: SimulatedAccount, config: Config) -> None:
    plant(account, kind="lose_fills", count=None)
    operator = Operator()
    if account.name == "kis":  # there the order list gives the fills
        await run_rehearsal(config, account, operator, fill=True)
    else:
        left = "LEFT AT THE VENUE: [0-9.]+ KRW-BTC bought and not sold"
        with pytest.raises(RehearsalFailedError, match=f"step buy: the own-order stream .*{left}"):
            await run_rehearsal(config, account, operator, fill=True)
    assert open_orders(account) == 0


@pytest.mark.parametrize("step", ["buy", pytest.param("sell", marks=pytest.mark.soak)])
async def test_a_fault_at_the_purchase_names_what_is_left(
    account: SimulatedAccount, config: Config, step: str
) -> None:
    """What the error says is left is what the venue's own record shows."""
    for kind in KINDS:
        held = sum(account.holdings().values())

        def before(name: str, kind: Kind = kind) -> None:
            if name == step:
                plant(account, kind=kind, path=account.order_path, method="POST")

        with pytest.raises(RehearsalFailedError, match=f"step {step}: ") as failed:
            await run_rehearsal(config, account, Operator(before), fill=True)
        assert open_orders(account) == 0, kind
        left = sum(account.holdings().values()) - held
        named = re.search(
            r"LEFT AT THE VENUE: ([0-9.]+) \S+ bought and not sold", str(failed.value)
        )
        assert left == (Decimal(named[1]) if named else 0), (kind, failed.value)


async def test_an_order_is_cancelled_though_the_lists_fail(
    account: SimulatedAccount, config: Config
) -> None:
    """A cancel that cannot be confirmed is still sent, and the operator is told what to look at."""

    def before(name: str) -> None:
        if name == "cancel":
            plant(account, kind="error", path=LIST[account.name], count=None)

    times = RehearsalTimes(seen_s=1.0, absent_s=0.5, withdraw_s=1.0, poll_s=0.05)
    with pytest.raises(RehearsalFailedError, match=r"LEFT AT THE VENUE: order .* may be open"):
        await run_rehearsal(config, account, Operator(before), times=times)
    assert open_orders(account) == 0


async def test_a_declined_step_stops_it_with_nothing_open(
    account: SimulatedAccount, config: Config
) -> None:
    for step in STEPS:
        if step == "test" and account.name == "kis":
            continue  # skipped there
        operator = Operator(declined=step)
        with pytest.raises(RehearsalFailedError, match=f"step {step} was declined"):
            await run_rehearsal(config, account, operator)
        assert open_orders(account) == 0, step
        assert step not in {each.step for each in operator.steps}


async def test_orders_of_others_are_left_alone(account: SimulatedAccount, config: Config) -> None:
    """An order on the same symbol, side, price and quantity is not taken for ours."""
    operator = Operator()
    await run_rehearsal(config, account, operator)
    (customer,) = account.simulator.gateway.customers.values()
    place_like_ours(account, customer)
    assert open_orders(account) == 1
    again = Operator()
    await run_rehearsal(config, account, again)
    assert open_orders(account) == 1
    assert [each.answer for each in again.steps if each.step == "orders"] == [
        "1 open, which are left alone"
    ]


def place_like_ours(account: SimulatedAccount, customer: object) -> None:
    """Place what a rehearsal placed first once more, as the customer's own order."""
    orders = account.simulator.orders
    if account.name == "upbit":
        entry = next(iter(orders.entries.values()))
        values = orders.as_json(entry)
        body = {name: values[name] for name in ("market", "side", "ord_type", "volume", "price")}
        orders.place(customer, body)
        return
    entry = orders.entries[0]
    key = KisKey().account
    code = account.simulator.market.universe.codes[entry.order.index]
    body = {"CANO": key[:8], "ACNT_PRDT_CD": key[8:], "PDNO": code, "ORD_DVSN": "00"}
    body |= {"ORD_QTY": str(entry.quantity), "ORD_UNPR": str(entry.price)}
    orders.place(customer, body, "buy")


async def test_it_is_refused_while_a_run_trades_the_account(
    account: SimulatedAccount, config: Config, database: Database
) -> None:
    from qts.app.account_configs import run_account

    key = run_account(config)
    async with AccountLease(database, key, "/home/of/a/run", SystemClock(), is_live=False):
        with pytest.raises(RefusedError, match=r"is traded by process .* /home/of/a/run"):
            await run_rehearsal(config, account, Operator())
    assert account.orders() == {}
    assert transcripts(config) == []


async def test_a_clock_that_is_off_stops_it(account: SimulatedAccount, config: Config) -> None:
    account.simulator.set_skew(5.0)
    with pytest.raises(RehearsalFailedError, match=r"clock differs by .* NTP"):
        await run_rehearsal(config, account, Operator())
    assert account.orders() == {}


async def test_an_unknown_symbol_is_refused_with_the_nearest(
    account: SimulatedAccount, config: Config
) -> None:
    known = account.simulator.symbols()[0]
    with pytest.raises(RefusedError, match=f"unknown; did you mean {known}"):
        await run_rehearsal(config, account, Operator(), symbol=f"{known}9")
    assert account.orders() == {}


async def test_too_little_money_is_named_before_an_order(
    account: SimulatedAccount, config: Config
) -> None:
    account.account.cash = 1000
    with pytest.raises(RehearsalFailedError, match=r"the smallest order of .* --symbol"):
        await run_rehearsal(config, account, Operator())
    assert account.orders() == {}
