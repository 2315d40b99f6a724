"""QTS: a self-hosted, event-driven trading runtime.

What a strategy author needs is exported here; every name is loaded on first use. A program that
embeds a part of QTS imports its package (`qts.router`, `qts.outbox`, `qts.events`).
docs/architecture.md lists the packages and their layers.
"""

from typing import Any

from qts._exports import lazy_exports

_load, _names, _exported = lazy_exports(__name__, __file__)
__all__ = sorted([*_exported, "__version__"])


def __getattr__(name: str) -> Any:
    if name == "__version__":  # reading the package's metadata takes longer than `import qts`
        from importlib.metadata import version

        return version("qts")
    return _load(name)


def __dir__() -> list[str]:
    return __all__
