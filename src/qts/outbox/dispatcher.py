"""Handlers by stream and type, with typed payloads.

Doing a thing once, though its event may come twice.
"""

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
    """An EventDispatcher that handlers are registered with.

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
        type: str | None = None,  # noqa: A002 - the envelope's own word
    ) -> Callable[[H], H]:
        """Register the decorated handler for a type of event: the payload's name, if not given."""

        def register(handler: H) -> H:
            name = type or payload_type.__name__
            if not _is_async(handler):
                raise RefusedError(
                    f"the handler of {name} must be an async function; "
                    "await asyncio.to_thread(...) in it for work that blocks"
                )
            if (stream, name) in self._handlers:
                raise RefusedError(f"{name} on {stream} has a handler already")
            self._handlers[stream, name] = (handler, msgspec.json.Decoder(payload_type))
            return handler

        return register

    def ignore(self, stream: str, *types: str) -> None:
        """Let these types pass unhandled; without names, all that have no handler."""
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
    """What was ignored is done."""


def _is_async(handler: object) -> bool:
    return inspect.iscoroutinefunction(handler)


async def mark_handled(tx: Connection, event_id: UUID, handler: str = "") -> bool:
    """True the first time: call it in the transaction of the effect, and do nothing on False.

    Of two at the same moment one waits for the other's transaction to end. Handlers of one
    event that do different things need different names.
    """
    return await tx.execute(SQL.mark_handled, handler, event_id) == "INSERT 0 1"
