"""The composition root: turns settings into a running system. Only here adapters are named."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qts.app.servers import open_database, open_store

if TYPE_CHECKING:
    from qts.app.app import App, Ready, Watcher, build
    from qts.app.backup import read_backup, write_backup
    from qts.app.dashboard import Handed, handed_of, login_link, serve_handed
    from qts.app.drill import DrillReport, run_drill
    from qts.app.summary import Service, Summary, Traded
    from qts.app.view_drill import ViewReport, run_view_drill

# Loaded when asked for: an errand to the database needs none of it.
_WHOLE = {
    "App": "app",
    "DrillReport": "drill",
    "run_drill": "drill",
    "run_view_drill": "view_drill",
    "ViewReport": "view_drill",
    "Handed": "dashboard",
    "Ready": "app",
    "Service": "summary",
    "Summary": "summary",
    "Traded": "summary",
    "Watcher": "app",
    "build": "app",
    "handed_of": "dashboard",
    "login_link": "dashboard",
    "read_backup": "backup",
    "serve_handed": "dashboard",
    "write_backup": "backup",
}

__all__ = [
    "App",
    "DrillReport",
    "Handed",
    "Ready",
    "Service",
    "Summary",
    "Traded",
    "ViewReport",
    "Watcher",
    "build",
    "handed_of",
    "login_link",
    "open_database",
    "open_store",
    "read_backup",
    "run_drill",
    "run_view_drill",
    "serve_handed",
    "write_backup",
]


def __getattr__(name: str) -> Any:
    if name in _WHOLE:
        return getattr(import_module(f"qts.app.{_WHOLE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
