"""Connection to NATS: checked once with a clear error, then reconnected without end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from qts.domain import OperationError, RefusedError, UnreachableError
from qts.outbox.config import NatsBusConfig

if TYPE_CHECKING:
    from nats.aio.client import Client

CONNECT_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 2.0


def transient_errors() -> tuple[type[Exception], ...]:
    """Return the client errors that a retry may resolve."""
    import nats.errors
    import nats.js.errors

    return (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError)


def server_addresses(config: NatsBusConfig) -> str:
    """Return the addresses of the servers without passwords."""
    return "NATS at " + ",".join(
        urlsplit(url).netloc.rpartition("@")[2] or "?" for url in _server_urls(config)
    )


async def connect(config: NatsBusConfig) -> Client:
    try:
        import nats
    except ImportError:
        raise OperationError('NATS client is not installed; pip install "qts[nats]"') from None
    address = server_addresses(config)
    if "?" in address or not _server_urls(config):
        raise RefusedError('outbox.nats.url is not valid; expected "nats://host:4222"')
    try:
        await close(await _connect_once(config))
        client = await nats.connect(
            _server_urls(config),
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            error_cb=_ignore,
            name="qts outbox",
        )
    except (OSError, TimeoutError, nats.errors.Error, ValueError) as error:
        if "authorization" in str(error).lower():
            raise RefusedError(
                f"{address} refuses the user, password or token of its URL"
            ) from None
        raise UnreachableError(f"{address} does not answer: {str(error) or 'timeout'}") from None
    try:
        await client.jetstream(timeout=REPLY_TIMEOUT_S).account_info()
    except transient_errors():
        await close(client)
        raise OperationError(
            f"{address} has no JetStream; start it with -js or a jetstream block"
        ) from None
    return client


async def _connect_once(config: NatsBusConfig) -> Client:
    """Try each server once; the client itself would retry without end."""
    import nats.errors

    last: Exception = OSError("no URL")
    for url in _server_urls(config):
        try:
            await _probe(url)
            return await asyncio.wait_for(_try_server(url), CONNECT_TIMEOUT_S)
        except (nats.errors.Error, TimeoutError, OSError, ValueError) as error:
            last = error
    raise last


async def _try_server(url: str) -> Client:
    from nats.aio.client import Client

    client = Client()
    try:
        await client.connect(
            url, allow_reconnect=False, connect_timeout=int(CONNECT_TIMEOUT_S), error_cb=_ignore
        )
    except BaseException:
        await close(client)
        raise
    return client


async def close(client: Client) -> None:
    """Close the connection, broken or not.

    A broken one raises once more when it is closed; from Python 3.12 on that may be a TypeError of
    writelines() on its closed transport.
    """
    with suppress(*transient_errors(), TypeError):
        await client.close()


async def _probe(url: str) -> None:
    """Fail at once if the port is closed; the client would wait two seconds."""
    parts = urlsplit(url)
    _, writer = await asyncio.wait_for(
        asyncio.open_connection(parts.hostname, parts.port or 4222), CONNECT_TIMEOUT_S
    )
    writer.close()
    await writer.wait_closed()


def _server_urls(config: NatsBusConfig) -> list[str]:
    text = config.url.reveal() if config.url else ""
    return [url.strip() for url in text.split(",") if url.strip()]


async def _ignore(_error: Exception) -> None:
    """Drop the client's error log; callers receive the errors that matter."""
