"""The owner's view in a terminal: the same figures as the dashboard, also over ssh."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qts.terminal.source import Seen, ServerSource, Source
from qts.terminal.text import frame

if TYPE_CHECKING:
    from qts.terminal.view import Top

__all__ = ["Seen", "ServerSource", "Source", "Top", "frame"]


def __getattr__(name: str) -> Any:
    if name == "Top":  # loaded when asked for: one frame of text needs no terminal library
        return import_module("qts.terminal.view").Top
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
