"""The lanes as one account of a run uses them: several accounts share one engine.

    events of account A ─▶ source "orders kis"   ─▶ handlers of account A alone
    events of account B ─▶ source "orders upbit" ─▶ handlers of account B alone

Handlers that are registered with the engine itself take the events of all accounts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from qts.events.engine import EventEngine
from qts.events.event import Event, Priority
from qts.events.lanes import TickWatcher


class EventPort(Protocol):
    """What the parts of an account need of the lanes."""

    @property
    def publish(self) -> Callable[..., None]: ...
    @property
    def try_publish(self) -> Callable[[Event], bool]: ...
    def on(
        self, target: str, handler: Callable[[Event], object], *, essential: bool = False
    ) -> None: ...
    def attach_watcher(self, name: str, watcher: TickWatcher, field: str) -> None: ...
    def new_event(self, name: str, payload: msgspec.Struct, source: str = "") -> Event: ...
    def wait_drained(self, seconds: float, *lanes: Priority) -> bool: ...


class AccountEvents:
    """EventPort of the account of that name; without a name, of the only account."""

    def __init__(self, engine: EventEngine, name: str = "") -> None:
        self._engine = engine
        self._suffix = f" {name}" if name else ""
        self.publish, self.try_publish = engine.publish, engine.try_publish
        self.attach_watcher, self.wait_drained = engine.attach_watcher, engine.wait_drained

    def source(self, part: str) -> str:
        """Return the source of events of a part of the account."""
        return part + self._suffix

    def on(
        self, target: str, handler: Callable[[Event], object], *, essential: bool = False
    ) -> None:
        """Call `handler` with the events of this account."""
        self._engine.on(target, self._own(handler), essential=essential)

    def new_event(self, name: str, payload: msgspec.Struct, source: str = "") -> Event:
        return self._engine.new_event(name, payload, source + self._suffix)

    def _own(self, handler: Callable[[Event], object]) -> Callable[[Event], object]:
        suffix = self._suffix
        if not suffix:
            return handler

        def call(event: Event) -> object:
            return handler(event) if event.source.endswith(suffix) else None

        named: Any = call
        named.__wrapped__ = handler  # its name in alerts
        return call
