"""Connection to NATS: checked once with a clear error, then reconnected without end."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from qts.domain import OperationError, RefusedError, UnreachableError
from qts.outbox.config import NatsBusConfig

if TYPE_CHECKING:
    from nats.aio.client import Client

CONNECT_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 2.0
CLOSE_TIMEOUT_S = 0.5
PING_INTERVAL_S = 1  # a server that answers none of three is left


def nats_errors() -> tuple[type[Exception], ...]:
    """Return the client errors that a retry may resolve."""
    import nats.errors
    import nats.js.errors

    return (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError)


def nats_address(config: NatsBusConfig) -> str:
    """Return the addresses of the servers without passwords."""
    return "NATS at " + ",".join(
        urlsplit(url).netloc.rpartition("@")[2] or "?" for url in nats_urls(config)
    )


async def connect_nats(config: NatsBusConfig, name: str = "qts outbox") -> Client:
    """Connect and check that the server has JetStream; the connection renews itself."""
    try:
        import nats
    except ImportError:
        raise OperationError('NATS client is not installed; pip install "qts[nats]"') from None
    address = nats_address(config)
    if "?" in address or not nats_urls(config):
        raise RefusedError('outbox.nats.url is not valid; expected "nats://host:4222"')
    tls = tls_options(config)
    try:
        await close_nats(await _connect_once(config, tls))
        client = await nats.connect(
            nats_urls(config),
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            ping_interval=PING_INTERVAL_S,
            max_outstanding_pings=3,
            error_cb=_ignore,
            name=name,
            **tls,
        )
    except (OSError, TimeoutError, nats.errors.Error, ValueError) as error:
        if "authorization" in str(error).lower():
            raise RefusedError(
                f"{address} refuses the user, password or token of its URL"
            ) from None
        raise UnreachableError(f"{address} does not answer: {str(error) or 'timeout'}") from None
    try:
        await client.jetstream(timeout=REPLY_TIMEOUT_S).account_info()
    except nats_errors():
        await close_nats(client)
        raise OperationError(
            f"{address} has no JetStream; start it with -js or a jetstream block"
        ) from None
    return client


def tls_options(config: NatsBusConfig) -> dict[str, Any]:
    """Return whom the client trusts; refuse a file that has no certificates."""
    if config.ssl_ca is None:
        return {}
    try:
        return {"tls": ssl.create_default_context(cafile=config.ssl_ca)}
    except OSError as error:  # an SSLError too
        reason = "no certificate in it" if isinstance(error, ssl.SSLError) else error.strerror
        raise RefusedError(
            f"outbox.nats.ssl_ca is {config.ssl_ca}: {reason}; expected a file of PEM certificates"
        ) from None


async def _connect_once(config: NatsBusConfig, tls: dict[str, Any]) -> Client:
    """Try each server once; the client itself would retry without end."""
    import nats.errors

    last: Exception = OSError("no URL")
    for url in nats_urls(config):
        try:
            await _probe(url)
            return await asyncio.wait_for(_try_server(url, tls), CONNECT_TIMEOUT_S)
        except (nats.errors.Error, TimeoutError, OSError, ValueError) as error:
            last = error
    raise last


async def _try_server(url: str, tls: dict[str, Any]) -> Client:
    from nats.aio.client import Client

    client = Client()
    try:
        await client.connect(
            url,
            allow_reconnect=False,
            connect_timeout=int(CONNECT_TIMEOUT_S),
            error_cb=_ignore,
            **tls,
        )
    except BaseException:
        # After a failed TLS handshake closing waits without end.
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await close_nats(client)
        raise
    return client


async def close_nats(client: Client) -> None:
    """Close the connection, broken or not.

    A broken one raises once more when it is closed; from Python 3.12 on that may be a TypeError of
    writelines() on its closed transport.
    """
    with suppress(*nats_errors(), TypeError):
        await client.close()


async def _probe(url: str) -> None:
    """Fail at once if the port is closed; the client would wait two seconds."""
    parts = urlsplit(url)
    _, writer = await asyncio.wait_for(
        asyncio.open_connection(parts.hostname, parts.port or 4222), CONNECT_TIMEOUT_S
    )
    writer.close()
    await writer.wait_closed()


def nats_urls(config: NatsBusConfig) -> list[str]:
    """Return the URL of each server, with its password."""
    text = config.url.reveal() if config.url else ""
    return [url.strip() for url in text.split(",") if url.strip()]


async def _ignore(_error: Exception) -> None:
    """Drop the client's error log; callers receive the errors that matter."""
