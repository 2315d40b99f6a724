"""Simulators as processes, and the hosts of the venues mapped to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import websockets

APP_KEY, APP_SECRET = "PSQTSsimulatedAppKey0123456789abcdef", "simulated-app-secret" * 9
ACCOUNT, HTS_ID = "50123456-01", "qtsuser"
ACCESS_KEY, SECRET_KEY = "qts-simulated-access-key", "qts-simulated-key-" * 4
SYMBOL, UNKNOWN = "005930", "999999"
BTC = "KRW-BTC"


class Venue:
    """A running simulator."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ws_url = url.replace("http", "ws", 1)

    def limit_once(self) -> None:
        """Answer the next request as one over the limit."""
        self._control("faults", {"kind": "limit", "count": 1})

    def _control(self, path: str, body: dict[str, Any]) -> None:
        request = urllib.request.Request(  # noqa: S310 - a local simulator
            f"{self.url}/_control/{path}",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=10).close()  # noqa: S310 - a local simulator


def _started(*arguments: str) -> Iterator[Venue]:
    command = [str(Path(sys.executable).with_name("qts")), "dev", "simulate", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Venue(process.stdout.readline().split()[2])
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


@pytest.fixture(scope="module")
def kis_venue() -> Iterator[Venue]:
    """KIS that trades at any hour, for clients that send the date of today.

    Two of the clients page without a pause, faster than the limit: only `limit_once` refuses.
    """
    yield from _started("kis", "--symbols", "40", "--always-open", "--limits", "0/0/0")


@pytest.fixture(scope="module")
def upbit_venue() -> Iterator[Venue]:
    yield from _started("upbit", "--symbols", "20")


@pytest.fixture(scope="module", autouse=True)
def in_seoul() -> Iterator[None]:
    """Run in the time zone of the venues, which the clients take for granted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Asia/Seoul")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Map the beginnings of addresses for requests and websockets; files go to a new folder."""
    mapped: dict[str, str] = {}
    send, connect = requests.Session.request, websockets.connect

    def address(url: str) -> str:
        for host, other in mapped.items():
            if url.startswith(host):
                return other + url[len(host) :]
        return url

    def request(self: requests.Session, method: str, url: str, **options: Any) -> Any:
        return send(self, method, address(url), **options)

    def open_socket(uri: str, **options: Any) -> Any:
        return connect(address(uri), **options)

    here = Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests.Session, "request", request)
        patch.setattr(websockets, "connect", open_socket)
        os.chdir(tmp_path_factory.mktemp("client"))
        yield mapped
        os.chdir(here)
