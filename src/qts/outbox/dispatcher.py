"""Handlers by stream and event type, with typed payloads and deduplication."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from qts.database import Connection
from qts.domain import RefusedError
from qts.outbox.bus import Delivery, OutboxHandler
from qts.outbox.errors import PermanentError
from qts.outbox.queries import SQL

H = TypeVar("H", bound=OutboxHandler)


class Dispatcher:
    """EventDispatcher with registered handlers.

    >>> @dispatcher.on("everbit.trade.event", OrderAccepted)
    ... async def push(payload: OrderAccepted, delivery: Delivery) -> None: ...
    """

    def __init__(self) -> None:
        self._handlers: dict[tuple[str, str], tuple[OutboxHandler, msgspec.json.Decoder[Any]]] = {}
        self._ignored: set[tuple[str, str | None]] = set()

    def on(
        self,
        stream: str,
        payload_type: Any,
        type: str | None = None,  # noqa: A002 - as in the envelope
    ) -> Callable[[H], H]:
        """Register the decorated handler; the event type is the payload's class name by default."""

        def register(handler: H) -> H:
            name = type or payload_type.__name__
            if not _is_async(handler):
                raise RefusedError(
                    f"handler of {name} is not an async function; "
                    "await asyncio.to_thread(...) in it for blocking calls"
                )
            if (stream, name) in self._handlers:
                raise RefusedError(f"{name} on {stream} already has a handler")
            self._handlers[stream, name] = (handler, msgspec.json.Decoder(payload_type))
            return handler

        return register

    def ignore(self, stream: str, *types: str) -> None:
        """Accept these event types without a handler; without names, all types."""
        self._ignored.update((stream, name) for name in types or (None,))

    def dispatch(self, delivery: Delivery) -> Awaitable[None]:
        stream, name = delivery.stream, delivery.envelope.type
        found = self._handlers.get((stream, name))
        if found is None:
            if self._ignored.isdisjoint(((stream, name), (stream, None))):
                raise PermanentError(f"no handler for {name} on {stream}", code="NO_HANDLER")
            return _pass()
        handler, decoder = found
        try:
            payload = decoder.decode(delivery.envelope.payload)
        except msgspec.MsgspecError as error:
            raise PermanentError(f"payload of {name}: {error}", code="PAYLOAD_INVALID") from None
        return handler(payload, delivery)


async def _pass() -> None:
    """Complete an ignored event."""


def _is_async(handler: object) -> bool:
    return inspect.iscoroutinefunction(handler)


async def mark_handled(tx: Connection, event_id: UUID, handler: str = "") -> bool:
    """Record that the event is handled; return False if it already was.

    Call it in the transaction of the effect, and skip the effect on False. A concurrent call waits
    for that transaction to end. Several handlers of one event need different names.
    """
    return await tx.execute(SQL.mark_handled, handler, event_id) == "INSERT 0 1"
