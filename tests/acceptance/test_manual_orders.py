"""Manual orders against a whole run on paper; the paper venue's own lists decide."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.acceptance.runs import DEADLINE_S, SLOW_MARKET, VENUE, Run, running
from tests.embedded.clients import until

SETTINGS = {**SLOW_MARKET, "QTS_PIPELINE__STRATEGIES": "tests.acceptance.idler:Idler"}
# A run that takes over soon from one that died.
TAKEOVER = {
    "QTS_OUTBOX__TRADE_COMMAND__LOCK_TTL_S": "1",
    "QTS_OUTBOX__TRADE_EXIT__LOCK_TTL_S": "1",
}
ORDERS = "SELECT symbol, side, quantity, state FROM paper_order ORDER BY placed_at"
STOCKS = ("005930", "000660", "035720")


class Line:
    """The command line of a home."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def __call__(self, *words: str) -> tuple[int, str]:
        done = self.start(*words)
        out, error = done.communicate(timeout=DEADLINE_S)
        return done.returncode, f"{out}{error}".strip()

    def start(self, *words: str) -> subprocess.Popen[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("QTS_")}
        return subprocess.Popen(
            [sys.executable, "-m", "qts", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**clean, **SETTINGS, "QTS_HOME": str(self._home)},
        )

    def json(self, *words: str) -> Any:
        code, text = self(*words, "--json")
        assert code in (0, 1), text
        return json.loads(text)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    home = tmp_path_factory.mktemp("manual").resolve() / "home"
    with running(home, **SETTINGS) as found:
        found.until("Ready")
        yield found


@pytest.fixture(scope="module")
def qts(run: Run) -> Line:
    line = Line(run.home)
    assert until(lambda: not line("positions")[0], DEADLINE_S)
    return line


def buy(qts: Line, symbol: str, quantity: int = 1, *more: str) -> str:
    code, text = qts("orders", "place", "BUY", symbol, "--quantity", str(quantity), "--yes", *more)
    assert code == 0, text
    return text


def limit_below(run: Run, symbol: str) -> str:
    """A price that the market is 3 % above of, on a tick of these stocks."""
    query = "SELECT price FROM paper_fill WHERE symbol = $1 ORDER BY at DESC LIMIT 1"
    ((price,),) = run.query(query, symbol)
    return str(int(price * Decimal("0.97")) // 500 * 500)


def test_flatten_closes_everything_and_the_log_says_who_why_and_what(run: Run, qts: Line) -> None:
    for symbol in STOCKS:
        assert f"BUY 2 {symbol} filled" in buy(qts, symbol, 2)
    for symbol in STOCKS[:2]:
        text = buy(qts, symbol, 1, "--limit", limit_below(run, symbol))
        assert "is open at the venue, 0 filled" in text
    assert {row["symbol"]: row["quantity"] for row in run.query(VENUE)} == dict.fromkeys(STOCKS, 2)
    code, text = qts("positions", "close", "--all", "--reason", "leaving for the day", "--yes")
    assert code == 0, text
    assert "2 open orders cancelled" in text
    assert run.query(VENUE) == []
    states = [(row["side"], row["state"]) for row in run.query(ORDERS)]
    assert sorted(states) == sorted(
        [("BUY", "FILLED")] * 3 + [("BUY", "CANCELLED")] * 2 + [("SELL", "FILLED")] * 3
    )
    (latest, *_) = qts.json("ops", "actions")["actions"]
    assert latest["actor"].startswith("cli ")
    assert (latest["action"], latest["target"], latest["outcome"]) == ("close", "all", "DONE")
    assert latest["detail"]["reason"] == "leaving for the day"
    for symbol in STOCKS:
        assert f"SELL 2 {symbol} filled" in latest["message"]


def test_a_repeated_command_orders_nothing_and_tells_its_outcome(run: Run, qts: Line) -> None:
    before, id_ = len(run.query(ORDERS)), str(uuid4())
    first, again = (buy(qts, "005930", 1, "--id", id_) for _ in range(2))
    assert first == again
    assert len(run.query(ORDERS)) == before + 1
    words = ("orders", "place", "BUY", "005930", "--quantity", "2", "--id", id_, "--yes")
    code, text = qts(*words)
    assert code == 2
    assert "is that of another manual command" in text
    assert len(run.query(ORDERS)) == before + 1


def test_two_closes_at_once_sell_what_is_held_once(run: Run, qts: Line) -> None:
    buy(qts, "035720", 3)
    words = ("positions", "close", "035720", "--reason", "twice", "--yes")
    both = [qts.start(*words) for _ in range(2)]
    for each in both:
        each.communicate(timeout=DEADLINE_S)
    sold = "SELECT sum(quantity) FROM paper_fill WHERE symbol = '035720' AND side = $1"
    assert run.query(sold, "SELL") == run.query(sold, "BUY")
    assert "035720" not in {row["symbol"] for row in run.query(VENUE)}


def test_the_kill_switch_stops_a_close_and_leaves_open_orders(run: Run, qts: Line) -> None:
    buy(qts, "000660")
    buy(qts, "000660", 1, "--limit", limit_below(run, "000660"))
    assert qts("kill", "on", "--reason", "test")[0] == 0
    try:
        code, text = qts("positions", "close", "000660", "--reason", "now", "--yes")
    finally:
        assert qts("kill", "off")[0] == 0
    assert code == 1
    assert "G_KILL_SWITCH the kill switch is on for the account" in text
    assert "qts kill off first" in text
    assert [row["symbol"] for row in run.query(ORDERS) if row["state"] == "OPEN"] == ["000660"]
    assert qts("positions", "close", "000660", "--reason", "now", "--yes")[0] == 0
    assert [row for row in run.query(ORDERS) if row["state"] == "OPEN"] == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("place", "BUY", "005931", "--quantity", "1"), "did you mean 005930?"),
        (("place", "BUI", "005930", "--quantity", "1"), "side 'BUI' is unknown; expected one of"),
        (("place", "BUY", "005930", "--quantity", "x"), "--quantity 'x' is not a number"),
        (("place", "BUY", "005930", "--quantity", "0"), "quantity is 0; expected more than 0"),
        (("place", "BUY", "005930", "--quantity", "1", "--account", "x"), "account 'x'"),
        (("place", "BUY", "005930", "--quantity", "1", "--id", "x"), "'x' is not an id"),
    ],
)
def test_a_wrong_word_is_refused(qts: Line, words: tuple[str, ...], problem: str) -> None:
    code, text = qts("orders", *words, "--yes")
    assert code == 2
    assert problem in text
    assert len(text.splitlines()) == 1


def test_what_is_not_confirmed_is_not_sent(run: Run, qts: Line) -> None:
    before = len(run.query("SELECT id FROM manual_command"))
    code, text = qts("orders", "place", "BUY", "005930", "--quantity", "1")
    assert code == 2
    assert "--yes is missing" in text
    code, text = qts("positions", "close", "005939", "--reason", "typo", "--yes")
    assert code == 2
    assert "position '005939' is unknown" in text
    assert len(run.query("SELECT id FROM manual_command")) == before


def test_the_gate_refuses_with_its_codes_and_texts(run: Run, qts: Line) -> None:
    before = len(run.query(ORDERS))
    answer = qts.json("orders", "place", "BUY", "005930", "--quantity", "4000", "--yes")
    assert not answer["done"]
    (command,) = answer["commands"]
    assert command["state"] == "REFUSED"
    refusals = {each["code"]: each["text"] for each in command["refusals"]}
    assert refusals["G_MAX_VALUE"].startswith("the value is above the largest of one order: ")
    assert len(run.query(ORDERS)) == before


# Last: the run of the tests above ends.
def test_without_a_run_nothing_is_left_for_a_later_one(run: Run, qts: Line) -> None:
    orders, commands = len(run.query(ORDERS)), len(run.query("SELECT id FROM manual_command"))
    run.ends_well(signal.SIGTERM)
    code, text = qts("orders", "place", "BUY", "005930", "--quantity", "1", "--yes")
    assert code == 1
    assert "no run trades account paper:" in text
    assert "start qts run" in text
    with running(run.home, **SETTINGS) as second:
        second.until("Ready")
        assert len(second.query("SELECT id FROM manual_command")) == commands
        assert len(second.query(ORDERS)) == orders


LESS_OFTEN = [
    pytest.param(each, marks=pytest.mark.soak) for each in ("after_statement", "after_send")
]


@pytest.mark.parametrize("died_at", ["before_statement", *LESS_OFTEN])
def test_a_killed_run_doubles_nothing_and_the_next_tells_the_outcome(
    tmp_path: Path, died_at: str
) -> None:
    home, id_ = tmp_path.resolve() / "home", str(uuid4())
    words = ("orders", "place", "BUY", "005930", "--quantity", "1", "--yes", "--id", id_)
    with running(home, **SETTINGS, **TAKEOVER, QTS_TEST_DIE_AT=died_at) as first:
        first.until("Ready")
        code, _ = Line(home)(*words)
        assert code == 1  # its database died with the run
        assert first.end() == -signal.SIGKILL
    with running(home, **SETTINGS, **TAKEOVER) as second:
        second.until("Ready")
        ended = "SELECT state FROM manual_command WHERE ended_at IS NOT NULL"
        assert until(lambda: bool(second.query(ended)), DEADLINE_S), second.errors[-3000:]
        answer = Line(home).json(*words)
        filled = [row for row in second.query(ORDERS) if row["state"] == "FILLED"]
        assert len(second.query(ORDERS)) <= 1
        assert answer["done"] == (len(filled) == 1)
        assert len(second.query("SELECT id FROM order_intent")) <= 1
        (log,) = [
            row for row in Line(home).json("ops", "actions")["actions"] if row["outcome"] != "BEGUN"
        ][-1:]
        assert log["detail"]["id"] == id_
        assert log["message"] == answer["message"]


def test_the_run_ends_a_command_whose_requester_died(tmp_path: Path) -> None:
    home = tmp_path.resolve() / "home"
    with running(home, **SETTINGS) as run:
        run.until("Ready")
        asking = Line(home).start("orders", "place", "BUY", "005930", "--quantity", "1", "--yes")
        commands = "SELECT id FROM manual_command"
        assert until(lambda: bool(run.query(commands)), DEADLINE_S)
        asking.kill()
        asking.communicate()
        log = "SELECT outcome FROM dashboard_action WHERE action = 'place'"
        assert until(lambda: [row[0] for row in run.query(log)] == ["DONE"], DEADLINE_S)
