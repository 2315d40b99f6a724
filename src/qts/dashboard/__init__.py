"""The owner's view in a browser: it reads what a run tells of itself, and acts by commands."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qts.dashboard.config import ACKNOWLEDGEMENT, USUAL_PORT, DashboardConfig

if TYPE_CHECKING:
    from qts.dashboard.live import Live, read_live
    from qts.dashboard.routed import keep_route, kept_route
    from qts.dashboard.server import Dashboard, Sources, address_of, listen, serve
    from qts.dashboard.tokens import Role, Tokens

# Loaded when asked for: settings need no web server.
_PARTS = {
    "Dashboard": "server",
    "Live": "live",
    "Role": "tokens",
    "Sources": "server",
    "Tokens": "tokens",
    "address_of": "server",
    "keep_route": "routed",
    "kept_route": "routed",
    "listen": "server",
    "read_live": "live",
    "serve": "server",
}

__all__ = [
    "ACKNOWLEDGEMENT",
    "USUAL_PORT",
    "Dashboard",
    "DashboardConfig",
    "Live",
    "Role",
    "Sources",
    "Tokens",
    "address_of",
    "keep_route",
    "kept_route",
    "listen",
    "read_live",
    "serve",
]


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return getattr(import_module(f"qts.dashboard.{_PARTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
