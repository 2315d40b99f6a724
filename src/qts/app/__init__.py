"""The composition root: turns settings into a running system. Only here adapters are named."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qts.app.servers import open_database, open_store

if TYPE_CHECKING:
    from qts.app.app import App, Ready, Watcher, build
    from qts.app.summary import Service, Summary, Traded

# Loaded when asked for: an errand to the database needs none of it.
_WHOLE = {
    "App": "app",
    "Ready": "app",
    "Service": "summary",
    "Summary": "summary",
    "Traded": "summary",
    "Watcher": "app",
    "build": "app",
}

__all__ = [
    "App",
    "Ready",
    "Service",
    "Summary",
    "Traded",
    "Watcher",
    "build",
    "open_database",
    "open_store",
]


def __getattr__(name: str) -> Any:
    if name in _WHOLE:
        return getattr(import_module(f"qts.app.{_WHOLE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
