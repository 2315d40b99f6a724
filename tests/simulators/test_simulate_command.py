"""`qts dev simulate` as a process, and its CPU usage."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

from qts.cli.simulate import app
from qts.domain import RefusedError
from qts.simulators import KisSimulator, KisSimulatorConfig, RequestLimits
from tests.simulators.clients import Kis


class Running:
    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "qts", "dev", "simulate", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        self.expected = self.process.stdout.readline()
        found = re.search(r"http://\S+", self.expected)
        assert found, self.process.communicate()
        self.url = found[0]
        self.lines = [self.process.stdout.readline() for _ in range(4)]

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=60) as reply:  # noqa: S310 - our own
            return json.load(reply)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        output, _ = self.process.communicate(timeout=60)
        assert output.endswith("stopped\n")
        return self.process.returncode


@pytest.fixture
def start() -> Iterator[type[Running]]:
    started: list[Running] = []

    class Tracked(Running):
        def __init__(self, *arguments: str) -> None:
            super().__init__(*arguments)
            started.append(self)

    yield Tracked
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.communicate()


def test_kis_prints_its_address_and_stops_on_ctrl_c(start: type[Running]) -> None:
    kis = start("kis", "--symbols", "50")
    assert kis.expected.startswith("kis simulator  http://127.0.0.1:")
    stats = kis.get("/_control/stats")
    assert stats["market"]["symbols"] == 50
    assert kis.stop() == 0


def test_upbit_answers_on_its_port(start: type[Running]) -> None:
    upbit = start("upbit", "--symbols", "12", "--speed", "100")
    assert len(upbit.get("/v1/market/all")) == 12
    assert upbit.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["kis", "--speed", "0"], "--speed"),
        (["kis", "--speed", "2000"], "--speed"),
        (["kis", "--symbols", "0"], "--symbols"),
        (["kis", "--limits", "18/1000"], "18/1000/100000"),
        (["kis", "--limits-clock", "sun"], "--limits-clock"),
        (["kis", "--start", "tomorrow"], "2026-11-16T09:00"),
        (["kis", "--port", "70000"], "--port"),
        (["upbit", "--seed", "-1"], "--seed"),
        (["upbit", "--random-refusals", "3"], "--random-refusals"),
    ],
)
def test_bad_options_are_refused_by_their_names(arguments: list[str], expected: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, RefusedError)
    assert expected in str(result.exception)


async def test_2500_symbols_and_50_requests_a_second_take_less_than_half_a_core(
    http: aiohttp.ClientSession,
) -> None:
    """Server, market and client together: two seconds' worth of multi-quotes, one after another."""
    config = KisSimulatorConfig(limits=RequestLimits(second=0, minute=0, day=0))
    async with KisSimulator(config) as simulator:
        kis = Kis(simulator, http)
        await kis.issue()
        codes = simulator.market.universe.codes
        before = time.process_time()
        for n in range(100):
            reply = await kis.many(list(codes[n * 25 : n * 25 + 30]))
            assert reply.status == 200
        for _ in simulator.market.advance(simulator.market.time + 2):
            pass
        assert time.process_time() - before < 2 * 0.5
