"""Tells systemd how a run goes (Type=notify, WatchdogSec); without systemd it says nothing.

The watchdog is fed from the event loop: a loop that hangs is noticed, and systemd starts QTS again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qts.app.app import Ready, Watcher


def tell(state: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send one line such as READY=1; False where nobody listens."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address[0] == "@":  # an abstract socket
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.setblocking(False)
        out.sendto(state.encode(), address)
        return True
    return False


def watchdog_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """How often systemd wants to hear from this process; half of what it waits."""
    wait_us, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID")
    if not wait_us.isdigit() or not int(wait_us) or (pid and pid != str(os.getpid())):
        return None
    return int(wait_us) / 2e6


async def feed_watchdog(environ: Mapping[str, str] = os.environ) -> None:
    """Until it is cancelled; ends at once where there is no watchdog."""
    every_s = watchdog_s(environ)
    while every_s is not None:
        tell("WATCHDOG=1", environ)
        await asyncio.sleep(every_s)


class Supervised:
    """A Watcher that tells systemd as well."""

    def __init__(self, watcher: Watcher, environ: Mapping[str, str] = os.environ) -> None:
        self._watcher = watcher
        self._environ = environ

    def starting(self) -> None:
        self._watcher.starting()

    def ready(self, ready: Ready) -> None:
        self._watcher.ready(ready)
        words = " ".join(ready.trading.split()) or "the servers run; nothing is traded"
        tell(f"READY=1\nSTATUS={words}", self._environ)

    def stopping(self) -> None:
        tell("STOPPING=1", self._environ)
        self._watcher.stopping()
