"""Where quotes come from: the port that the poller asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from qts.venues import Priority, Quote, UpbitClient

Choose = Callable[[], Sequence[str]]


class Source(Protocol):
    @property
    def per_call(self) -> int:
        """Symbols one request can ask for."""
        ...

    async def quotes(self, choose: Choose, priority: Priority) -> list[Quote]:
        """One request; `choose` names its symbols once the budget has granted it."""
        ...


class Stream(Protocol):
    """Live ticks of a few symbols; they arrive by the callback it was made with."""

    @property
    def live(self) -> bool: ...
    @property
    def free(self) -> int: ...
    def watch(self, symbol: str) -> None: ...
    def unwatch(self, symbol: str) -> None: ...


class UpbitSource:
    """Upbit gives any number of markets in one request; an address has room for some hundred."""

    per_call = 200

    def __init__(self, client: UpbitClient) -> None:
        self._client = client

    async def quotes(self, choose: Choose, priority: Priority) -> list[Quote]:
        return await self._client.tickers(choose(), priority)
