"""The connection to NATS: made once with an answer that helps, then kept for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from qts.domain import OperationError, RefusedError, UnreachableError
from qts.outbox.config import NatsBusConfig

if TYPE_CHECKING:
    from nats.aio.client import Client

CONNECT_S = 5.0
ANSWER_S = 2.0


def trouble() -> tuple[type[Exception], ...]:
    """What the client raises that another try may mend."""
    import nats.errors
    import nats.js.errors

    return (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError)


def server_addresses(config: NatsBusConfig) -> str:
    """Where the servers are, without their passwords."""
    return "NATS at " + ",".join(
        urlsplit(url).netloc.rpartition("@")[2] or "?" for url in _urls(config)
    )


async def connect(config: NatsBusConfig) -> Client:
    try:
        import nats
    except ImportError:
        raise OperationError('the client of NATS is missing; pip install "qts[nats]"') from None
    place = server_addresses(config)
    if "?" in place or not _urls(config):
        raise RefusedError('outbox.nats.url: must look like "nats://host:4222"')
    try:
        client = await _first(config)
        await client.close()
        client = await nats.connect(
            _urls(config),
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            error_cb=_ignore,
            name="qts outbox",
        )
    except (OSError, TimeoutError, nats.errors.Error, ValueError) as error:
        if "authorization" in str(error).lower():
            raise RefusedError(f"{place} refuses the user, password or token of its URL") from None
        raise UnreachableError(f"{place} does not answer: {str(error) or 'nothing came'}") from None
    try:
        await client.jetstream(timeout=ANSWER_S).account_info()
    except trouble():
        await client.close()
        raise OperationError(
            f"{place} has no JetStream; start it with -js or a jetstream block"
        ) from None
    return client


async def _first(config: NatsBusConfig) -> Client:
    """Try each server once, where the client itself would try for ever."""
    import nats.errors

    last: Exception = OSError("no URL")
    for url in _urls(config):
        try:
            await _probe(url)
            return await asyncio.wait_for(_trial(url), CONNECT_S)
        except (nats.errors.Error, TimeoutError, OSError, ValueError) as error:
            last = error
    raise last


async def _trial(url: str) -> Client:
    from nats.aio.client import Client

    client = Client()
    try:
        await client.connect(
            url, allow_reconnect=False, connect_timeout=int(CONNECT_S), error_cb=_ignore
        )
    except BaseException:
        await client.close()
        raise
    return client


async def _probe(url: str) -> None:
    """A refused connection is told at once; the client waits two seconds before it says so."""
    at = urlsplit(url)
    _, writer = await asyncio.wait_for(
        asyncio.open_connection(at.hostname, at.port or 4222), CONNECT_S
    )
    writer.close()
    await writer.wait_closed()


def _urls(config: NatsBusConfig) -> list[str]:
    text = config.url.reveal() if config.url else ""
    return [url.strip() for url in text.split(",") if url.strip()]


async def _ignore(_error: Exception) -> None:
    """The client's own log of errors: what matters is seen by whoever waits."""
