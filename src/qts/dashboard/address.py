"""The socket that the dashboard listens on, and the address that a browser opens."""

from __future__ import annotations

import socket

from qts.dashboard.config import DEFAULT_PORT, DashboardConfig
from qts.domain import RefusedError


def bind_socket(config: DashboardConfig) -> socket.socket:
    """Return a listening socket; another port is used if the default one is taken."""
    ports = (DEFAULT_PORT, 0) if config.port == DEFAULT_PORT else (config.port,)
    for port in ports:
        try:
            return socket.create_server(
                (config.host, port),
                family=socket.AF_INET6 if ":" in config.host else socket.AF_INET,
                backlog=128,
            )
        except OSError as error:
            if port == ports[-1]:
                raise RefusedError(
                    f"dashboard: cannot listen on {config.host}:{port}: {error.strerror}; "
                    "set dashboard.port, or dashboard.enabled = false"
                ) from None
    raise AssertionError("no port was tried")


def address_of(config: DashboardConfig, listening: socket.socket) -> str:
    """Return the address for a browser: a configured name if every interface is listened on."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    if config.names and config.host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        host = config.names[0]
    return f"{config.scheme}://{host}:{listening.getsockname()[1]}"
