"""Settings of the dashboard, its socket, and the consent to listen beyond this machine."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from qts.domain import RefusedError

ACKNOWLEDGEMENT = "I_UNDERSTAND_OTHERS_CAN_REACH_IT"
DEFAULT_PORT = 8420


class DashboardConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Web server of the dashboard."""

    enabled: Annotated[bool, Meta(description="whether qts run starts the dashboard")] = True
    host: Annotated[
        str,
        Meta(max_length=255, description="address to listen on; one beyond this machine needs TLS"),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        Meta(
            ge=0,
            le=65_535,
            description=f"port; 0: any. If {DEFAULT_PORT} is taken, any other is used",
        ),
    ] = DEFAULT_PORT
    run_name: Annotated[
        str,
        Meta(max_length=40, description="name of this run among several; empty: host and home"),
    ] = ""
    names: Annotated[
        tuple[str, ...],
        Meta(description="further host names that requests may use"),
    ] = ()
    certificate: Annotated[
        Path | None, Meta(description="TLS: PEM file of the certificate and its chain")
    ] = None
    key: Annotated[Path | None, Meta(description="TLS: PEM file of the private key")] = None
    acknowledge: Annotated[
        str, Meta(description=f"{ACKNOWLEDGEMENT}, required beyond 127.0.0.1 without TLS")
    ] = ""
    api_requests_per_minute: Annotated[
        int, Meta(ge=1, le=1_000_000, description="requests of one API token per minute")
    ] = 600
    session_hours: Annotated[float, Meta(gt=0, le=720, description="how long a login lasts")] = 12.0

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key must both be set, or neither")
        if not self.is_local and not self.has_tls and self.acknowledge != ACKNOWLEDGEMENT:
            raise ValueError(
                f"host {self.host} is reachable by others without encryption;"
                " set certificate and key, or keep 127.0.0.1 and use ssh -L, or set"
                f' acknowledge = "{ACKNOWLEDGEMENT}"'
            )

    @property
    def is_local(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def has_tls(self) -> bool:
        return self.certificate is not None

    @property
    def scheme(self) -> str:
        return "https" if self.has_tls else "http"


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
